"""A new operation is a method of the control plane, and its entry in the catalogue."""

from __future__ import annotations

import inspect
from typing import Any, cast

import pytest
from click.testing import CliRunner

from app.api.server.command_endpoints import run_on_plane
from app.cli.command import CommandGroup, operations
from app.commands.line import parse
from app.commands.registry import REGISTRY, said
from app.fleet.planes import ChosenPlane, Planes
from bpf.errors import ProbedeckError, UsageError
from probes.control_plane import OPERATIONS, ControlPlane, RemoteCalls
from probes.operation import ConsoleCommand, Operation, Subcommand
from tests.app.api.conftest import MakeSite
from tests.app.api.conftest import make_site as make_site
from tests.app.api.fake import FakePlane, config
from tests.app.console.screens.programs.bench import bench

LOCAL = {"unconfined", "listen", "publish", "hook_status", "memory", "budget", "failure", "close"}
"""Methods that no request makes: their answers come with the status and the stream."""
EVERYWHERE = {
    "reconfigure", "trace", "untrace", "switch", "set_policy", "remove_policy",
    "activate_policy", "deactivate_policy", "stop_actions",
}  # fmt: skip


def shake(plane: Any, name: str, times: int = 1) -> str:
    """Shake a probe."""
    return f"{name} {times}"


@pytest.fixture
def operation(monkeypatch: pytest.MonkeyPatch) -> Operation[..., str]:
    made = Operation(
        shake, "POST", "probes/{name}/shake", everywhere=True,
        command=ConsoleCommand("probe.shake", "Shake the probe", "j", "programs", task="shaking"),
        subcommand=Subcommand("probe shake", values={"times": "How often."}),
    )  # fmt: skip
    monkeypatch.setitem(REGISTRY, "probe.shake", said(made))
    monkeypatch.setitem(OPERATIONS, "shake", made)
    monkeypatch.setattr(RemoteCalls, "shake", made, raising=False)
    monkeypatch.setattr(FakePlane, "shake", shake, raising=False)
    return made


def test_each_method_of_the_control_plane_has_an_entry() -> None:
    methods = {
        name for each in ControlPlane.__mro__ for name, value in vars(each).items()
        if inspect.isfunction(value) and not name.startswith("_")
    }  # fmt: skip
    assert set(OPERATIONS) == methods - LOCAL
    assert all(each.name == name for name, each in OPERATIONS.items())
    assert {name for name, each in OPERATIONS.items() if each.everywhere} == EVERYWHERE


@pytest.mark.usefixtures("operation")
def test_endpoint_and_client_follow(make_site: MakeSite) -> None:
    site = make_site()
    site.plane.add(config())
    client: Any = site.client()
    assert (client.shake("counter"), client.shake("counter", times=3)) == ("counter 1", "counter 3")
    with pytest.raises(ProbedeckError, match="no probe 'countr'; did you mean counter"):
        client.shake("countr")
    site.plane.read_only = "only looked at"
    with pytest.raises(UsageError, match="only looked at"):
        client.shake("counter")
    client.close()


def test_commands_follow(operation: Operation[..., str]) -> None:
    plane = FakePlane()
    plane.add(config())
    command = REGISTRY["probe.shake"]
    assert (command.usage, command.writes) == ("probe.shake [PROBE] [TIMES]", True)
    assert command.remote is not None
    assert command.remote(plane, "counter", "3") == "counter 3"
    run_on_plane(plane, parse("probe.shake counter"))
    with pytest.raises(UsageError, match=r"probe\.shake needs a probe"):
        run_on_plane(plane, parse("probe.shake"))


def test_a_subcommand_follows(operation: Operation[..., str], make_site: MakeSite) -> None:
    site = make_site()
    site.plane.add(config())
    group = CommandGroup("probe")
    operations(group)
    shown = CliRunner().invoke(group, ["shake", "--help"]).output
    assert "Shake a probe." in shown
    assert "--times TIMES  How often." in shown
    url = f"unix:{site.options.socket}"
    made = CliRunner().invoke(group, ["shake", "counter", "--times", "3", "--connect", url])
    assert (made.exit_code, made.output) == (0, "counter 3\n")
    with pytest.raises(ProbedeckError, match="did you mean counter"):
        CliRunner().invoke(group, ["shake", "countr", "--connect", url], catch_exceptions=False)


@pytest.mark.usefixtures("operation")
async def test_a_console_takes_the_row_under_the_cursor() -> None:
    asked: list[tuple[object, ...]] = []
    async with bench() as b:
        b.plane.shake = lambda *values: asked.append(values)  # type: ignore[attr-defined]
        await b.app.action_command("probe.shake")
        await b.until_still()
        await b.app.action_command("probe.shake bye 3")
        await b.until_still()
        assert asked == [("flow",), ("bye", 3)]
        b.plane.read_only = "only looked at"
        await b.app.action_command("probe.shake")
        await b.until_still()
        assert len(asked) == 2
        assert "probe.shake is refused: only looked at" in b.complaints[-1]


@pytest.mark.usefixtures("operation")
def test_a_fleet_makes_it_everywhere_with_keywords() -> None:
    first, second = FakePlane(), FakePlane()
    hosts = Planes({"a": first, "b": second})
    plane: ControlPlane = ChosenPlane(hosts)
    assert cast(Any, plane).shake("counter", times=2) == "counter 2"
    assert hosts.last_change == "shake counter"
    plane.trace("192.0.2.1", flow=None, own=None)
    assert hosts.last_change == "trace 192.0.2.1"
    plane.switch("names", on=False)
    assert hosts.last_change == "switch names off"
    # What concerns one host concerns the host under the cursor.
    hosts.cursor = "b"
    assert plane.history is second.history
    # One host allows changes.
    first.read_only = "only looked at"
    assert plane.read_only == ""
    hosts.cursor = ""
    assert len(second.traced()) == 1
    first.add(config())
    assert [len(plane.probes()), len(second.probes())] == [1, 0]
