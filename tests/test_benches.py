"""Each bench is in the table, and runs to its end."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from bench.support.table import BENCHES, Bench

ROOT = Path(__file__).resolve().parents[1]


def test_the_table_has_every_bench() -> None:
    programs = {
        ".".join(path.relative_to(ROOT / "bench").with_suffix("").parts).removesuffix(".__main__")
        for path in (ROOT / "bench").rglob("*.py")
        if 'if __name__ == "__main__":' in path.read_text() and path.parent.name != "support"
    }
    assert programs == {bench.name for bench in BENCHES}


@pytest.mark.parametrize("bench", BENCHES, ids=lambda each: each.name)
def test_it_finds_what_it_imports(bench: Bench) -> None:
    if bench.needs and find_spec(bench.needs) is None:
        pytest.skip(f"{bench.needs} is not there")
    name = f"bench.{bench.name}"
    is_folder = (ROOT / name.replace(".", "/")).is_dir()
    assert callable(import_module(f"{name}.__main__" if is_folder else name).main)


@pytest.mark.slow
@pytest.mark.parametrize(
    "bench", [each for each in BENCHES if each.quick is not None], ids=lambda each: each.name
)
def test_it_runs_to_its_end(bench: Bench) -> None:
    """A missed target (exit code 1) says nothing on a busy machine."""
    if bench.needs and find_spec(bench.needs) is None:
        pytest.skip(f"{bench.needs} is not there")
    assert bench.quick is not None
    command = [sys.executable, "-I", "-m", f"bench.{bench.name}", *bench.quick.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr, done.stderr
