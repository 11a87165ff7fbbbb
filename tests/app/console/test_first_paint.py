"""The first paint needs neither numpy nor the probes nor pydantic."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {
    "numpy",
    "pydantic",
    "pyroute2",
    "plotext",
    "tree_sitter",
    "fastapi",
    "probes.control.controller",
}


@pytest.mark.parametrize("module", ["app.cli.main", "app.console.app"])
def test_what_is_drawn_first_needs_no_library_that_takes_long(module: str) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True
    )
    assert not sorted(HEAVY & set(done.stdout.split()))


@pytest.mark.parametrize("module", ["app.commands", "app.config.sections", "app.tape.condition"])
def test_names_of_columns_and_screens_need_neither_numpy_nor_a_screen(module: str) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True
    )
    assert not {"numpy", "textual", "rich"} & set(done.stdout.split())
