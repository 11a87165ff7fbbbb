"""Paths that are traced and stopped from the screen, and names of hosts."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from app.console.app import ConsoleApp
from app.console.host_names import Names
from app.console.screens.flows.paths import path_of
from app.console.screens.paths.hop import PathKey
from bpf.errors import UsageError
from probes.flow.records import FlowDirection
from probes.path.options import Guard, Guarded, PathOptions, TracedFlow
from tests.app.console.fake import becomes, desk, flow
from tests.app.console.fake_paths import LAB, FakePath
from tests.app.console.fake_plane import FakePlane
from tests.app.console.screens.paths.tracer import UDP, tracer


async def test_enter_on_a_flow_traces_its_path_and_t_shows_it() -> None:
    async with desk(controller=(plane := FakePlane())) as console:
        leaving = flow(1, 10)
        leaving["direction"] = FlowDirection.EGRESS
        await console.feed(leaving)
        await console.press("enter")
        await becomes(console, lambda: "Who, why, where" in console.text)
        assert plane.asked == [("trace", "192.0.2.1 (6, 40001, 443)")]
        await console.press("T")
        await becomes(console, lambda: console.app.current_mode == "paths")
        await becomes(console, lambda: "192.0.2.1" in console.text)


@pytest.mark.parametrize(
    ("protocol", "port", "traced"),
    [
        (17, 443, TracedFlow(17, 443, 40001)),
        (1, 8 << 8, TracedFlow(1, 0, 0)),
        (1, 0, TracedFlow(1, 0, 0)),
        (58, 129 << 8, TracedFlow(58, 0, 0)),
        (1, 3 << 8, None),
        (47, 0, None),
    ],
)
def test_the_path_of_a_flow_into_this_host_is_that_of_its_answers(
    protocol: int, port: int, traced: TracedFlow | None
) -> None:
    row = flow(1, 10, proto=protocol)
    row["destination_port"] = port
    if traced is not None:
        assert path_of(row[0]) == PathKey("10.0.0.1", traced)
        return
    with pytest.raises(UsageError, match=r"has no path to trace; TCP, UDP and ICMP echo have one"):
        path_of(row[0])


async def test_what_cannot_be_traced_is_said_and_the_screen_stays() -> None:
    async with desk(controller=(plane := FakePlane())) as console:
        plane.refusal = UsageError("10.0.0.1 is a neighbour")
        await console.feed(flow(1, 10))
        await console.press("T")
        await becomes(console, lambda: bool(console.complaints))
        assert console.complaints == ["10.0.0.1 is a neighbour"]
        await console.feed(flow(1, 0), flow(2, 10, proto=47))
        await console.press("home", "T")
        assert "this gre flow has no path to trace" in console.complaints[-1]
        assert console.app.current_mode == "flows"


async def test_a_destination_is_typed_and_stopped_by_key() -> None:
    async with tracer() as t:
        assert "T traces a destination" in t.desk.text
        await t.desk.press("T")
        await t.desk.type("192.0.2.7")
        await t.desk.press("enter")
        await becomes(t.desk, lambda: ("trace", "192.0.2.7") in t.plane.asked)
        await becomes(t.desk, lambda: "waits for packets to it" in t.desk.text)
        await t.desk.press("T")
        await t.desk.type("::1")
        await t.desk.press("enter")
        await becomes(t.desk, lambda: bool("cannot trace ::1" in "".join(t.desk.complaints)))
        await t.desk.press("x")
        await becomes(t.desk, lambda: ("untrace", "192.0.2.7") in t.plane.asked)
        await becomes(t.desk, lambda: "nothing is traced" in t.desk.text)
        await t.desk.press("x")
        assert "no tracing to stop" in t.desk.complaints[-1]


async def test_a_flow_that_was_asked_for_is_stopped_alone() -> None:
    flows = (UDP, TracedFlow(6, 40001, 443))
    path = FakePath(LAB)
    async with tracer(path) as t:
        t.plane.paths[path.destination] = replace(t.plane.paths[path.destination], flows=flows)
        await becomes(t.desk, lambda: "udp 5004 to 9000" in t.desk.text)
        await t.desk.press("n", "x")
        await becomes(t.desk, lambda: ("untrace", "10.94.6.2 (17, 5004, 9000)") in t.plane.asked)


@pytest.mark.slow
async def test_the_guard_and_other_options_are_set_by_a_command() -> None:
    async with tracer(FakePath(LAB)) as t:
        await t.desk.press("o")
        await t.desk.type("guarded=all rate=20")
        await t.desk.press("enter")
        await becomes(t.desk, lambda: t.plane.path_options.guarded is Guarded.ALL)
        assert t.plane.path_options == PathOptions(guarded=Guarded.ALL, rate=20)
        await t.desk.app.action_command("path.set guard=none")
        await becomes(t.desk, lambda: t.plane.path_options.guard is Guard.NONE)
        assert t.plane.path_options.guarded is Guarded.ALL
        for line, words in (
            ("path.set guarded=some", "guarded is not one of end, all"),
            ("path.set gaurded=all", "'gaurded=all' is no NAME=VALUE of an option"),
            ("path.set rate=0", "a rate of 0 is not between"),
        ):
            await t.desk.app.action_command(line)
            await becomes(t.desk, lambda words=words: words in t.desk.complaints[-1])  # type: ignore[misc]
        t.plane.refusal = UsageError("roll it back")
        await t.desk.app.action_command("path.set mtu=true")
        await becomes(t.desk, lambda: "roll it back" in t.desk.complaints[-1])
        assert not t.plane.path_options.mtu


async def test_a_read_only_console_traces_nothing() -> None:
    async with desk(controller=(plane := FakePlane())) as console:
        plane.read_only = "it was started so"
        await console.feed(flow(1, 10))
        await console.press("T")
        assert "flow.trace is refused: it was started so" in console.complaints
        await console.press("2", "T", "x")
        assert len(console.complaints) == 3
        assert not plane.asked
        assert "nothing is traced" in console.text
        assert "T traces" not in console.text


async def test_names_take_the_place_of_addresses_and_cannot_break_the_screen() -> None:
    async with tracer(FakePath(LAB[:2]), length=2) as t:
        app: ConsoleApp = t.desk.app
        app.names = Names(app._named, lambda address: f"r.{address}\x1b[31m", enabled=False)
        await t.desk.press("a")
        await becomes(t.desk, lambda: "r.10.94.0.254·[31m" in t.desk.text)
        await becomes(t.desk, lambda: "r.10.94.6.2·[31m" in t.desk.lines[2])
        await t.desk.press("a")
        assert "r.10" not in t.desk.text
        assert "10.94.0.254" in t.desk.text


@pytest.mark.timing
def test_no_name_server_is_waited_for_and_each_address_is_asked_once() -> None:
    asked, gate, found = [], threading.Event(), threading.Event()

    def slow(address: str) -> str:
        asked.append(address)
        gate.wait(10)
        if address == "10.0.0.2":
            raise OSError("no such host")
        return f"name-of-{address}\x1b"

    names = Names(found.set, slow)
    started = time.monotonic()
    for _ in range(3):
        assert [names.name(f"10.0.0.{n}") for n in range(1, 400)] == [""] * 399
    assert time.monotonic() - started < 1
    gate.set()
    assert found.wait(5)
    end = time.monotonic() + 5
    while names.name("10.0.0.1") != "name-of-10.0.0.1·":
        assert time.monotonic() < end
    assert names.name("10.0.0.2") == ""
    assert len(asked) == len(set(asked))
    assert all(t.daemon for t in threading.enumerate() if t.name == "names")
