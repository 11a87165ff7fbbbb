"""The tools of deploy/'s files: programs of the host, and the packages that .ci/deploy installs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PACKAGES = Path(sys.prefix) / "deploy"


def package(name: str) -> Path:
    """Return the folder of a package of .ci/deploy, or skip the test."""
    found = PACKAGES / name
    if not found.is_dir():
        pytest.skip(f"{name} is not installed (.ci/deploy)")
    return found


def python(*arguments: object, text: str = "") -> str:
    """Run Python with the packages of .ci/deploy; return its output."""
    package("")
    return run(sys.executable, *arguments, text=text, PYTHONPATH=str(PACKAGES))


def run(program: str, *arguments: object, text: str = "", **variables: str) -> str:
    """Run a tool that must accept its input; return its output."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed")
    done = subprocess.run(
        [found, *map(str, arguments)], input=text, capture_output=True, text=True, check=False,
        env={**os.environ, **variables}, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
