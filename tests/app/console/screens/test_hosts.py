"""Screen 7, and the other screens over the chosen hosts of a fleet."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from app.api import connection_events
from app.api.address import Remote
from app.api.server.listener import ApiListener
from app.api.sockets import Api
from app.fleet.host_state import HostPhase
from probes.snapshot import Event, Loss, LossReason
from tests.app.api.fake import FakePlane
from tests.app.console.fake import Desk, becomes, conversation, desk
from tests.app.fleet.fake_hub import NAMES, FakeHub, fleet_desk
from tests.support.console.feed import window


@pytest.mark.slow
async def test_hosts_are_listed_filtered_and_chosen_and_missing_ones_are_named(
    hub: FakeHub, planes: dict[str, FakePlane]
) -> None:
    hub.turn("ams1", bits_s=2e6, offset_s=5.0, offset_error_s=0.001, active=("flood",))
    hub.turn("fra1", HostPhase.LOST, reason="no route to host",
             losses={LossReason.TABLE_FULL: Loss(7, 700)})  # fmt: skip
    async with fleet_desk(hub) as console:
        text = console.text
        assert "1 of 3 hosts is missing: numbers lack it" in text
        assert "3 hosts │ without fra1" in console.strip
        assert all(name in text for name in (*NAMES, "2.00 Mbit/s", "+5.0 s", "flood")), text
        await console.press("G")
        assert "fra1 is lost: no route to host" in console.lines[-2]
        await console.type("/site:a rate>1M")
        await console.press("enter")
        assert "ams2" not in console.text
        await console.press("escape")
        assert "ams2" in console.text
        await console.type("/city:x")
        await console.press("enter")
        assert "hosts have no 'city'" in console.text
        await console.press("escape")
        await console.app.action_command("host.mark fra1")
        await becomes(console, lambda: "2 hosts" in console.strip)
        await console.app.action_command("host.choose state:lost")
        await becomes(console, lambda: "fra1" in console.strip)
        # A single host is followed on its own connection, all of its windows.
        await console.app.action_command("host.only ams2")
        await becomes(console, lambda: console.app.current_mode == "overview")
        planes["ams2"].publish(window(conversation(1, 800, 8)))
        await becomes(console, lambda: "10.0.0.1" in console.text)
        assert "ams2" in console.strip
        assert console.app.plane.interval == planes["ams2"].interval


@pytest.mark.slow
async def test_the_numbers_of_several_hosts_are_summed_without_those_that_are_lost(
    hub: FakeHub,
) -> None:
    async with fleet_desk(hub) as console:
        for number, name in enumerate(NAMES, 1):
            # The same addresses on each: they are conversations of their own.
            hub.publish(name, window(conversation(1, 100 * number, 10)))
        await console.press("3")
        await becomes(console, lambda: "3 conversations" in console.text)
        assert "total in 600 kbit/s" in console.text
        # Each row has its host, and its host's numbers.
        rows = {line.split()[0]: line for line in console.lines if " 10.0.0.1:" in line}
        assert {name: rows[name].count(f"{100 * n} k") for n, name in enumerate(NAMES, 1)} == (
            dict.fromkeys(NAMES, 1)
        )
        await console.type("/node:ams")
        await console.press("enter")
        await becomes(console, lambda: "2 conversations" in console.text)
        assert "fra1" not in console.text
        await console.press("escape")
        await console.app.action_command("flow.group node")
        await becomes(console, lambda: "3 nodes" in console.text)
        await console.app.action_command("flow.view conversations")
        await console.app.action_command("flow.sort node")
        event = Event.now("warning", "path", "10.0.0.9 hop 3 queue")
        hub.publish("fra1", event)
        await console.press("1")
        await becomes(console, lambda: "hop 3 queue" in console.text)
        assert "path of fra1: 10.0.0.9 hop 3 queue" in console.text
        assert "fra1      10.0.0.9 hop 3" in console.text
        await console.press("6")
        await becomes(console, lambda: "hop 3 queue" in console.text)
        hub.turn("fra1", HostPhase.LOST)
        await console.press("3")
        hub.publish("ams1", window(conversation(1, 100, 10), 2))
        await becomes(console, lambda: "2 conversations" in console.text)
        assert "without fra1" in console.strip
        # Its events stay: they tell why it is missing.
        await console.press("6")
        assert "hop 3 queue" in console.text
        assert "fra1" in next(line for line in console.lines if "hop 3 queue" in line)


@pytest.mark.slow
async def test_a_killed_a_cut_off_and_a_host_with_another_clock_are_named_on_every_screen(
    hub: FakeHub,
) -> None:
    """ams1 is killed, ams2 sends nothing any more, and the clock of fra1 is 5 s ahead."""
    urls = {one.name: one.remote.url for one in hub.hosts}
    clock = "its clock is 5.0 s ahead of the clock here (within 1.0 ms); times are corrected"
    start_ns = time.monotonic_ns()
    hub.turn("fra1", offset_s=5.0, offset_error_s=0.001, bits_s=3e5, active=("flood",))
    async with fleet_desk(hub) as console:

        async def windows(number: int, *names: str) -> None:
            for name in names:
                rows = conversation(1, 100 * (1 + NAMES.index(name)), 10)
                end_ns = start_ns + number * 10**9
                for time_ns in ("first_ns", "last_ns"):
                    rows[time_ns] += end_ns
                hub.publish(name, window(rows, number, end_ns=end_ns))

        hub.publish("fra1", Event.now("warning", urls["fra1"], clock, "clock", "begin"))
        await windows(1, *NAMES)
        await console.press("3")
        await becomes(console, lambda: "total in 600 kbit/s" in console.text)

        # Killed: a reset. Cut off: the last packets count until the host is surely lost.
        hub.turn("ams1", HostPhase.LOST, reason="no controller at ams1: connection refused")
        hub.publish("ams1", connection_events.lost(urls["ams1"], "connection reset"))
        hub.turn("ams2", HostPhase.SLOW, reason="silent for 6 s", bits_s=2e5)
        await windows(2, "fra1")
        await becomes(console, lambda: "without ams1" in console.strip)
        await becomes(console, lambda: "total in 500 kbit/s" in console.text)
        await console.press("7")
        await becomes(console, lambda: "1 of 3 hosts is missing" in console.text)
        rows = {name: _row(console, name) for name in NAMES}
        assert "slow" in rows["ams2"]
        assert "200 kbit/s" in rows["ams2"]
        hub.turn("ams2", HostPhase.LOST, reason="ams2 is silent for 10 s", bits_s=0.0)
        hub.publish("ams2", connection_events.lost(urls["ams2"], "it is silent for 10 s"))
        await windows(3, "fra1")
        await becomes(console, lambda: "without ams1, ams2" in console.strip)

        await becomes(
            console, lambda: "2 of 3 hosts are missing: numbers lack them" in console.text
        )
        rows = {name: _row(console, name) for name in NAMES}
        assert all("lost" in rows[name] for name in ("ams1", "ams2"))
        assert all("bit/s" not in rows[name] for name in ("ams1", "ams2"))
        assert all(text in rows["fra1"] for text in ("up", "+5.0 s", "300 kbit/s", "flood"))
        assert "in all 300 kbit/s" in console.text

        await console.press("3")
        await becomes(console, lambda: "total in 300 kbit/s" in console.text)
        assert "1 conversation" in console.text
        assert "without ams1, ams2" in console.strip

        await console.press("1")
        await becomes(console, lambda: "ams1 is lost, and all numbers lack it" in console.text)
        said = console.text
        assert "ams2 is lost, and all numbers lack it: ams2 is silent for 10 s" in said
        assert "The clock of fra1 is 5.0 s ahead of the clock here" in said
        # The event about the clock is the same sentence.
        assert clock not in said
        assert "without ams1, ams2" in console.strip

        await console.press("6")
        await becomes(console, lambda: "connection reset" in console.text)
        assert "ams1" in _row(console, "connection reset")
        assert "ams2" in _row(console, "it is silent")
        assert "fra1" in _row(console, "its clock is 5.0 s")


def _row(console: Desk, text: str) -> str:
    """The first line below the strip with a text."""
    found = [line for line in console.lines[1:] if text in line]
    assert found, console.text
    return found[0]


@pytest.mark.slow
async def test_a_policy_is_added_to_the_chosen_hosts_with_a_report_for_each(
    hub: FakeHub, planes: dict[str, FakePlane]
) -> None:
    planes["ams2"].read_only = "a reader's token"
    async with fleet_desk(hub) as console:
        await console.app.action_command("host.policy flood: flows > 500 -> accounting")
        await becomes(console, lambda: "done on 2 of 3 hosts" in console.text)
        rows = {
            line.split()[1]: line for line in console.lines if "Took" not in line and "│" in line
        }
        assert "reader's token" in rows["ams2"]
        assert all("done" in rows[name] for name in ("ams1", "fra1"))
        await console.press("escape", "r")
        assert "done on 2 of 3 hosts" in console.text


@pytest.mark.slow
async def test_a_fleet_of_one_host_that_is_down_opens_and_follows_the_host_when_it_is_back(
    tmp_path: Path,
) -> None:
    socket = tmp_path / "ams1"
    hub = FakeHub({"ams1": Remote(f"unix:{socket}")})
    hub.turn("ams1", HostPhase.LOST, reason="no such socket" + 20 * " here")
    async with fleet_desk(hub) as console:
        assert "1 of 1 host is missing: numbers lack it" in console.text
        assert "ams1 is lost: no such socket" in console.lines[-2]
        assert console.lines[-2].rstrip().endswith("…")
        assert "ams1 │ lost" in console.strip
        for key in "123456":
            await console.press(key)
            assert "ams1 │ lost" in console.strip
        await console.press("7", "enter")
        await becomes(console, lambda: bool(console.complaints))
        assert console.app.current_mode == "hosts"
        hub.turn("ams1")
        hub.publish("ams1", window(conversation(1, 100, 10)))
        await console.press("3")
        await becomes(console, lambda: "10.0.0.1" in console.text)
        assert "lost" not in console.strip.split("│")[1]
        plane = FakePlane()
        with ApiListener(plane, Api(version="1.2.3", socket=str(socket))):
            await console.app.action_command("host.only ams1")
            await becomes(console, lambda: console.app.current_mode == "overview")


async def test_without_a_fleet_there_is_no_screen_of_hosts() -> None:
    async with desk() as console:
        await console.press("7")
        assert console.app.current_mode == "flows"
        assert " 7 " not in console.lines[-1]
        await console.app.action_command("view.hosts")
        await becomes(console, lambda: "there is no fleet here" in str(console.complaints))
