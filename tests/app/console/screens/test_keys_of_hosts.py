"""Keys on a row that several hosts of a fleet may have: they act on the host of the row."""

from __future__ import annotations

import pytest

from app.console.dialogs.explain import ExplainPage
from app.console.prompt.prompt import PromptInput
from app.fleet.host_state import HostPhase
from probes.monitor.finding import Finding
from probes.monitor.state import PolicyState
from probes.snapshot import Event
from tests.app.api.fake import FakePlane, config
from tests.app.console.fake import becomes, conversation
from tests.app.console.fake_triggers import FakeMonitor, Said, Traffic
from tests.app.fleet.fake_hub import NAMES, FakeHub, fleet_desk
from tests.support.console.feed import window


def run_flow_probes(planes: dict[str, FakePlane]) -> None:
    for plane in planes.values():
        plane.add(config("flow"))


@pytest.mark.slow
async def test_trace_capture_and_explanation_are_of_the_host_of_the_row(
    hub: FakeHub, planes: dict[str, FakePlane]
) -> None:
    def tracing() -> list[str]:
        return [name for name, plane in planes.items() if plane.traced()]

    run_flow_probes(planes)
    async with fleet_desk(hub) as console:
        for number, name in enumerate(NAMES, 1):
            hub.publish(name, window(conversation(1, 1000 * number, 10)))
        await console.press("3")
        await becomes(console, lambda: "3 conversations" in console.text)
        await console.app.action_command("flow.filter node:fra1")
        await console.press("T")
        await becomes(console, lambda: tracing() == ["fra1"])
        await becomes(console, lambda: console.app.current_mode == "paths")
        # Capture: the prompt is about the host of the row, and a whole line about all.
        await console.press("3", "C")
        assert "Count only on fra1" in console.text
        console.app.screen.query_one(PromptInput).value = "tcp"
        await console.press("enter")
        await becomes(console, lambda: planes["fra1"].captures == ["tcp"])
        assert not planes["ams2"].captures
        # A row of several hosts: all of them.
        await console.app.action_command("flow.clear")
        await console.app.action_command("flow.view services")
        await console.press("C")
        assert "Count only on 3 hosts" in console.text
        await console.press("escape")
        await console.app.action_command("flow.view conversations")
        # The explanation has the numbers of its host, and traces there.
        await console.app.action_command("flow.filter node:ams1")
        await console.press("enter")
        page = console.app.screen
        assert isinstance(page, ExplainPage)
        await becomes(console, lambda: tracing() == ["ams1", "fra1"])
        assert "Who, why, where on ams1" in console.text
        await becomes(console, lambda: "1.00 Mbit/s in, 10.0 kbit/s out" in console.text)
        hub.turn("ams1", HostPhase.LOST)
        hub.publish("ams2", window(conversation(1, 1000, 10), 2))
        await becomes(console, lambda: "ams1 is missing" in console.text)


@pytest.mark.slow
async def test_keys_about_a_culprit_are_of_the_host_of_the_alarm(
    hub: FakeHub, planes: dict[str, FakePlane]
) -> None:
    who = Finding("10.0.0.1 (100 %)", "proto:tcp src:10.0.0.1", 1998)
    monitor = FakeMonitor()
    run_flow_probes(planes)
    async with fleet_desk(hub) as console:
        for name in NAMES:
            hub.publish(name, window(conversation(1, 1000, 10)))
        for table in monitor.window({"flood": Said()}, Traffic()):
            hub.publish("fra1", table)
        armed, active = PolicyState.ARMED, PolicyState.ACTIVE
        hub.publish("fra1", monitor.transition("flood", armed, active, "flows 1.9 k", finding=who))
        hub.publish("fra1", Event.now("warning", "monitor", f"flood: {who.text}; fired"))
        await console.press("6")
        await becomes(console, lambda: "flood: 10.0.0.1" in console.text)
        await console.press("C")
        assert "Count only on fra1" in console.text
        assert console.app.screen.query_one(PromptInput).value == who.filter
        await console.press("enter")
        await becomes(console, lambda: planes["fra1"].captures == [who.filter])
        assert not planes["ams1"].captures
        await console.press("f")
        await becomes(console, lambda: f"node:/^fra1$/ {who.filter}" in console.strip)
        await becomes(console, lambda: "1 conversation" in console.text)
        await console.press("6", "T")
        await becomes(console, lambda: bool(planes["fra1"].traced()))
        assert not planes["ams1"].traced()
