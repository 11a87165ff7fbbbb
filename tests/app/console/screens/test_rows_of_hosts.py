"""Screens with a row for each of the chosen hosts of a fleet: policies and paths."""

from __future__ import annotations

import time

import pytest

from app.console.prompt.prompt import PromptInput
from app.console.screens.paths.hop import PathKey
from app.fleet.host_state import HostPhase
from probes.monitor.info import PolicyInfo
from probes.monitor.policy import Policy
from probes.monitor.state import PolicyState
from tests.app.api.fake import FakePlane
from tests.app.console.fake import becomes
from tests.app.console.fake_paths import LAB, SECOND_NS, FakeHop, FakePath
from tests.app.console.fake_paths import table as path_table
from tests.app.console.fake_triggers import FakeMonitor, Said, Traffic
from tests.app.fleet.fake_hub import NAMES, FakeHub, fleet_desk


@pytest.mark.slow
async def test_policies_of_several_hosts_are_one_table_and_a_change_goes_to_the_host_of_the_row(
    hub: FakeHub, planes: dict[str, FakePlane]
) -> None:
    for name, short in (("ams1", "flood: flows > 500 -> dns"), ("ams2", "syn: flows > 5 -> dns"),
                        ("fra1", "flood: flows > 900 -> dns")):  # fmt: skip
        planes[name].set_policy(Policy.parse_short(short))
    hub.turn("ams2", active=("syn",))
    monitors = {name: FakeMonitor() for name in NAMES}

    def publish(name: str, policy: str, flows: float, threshold: float) -> None:
        said = Said(flows, threshold, comparison=f"flows > {threshold:g}")
        for table in monitors[name].window({policy: said}, Traffic(flows=flows)):
            hub.publish(name, table)

    async with fleet_desk(hub) as console:

        def is_set(name: str, policy: str) -> PolicyInfo | None:
            info = planes[name].monitor()
            assert info is not None
            return next((one for one in info.policies if one.policy.name == policy), None)

        def state(name: str, policy: str) -> PolicyState | None:
            return one.state if (one := is_set(name, policy)) is not None else None

        def condition(name: str) -> str:
            return one.policy.condition if (one := is_set(name, "flood")) is not None else ""

        async def point(name: str, policy: str) -> None:
            console.app.screen.point_at((name, policy))  # type: ignore[attr-defined]
            await becomes(console, lambda: console.lines[1].split()[0] == name)

        for number, name in enumerate(NAMES, 1):
            publish(name, "syn" if name == "ams2" else "flood", 100.0 * number, 500.0)
        await console.press("1")
        await becomes(console, lambda: "Active on ams2: syn" in console.text)
        await console.press("4")
        await becomes(console, lambda: "policies 0 of 3 active" in console.strip)
        assert "policies of" not in console.strip
        # The detail says since when.
        listed = [line for line in console.lines if "armed" in line and "since" not in line]
        rows = [line.split()[:2] for line in listed]
        assert sorted(rows) == [["flood", "ams1"], ["flood", "fra1"], ["syn", "ams2"]]
        values = {line.split()[1]: line for line in listed}
        assert all(f"{100 * n} " in values[name] for n, name in enumerate(NAMES, 1)), values
        # Counters, detail and changes are of the host of the row.
        await point("fra1", "flood")
        assert "flows 300" in console.lines[1]
        await console.press("enter")
        await becomes(console, lambda: "flood on fra1, armed" in console.text)
        assert "300 against 500" in console.text
        await console.press("o")
        await becomes(console, lambda: state("fra1", "flood") is PolicyState.ACTIVE)
        assert state("ams1", "flood") is PolicyState.ARMED
        await console.press("escape")
        await console.press("e")
        assert "Change on fra1" in console.text
        console.app.screen.query_one(PromptInput).value = "flood: flows > 700 -> dns"
        await console.press("enter")
        await becomes(console, lambda: condition("fra1") == "flows > 700")
        assert condition("ams1") == "flows > 500"
        # A name without a row: on the host under the cursor, or else on the only one.
        await console.app.action_command("trigger.remove syn")
        await becomes(console, lambda: is_set("ams2", "syn") is None)
        await becomes(console, lambda: "of 2 active" in console.strip)
        # A new policy is of all hosts.
        await console.press("a")
        assert "Add on 3 hosts" in console.text
        await console.press("escape")
        await console.app.action_command("trigger.add calm: operator -> dns")
        await becomes(console, lambda: "of 5 active" in console.strip)
        hub.turn("fra1", HostPhase.LOST)
        publish("ams1", "flood", 100.0, 500.0)
        await becomes(console, lambda: "of 3 active" in console.strip)
        await becomes(console, lambda: console.lines[1].split()[0] != "fra1")
        await console.app.action_command("host.only ams1")
        await becomes(console, lambda: console.app.current_mode == "overview")
        await console.press("4")
        await becomes(console, lambda: "of 2 active" in console.strip)
        assert "Node" not in console.text


