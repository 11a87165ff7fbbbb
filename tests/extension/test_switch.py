"""A new optional probe is one entry, and a module with the probe."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from bpf.attach.interface import Interface
from bpf.compiler import Compiler
from bpf.errors import UsageError
from probes.control_plane import ControlPlane
from probes.hooks import Hooks
from probes.switches import SWITCHES, ProbePlace, Switch
from tests.extension.test_probe import SIZES, SizeOptions
from tests.probes.conftest import compiler as compiler
from tests.probes.deck import Deck
from tests.probes.deck import deck as deck

ROOT = Path(__file__).parents[2]
ENTRY = """Switch(
    "toy", "toy", ProbePlace.HOST, "toys", "Count toys.",
    "toy.count", "Count toys, or stop", "Toys.", "toys",
)"""
FRONT_ENDS = f"""
import json, sys
sys.path.insert(0, {str(ROOT)!r})
from probes.switches import SWITCHES, ProbePlace, Switch

SWITCHES["toy"] = {ENTRY}
from click.testing import CliRunner
from app.api.server.command_endpoints import run_on_plane
from app.cli.main import cli
from app.run.options import Options, Switched
from app.run.spec import run_spec
from app.cli.subcommands.config import template
from app.commands.line import parse
from app.commands.registry import REGISTRY

class Plane:
    def probes(self):
        return ()

    def switch(self, name, on):
        said.append([name, on])

said = []
for line in "toy.count on", "toy.count off", "toy.count":
    if parse(line).values:
        run_on_plane(Plane(), parse(line))
    else:
        parse(line).command.remote(Plane(), "")
print(json.dumps({{
    "help": CliRunner().invoke(cli, ["run", "--help"]).output,
    "file": template(),
    "starts": run_spec(Options("lo", switches=Switched(toys=True), headless=True), "1").switches,
    "usual": run_spec(Options("lo", headless=True), "1").switches,
    "command": [REGISTRY["toy.count"].usage, REGISTRY["toy.count"].writes],
    "said": said,
}}))
"""


def test_option_file_run_and_command_follow_from_the_entry() -> None:
    command = (sys.executable, "-I", "-c", FRONT_ENDS)
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.stderr == ""
    found = json.loads(ended.stdout)
    assert "--toys" in found["help"]
    assert "# Count toys.\n# toys = false" in found["file"]
    assert (found["starts"], found["usual"]) == (["toy"], [])
    assert found["command"] == ["toy.count [on|off]", True]
    assert found["said"] == [["toy", True], ["toy", False], ["toy", True]]


def test_the_controller_starts_and_ends_it(deck: Deck, monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(compiler: Compiler, hooks: Hooks, interface: Interface, interval: float) -> Any:
        host: Any = SimpleNamespace(compiler=compiler, hooks=hooks)
        return SIZES.prepare(host, interface, SizeOptions(interval))

    module: Any = ModuleType("toy")
    module.MEMORY, module.prepare = 1 << 16, prepare
    monkeypatch.setitem(sys.modules, "toy", module)
    entry = Switch(
        "sizes",
        "toy",
        ProbePlace.FLOWS,
        "toys",
        "",
        "toy.count",
        "",
        "",
        "",
        lacks="no flows are counted",
    )
    monkeypatch.setitem(SWITCHES, "sizes", entry)
    plane: ControlPlane = deck.controller
    with pytest.raises(UsageError, match="no flows are counted"):
        plane.switch("sizes", True)
    monkeypatch.setitem(SWITCHES, "sizes", replace(entry, place=ProbePlace.HOST))
    plane.switch("sizes", True)
    plane.switch("sizes", True)
    assert [info.name for info in plane.probes()] == ["sizes"]
    plane.switch("sizes", False)
    plane.switch("sizes", False)
    assert plane.probes() == ()


@pytest.mark.parametrize("switch", SWITCHES.values(), ids=SWITCHES)
def test_each_entry_names_a_module(switch: Switch) -> None:
    module = switch.load()
    assert module.MEMORY > 0
    assert callable(module.prepare)
