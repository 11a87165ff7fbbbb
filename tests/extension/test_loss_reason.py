"""A new loss reason is one line in Python and one in C: windows and their files have it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app.lab.netns import inside
from tests.bpf.tools import send
from tests.support.runs import measures, rows
from tests.support.sight import becomes
from tests.support.veth import veth_pair

ROOT = Path(__file__).parents[2]
LINES = {
    "probes/snapshot.py": (
        '    BUDGET = 5, "packets whose flows have no or no whole row because of --cpu"\n',
        '    TOO_SHORT = 6, "packets that are shorter than the operator wants"\n',
    ),
    "bpf/include/losses.h": ("    LOSS_BUDGET, ", "\n    LOSS_TOO_SHORT,"),
}
"""By file, the line that exists, and the line after it."""
SOURCE = """\
#include "probe.h"

BPF_ARRAY(packets, u64, 1);

int count(CONTEXT *ctx)
{
    packets.atomic_increment(0);
    lose(LOSS_TOO_SHORT, 1, bytes_of(ctx));
    return VERDICT_PASS;
}
"""
PROBE = """\
name = "toy"
interval = 0.1

[ingress]
interface = "right"
hook = "tc"
source = "toy.c"
metrics = [{ name = "packets", map = "packets", snapshot = true }]
"""


def extended(directory: Path) -> Path:
    """A copy of the product with the two lines."""
    for package in ("app", "bpf", "probes", "widgets"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, directory / package, symlinks=True, ignore=ignore)
    for name, (before, added) in LINES.items():
        text = (directory / name).read_text()
        at = text.index(before)
        end = text.index("\n", at) if added.startswith("\n") else at + len(before)
        (directory / name).write_text(text[:end] + added + text[end:])
    return directory


@pytest.mark.slow
def test_a_new_reason(tmp_path: Path) -> None:
    root, tables = extended(tmp_path / "product"), tmp_path / "tables"
    (tmp_path / "toy.c").write_text(SOURCE)
    (tmp_path / "toy.toml").write_text(PROBE)
    start = f"import sys; sys.path.insert(0, {str(root)!r}); from app.cli.main import main; main()"
    run = (sys.executable, "-I", "-c", start, "run", "--headless", "--only", "-o", str(tables))
    with (
        veth_pair() as (left, right),
        inside(right.ns),
        subprocess.Popen([*run, "--probe", str(tmp_path / "toy.toml")]) as process,
    ):
        try:
            assert measures(tables)
            assert send(left, right, 7) == 7
            assert becomes(
                lambda: sum(int(row["too_short"]) for row in rows(tables / "windows.csv")) >= 7
            )
        finally:
            process.terminate()
    header = list(rows(tables / "windows.csv")[0])
    assert header[header.index("budget") + 1] == "too_short"