@pytest.mark.slow
async def test_a_destination_that_two_hosts_trace_has_a_row_of_each_with_its_own_numbers(
    hub: FakeHub, planes: dict[str, FakePlane]
) -> None:
    to = "10.94.6.2"
    far = FakePath((FakeHop(40.0, ("10.99.1.1",)),), end=FakeHop(80.0, (to,), loss=0.5))
    paths = {"ams1": FakePath(LAB, end=FakeHop(17.5, (to,))), "fra1": far}
    # Hosts count CLOCK_MONOTONIC from their boots.
    now_ns = time.monotonic_ns() // SECOND_NS * SECOND_NS
    clocks = {"ams1": now_ns, "fra1": now_ns // 2 // SECOND_NS * SECOND_NS}
    for name in paths:
        planes[name].trace(to)

    async with fleet_desk(hub) as console:

        def traced(name: str) -> bool:
            return to in {one.destination for one in planes[name].traced()}

        def rows() -> dict[str, list[str]]:
            """The words of the list's rows, by host."""
            below = [line.split() for line in console.lines[1:] if f"{to}  tcp 40001" in line]
            return {line[5]: line for line in below}

        def publish(name: str, *, seconds: int = 3) -> None:
            for _ in range(seconds):
                end_ns = clocks[name] + SECOND_NS - 1
                hub.publish(name, path_table(paths[name].second(clocks[name]), end_ns))
                hub.publish(name, path_table(paths[name].summaries(clocks[name]), end_ns))
                clocks[name] += SECOND_NS

        for name in paths:
            publish(name)
        # The worst hops of all hosts, each with its host.
        await console.press("1")
        await becomes(console, lambda: "10.94.5.2" in console.text and "10.99.1.1" in console.text)
        worst = [line.split()[1] for line in console.lines if line.startswith(f" {to}")]
        assert worst[0] == "fra1"
        assert "ams1" in worst
        await console.press("2")
        await becomes(console, lambda: rows().keys() == {"ams1", "fra1"})
        assert "1 destination" in console.strip
        assert "paths of" not in console.strip
        assert " Node " in console.text
        shown = rows()
        assert abs(float(shown["ams1"][7]) - 17.5) < 1
        assert abs(float(shown["fra1"][7]) - 80) < 4
        assert [shown[name][8] for name in paths] == ["0", "50.0"]
        # Hops are of the host of the row.
        assert "10.94.5.2" in console.text
        assert "10.99.1.1" not in console.text
        await console.app.action_command("path.next")
        await becomes(console, lambda: "10.99.1.1" in console.text)
        assert "10.94.5.2" not in console.text
        for name, path in paths.items():
            (past,) = console.app.time.past_paths(name)
            assert len(past.responders) == sum(len(hop.routers) for hop in path.hops) + 1
        await console.press("o")
        assert "Set on fra1" in console.text
        rate = planes["ams1"].path_options.rate
        console.app.screen.query_one(PromptInput).value = "rate=7"
        await console.press("enter")
        await becomes(console, lambda: planes["fra1"].path_options.rate == 7)
        assert planes["ams1"].path_options.rate == rate
        # The filter is about each host's own numbers.
        await console.type("/rtt<50ms")
        await console.press("enter")
        await becomes(console, lambda: rows().keys() == {"ams1"})
        await console.press("escape")
        await console.type("/node:fra")
        await console.press("enter")
        await becomes(console, lambda: rows().keys() == {"fra1"})
        await console.press("escape")
        await becomes(console, lambda: len(rows()) == 2)
        console.app.screen.point_at((PathKey(to, host="fra1"), None))  # type: ignore[attr-defined]
        await becomes(console, lambda: "10.99.1.1" in console.text)
        await console.press("x")
        await becomes(console, lambda: not traced("fra1"))
        assert traced("ams1")
        await becomes(console, lambda: "tracing has ended" in " ".join(rows()["fra1"]))
        # All hosts trace a new destination. The trace of a named one ends on every host.
        await console.app.action_command("path.trace 10.94.6.9")
        await becomes(console, lambda: all(len(each.traced()) for each in planes.values()))
        await becomes(console, lambda: sum("10.94.6.9" in line for line in console.lines) >= 3)
        await console.app.action_command(f"path.untrace {to}")
        await becomes(console, lambda: not traced("ams1"))
        hub.turn("fra1", HostPhase.LOST)
        publish("ams1", seconds=1)
        await becomes(console, lambda: "fra1" not in "".join(console.lines[1:]))
        # Programs are of one host: N turns to the next.
        chosen = console.app.hosts.planes
        await console.press("5", "N")
        await becomes(console, lambda: chosen.current == "ams2")
        await becomes(console, lambda: console.app.current_mode == "programs")
        await console.press("7")
        await console.app.action_command("host.only ams1")
        await becomes(console, lambda: console.app.current_mode == "overview")
        await console.press("2")
        await becomes(console, lambda: "10.94.6.9" in console.text)
        assert " Node " not in console.text
