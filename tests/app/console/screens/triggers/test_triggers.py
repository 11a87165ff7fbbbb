"""Screen 4 as an operator sees it (S2.5, S2.11-S2.13, S2.23): policies, applications, changes."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest

from app.console.prompt.prompt import MARK, ErrorLine, PromptInput
from app.console.screens.triggers.detail import TriggerDetail
from bpf.errors import UsageError
from probes.flow.records import FlowDirection
from probes.monitor.applications import views
from probes.monitor.applications.top_table import TopTable
from probes.monitor.finding import Distinct, Finding, TopShare
from probes.monitor.info import MonitorInfo, PolicyInfo
from probes.monitor.options import Input
from probes.snapshot import NOT_COUNTED, Event
from probes.tables.conversion import TableKind, TableSchema
from tests.app.console.fake import Desk, desk, flow
from tests.app.console.fake_plane import FakePlane
from tests.app.console.fake_triggers import FakeMonitor, Said, Traffic, monitor, policy
from tests.app.console.screens.triggers.policies import ARMED, FLOOD, NASTY, ON
from tests.support.console.feed import window
from widgets.table.table import VirtualTable

# The screen


class Console(Desk):
    """An operator at screen 4, and the monitor that is watched."""

    plane: FakePlane
    monitor: FakeMonitor

    async def play(self, says: dict[str, Said], traffic: Traffic | None = None) -> None:
        for table in self.monitor.window(says, traffic):
            self.plane.publish(table)
        await self.still()

    async def becomes(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < end, self.text
            await self.pilot.pause(0.01)

    async def asks(self, *asked: tuple[str, str]) -> None:
        """Wait until the plane was asked this, and the screen has taken it in."""
        await self.becomes(lambda: self.plane.asked == list(asked))
        await self.becomes(lambda: not self.app.screen._busy)  # type: ignore[attr-defined]
        self.plane.asked.clear()

    async def put(self, text: str) -> None:
        """Replace what is in the prompt, and press Enter."""
        self.app.screen.query_one(PromptInput).value = text
        await self.press("enter")

    @property
    def policies(self) -> VirtualTable:
        return self.app.screen.query_one("#policies", VirtualTable)

    @property
    def listed(self) -> list[str]:
        rows = self.policies.source
        return [str(rows.cells(n)[0]) for n in range(rows.rows)]

    @property
    def below(self) -> str:
        """The text of the detail; empty where it is closed."""
        pane = self.app.screen.query_one(TriggerDetail)
        region = pane.region
        return "\n".join(self.lines[region.y : region.bottom]) if pane.is_open else ""

    @property
    def mistake(self) -> ErrorLine:
        return self.app.screen.query_one(ErrorLine)


@asynccontextmanager
async def console(
    *policies: PolicyInfo, width: int = 120, height: int = 40, runs: bool = True
) -> AsyncIterator[Console]:
    plane = FakePlane()
    plane.monitor_info = monitor(*policies) if runs else None
    async with desk(width, height, plane) as opened:
        shown = Console(opened.app, plane, opened.pilot)
        shown.plane, shown.monitor = plane, FakeMonitor()
        await shown.press("4")
        await shown.becomes(lambda: shown.app.screen._known)  # type: ignore[attr-defined]
        yield shown


def policies() -> list[PolicyInfo]:
    return [
        policy(FLOOD, ON, ago=12, selected=123456),
        policy("syn: tcp_packets / packets > 90% -> half_open, heavy_hitters"),
        policy("books: always -> accounting", ON, selected=9),
    ]


SAID = {
    "flood": Said(1930, 300, ON, 0.03, selected=800),
    "syn": Said(0.895, 0.9, error=0.02, certain=False),
    "books": Said(state=ON),
}


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40)])
async def test_it_fits_and_says_what_is_most_important(width: int, height: int) -> None:
    async with console(*policies(), width=width, height=height) as c:
        assert "no window yet" in c.lines[1]
        traffic = Traffic(tcp=6000, udp=3000, icmp=1, other=999, flows=1930)
        await c.play(SAID, traffic)
        for words in ("pkt/s 10.0 k", "80.0 Mbit/s", "flows 1.93 k", "1.87k..1.99k", "≤2.00 k"):
            assert words in c.lines[1], words
        for words in ("█ TCP 60.0 %", "▓ UDP 30.0 %", "▒ ICMP <0.1 %", "░ other 10.0 %"):
            assert words in c.lines[2], words
        for words in ("State", "Value", "Threshold", "Of threshold"):
            assert words in c.lines[3], words
        assert c.lines[4].split()[0] == "flood"
        for words in ("active ", "1.93 k", "300", "█"):
            assert words in c.lines[4], words
        assert "0.90 ?" in c.lines[5]
        assert "policies 2 of 3 active" in c.strip
        for words in ("Application", "Packets", "ns/packet", "Woken by"):
            assert words in c.lines[7], words
        assert c.lines[8].split()[:5] == ["accounting", "active", "1.00", "k", "50.0"]
        assert c.lines[9].split()[:6] == ["dns", "idle", "0", "43.0", "no", "policy"]
        assert "flood, syn" in c.text
        wide = width > 100
        assert ("Last 10 min" in c.lines[3] and "heavy_hitters" in c.lines[4]) == wide
        for word in ("Detail", "o On/off", "a Add", "s Sort", "space Pause", "? Keys", "q Quit"):
            assert word in c.lines[-1], word
        digits = " 1 Overview 2 Paths 3 Flows 5 Programs 6 Events " if wide else " 1-6 Screens "
        assert digits in c.lines[-1]
        await c.press("enter")
        c.plane.publish(c.monitor.transition("flood", ARMED, ON, f"flows 1.9 k{NASTY}", traffic))
        await c.becomes(lambda: "armed -> active" in c.below)
        for words in (
            "flood, active since", "flows > 500", "flows < 300", "hold 5.0 s, cool-down 10.0 s",
            "heavy_hitters, trace on udp", "1.93 k against 300: does not hold", "1.87k to 1.99k",
            "123 k packets, 800 in last", "flows 1.9 k·[31m ·", "10.0 k packets, 9.54 MiB",
            "value 1.93 k",
        ):  # fmt: skip
            assert words in c.below, words
        assert ("Application" in c.text) == wide
        await c.press("j")
        assert "syn, armed since" in c.below
        assert "which reaches over it" in c.below
        await c.press("escape", "question_mark")
        assert "The verdict is not sure" in c.text
        assert "esc closes this" in c.text


PORTS = Distinct(3, (TopShare("tcp:80", 0.5), TopShare("tcp:81", 0.3), TopShare("tcp:82", 0.2)))
WHO = Finding(
    "192.0.2.7 (100 %) -> 10.0.0.1 (100 %), 3 ports by TCP SYN; 1,998 packets",
    "proto:tcp src:192.0.2.7", 1998, ports=PORTS,
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("screen", "width", "height"), [("4", 80, 24), ("6", 120, 40)])
async def test_an_alarm_says_who_and_keys_lead_to_the_culprit(
    screen: str, width: int, height: int
) -> None:
    flood = replace(policy(FLOOD, ON), finding=WHO)
    async with console(policy("calm: operator -> dns"), flood, width=width, height=height) as c:
        await c.play({"calm": Said(), "flood": SAID["flood"]})
        c.plane.publish(c.monitor.transition("flood", ARMED, ON, "flows 1.9 k", finding=WHO))
        told = f"flood: {WHO.text}; fired: flows 1.9 k"
        c.plane.publish(Event.now("warning", "monitor", told))
        await c.press("1")
        await c.becomes(lambda: "flood: 192.0.2.7 (100 %) -> 10.0.0.1" in c.text)
        await c.press(screen)
        if screen == "4":
            # Active policies come first.
            assert c.listed == ["flood", "calm"]
            await c.press("g", "enter")
            for words in ("Who", "192.0.2.7 (100 %)", "tcp:80 50.0 %", WHO.filter):
                assert words in c.below, words
        else:
            # A tall screen shows the detail without a key.
            assert "flood: 192.0.2.7 (100 %)" in c.text
        assert "f flows, T trace, C capture" in c.text
        if screen == "4":
            await c.press("T")
            assert ["this host answers none" in each for each in c.complaints] == [True]
        await c.press("C")
        assert c.app.screen.query_one(PromptInput).value == WHO.filter
        await c.press("escape", "f")
        await c.becomes(lambda: c.app.current_mode == "flows")
        await c.becomes(lambda: WHO.filter in c.strip)
        if screen == "6":
            asked, answer = flow(7, 8), flow(7, 8)
            asked["source"][0, :4] = answer["destination"][0, :4] = (192, 0, 2, 7)
            answer["source"], answer["direction"] = asked["destination"], FlowDirection.EGRESS
            answer["source_port"] = asked["destination_port"]
            answer["destination_port"] = asked["source_port"]
            await c.feed(asked, answer)
            await c.press("6", "T")
            await c.asks(("trace", "192.0.2.7 (6, 443, 40007)"))


async def test_values_have_units_and_the_chart_says_which_comparison() -> None:
    said = Said(1e8, 1.25e8, unit="bit/s", comparison="rate(bytes) > 1Gbit/s")
    shares = replace(said, value=0.9, threshold=0.8, unit="%", comparison="udp / all > 80%")
    async with console(policy("busy: rate(bytes) > 1Gbit/s and flows > 2 -> dns")) as c:
        await c.play({"busy": shares})
        await c.play({"busy": said})
        for words in ("800 Mbit/s", "1.00 Gbit/s"):
            assert words in c.lines[4], words
        await c.press("enter")
        assert "800 Mbit/s against 1.00 Gbit/s" in c.below
        assert "rate(bytes) > 1Gbit/s" in c.below
        await c.play({"busy": shares})
        assert "90.0 %" in c.lines[4]
        assert "udp / all > 80%" in c.below


async def test_no_monitor_and_no_policy_say_how_to_get_one() -> None:
    async with console(runs=False) as c:
        assert "no monitor runs" in c.text
        assert "probedeck run -i IFACE --policies shipped" in c.text
        assert "a adds policies, which start it here" in c.text
        assert "Application" not in c.text
        await c.press("o", "x", "e", "enter", "s")
        assert c.complaints == ["there is no policy here"] * 3
        c.plane.monitor_info = monitor(input=Input.TELEMETRY)
        await c.press("3", "4")
        await c.becomes(lambda: "there is no policy" in c.text)
        assert "Records" in c.text
        c.plane.read_only = "it was started so"
        await c.press("3", "4")
        assert "a adds one" not in c.text
        for key in ("a", "e", "o", "x"):
            await c.press(key)
        assert c.complaints[-4:] == [
            f"trigger.{name} is refused: it was started so"
            for name in ("add", "change", "toggle", "remove")
        ]
        assert not c.plane.asked


async def test_policies_are_activated_added_changed_and_removed_by_key() -> None:
    async with console(*policies()) as c:
        await c.press("o")
        await c.asks(("deactivate_policy", "flood"))
        await c.becomes(lambda: "flood is armed" in c.complaints)
        await c.press("j", "o")
        await c.asks(("activate_policy", "syn"))
        await c.becomes(lambda: "forced" in c.lines[4])
        await c.press("e")
        assert c.app.screen.query_one(PromptInput).value == policies()[1].policy.to_short()
        changed = "syn: flows > 7 -> dns"
        await c.put(changed)
        await c.asks(("set_policy", changed))
        await c.becomes(lambda: not c.app.screen.query_one(PromptInput).has_focus)
        await c.press("a")
        await c.type("x")
        await c.put("scan: operator -> port_scan")
        await c.asks(("set_policy", "scan: operator -> port_scan"))
        await c.becomes(lambda: c.listed == ["flood", "syn", "books", "scan"])
        await c.press("x")
        assert c.complaints == ["x again removes syn"]
        await c.press("j", "k", "x")
        assert c.complaints == ["x again removes syn"]
        await c.press("j", "x")
        assert not c.plane.asked
        await c.press("x")
        await c.asks(("remove_policy", "books"))
        await c.becomes(lambda: c.listed == ["flood", "syn", "scan"])
        assert "removed books: always -> accounting" in c.complaints
        c.plane.refusal = UsageError("the kernel has no room")
        await c.press("o")
        await c.becomes(lambda: "the kernel has no room" in c.complaints)


async def test_what_is_wrong_is_marked_where_it_is_and_mended_there() -> None:
    async with console(*policies(), width=80, height=24) as c:
        text = "new: flows >> 500 and udp_packets / packets > 20% hold 5s -> heavy_hitters on udp"
        await c.press("a")
        await c.put(text)
        await c.becomes(lambda: c.mistake.has_class("open"))
        answer = c.app.screen.query_one(PromptInput)
        assert answer.value == text
        assert answer.has_focus
        mark = next(n for n, row in enumerate(c.lines) if row.strip() == MARK)
        assert "'>' where a metric" in c.lines[mark - 2] + c.lines[mark - 1]
        assert c.lines[mark + 1][c.lines[mark].index(MARK) :].startswith("> 500")
        await c.press("delete")
        assert not c.mistake.has_class("open")
        assert answer.value == text.replace(">>", ">")
        # An error that only the plane can find is marked too, though the line has scrolled.
        c.plane.refusal = UsageError(
            "policy 'new': run: there is no application 'heavy_hitters'", hint="there are dns"
        )
        await c.press("enter")
        await c.becomes(lambda: c.mistake.has_class("open"))
        mark = next(n for n, row in enumerate(c.lines) if row.strip() == MARK)
        assert c.lines[mark + 1][c.lines[mark].index(MARK) :].startswith("heavy_hitters")
        await c.press("escape")
        assert not c.mistake.has_class("open")
        # A change that takes long keeps nobody waiting.
        c.plane.gate.clear()
        c.plane.refusal = None
        await c.press("a")
        await c.put("late: always -> dns")
        await c.becomes(lambda: "setting the policy" in c.strip)
        await c.press("escape", "o")
        assert c.complaints[-1] == "setting the policy is not done yet"
        c.plane.gate.set()
        await c.becomes(lambda: "late" in c.listed)


async def test_an_applications_tables_are_turned_over(monkeypatch: pytest.MonkeyPatch) -> None:
    first = TopTable("largest", ("flow", "bytes"), (("10.0.0.1", 5), (f"10.0.0.2{NASTY}", 3)))
    second = TopTable("by port", ("port", "packets"), ((53, 7),))
    asked: list[object] = []

    def tables(name: str, *rest: object) -> tuple[TopTable, ...]:
        asked.append(name)
        return (first, second)

    async with console(*policies(), width=80, height=24) as c:
        await c.press("tab", "enter")
        assert "an application that is idle measures nothing" in c.below
        assert "n next table" not in c.below
        monkeypatch.setattr(views, "tables", tables)
        monkeypatch.setattr(views, "findings", lambda *_: (f"10.0.0.1 is a lot{NASTY}",))
        await c.press("j")
        assert asked[-1] == "dns"
        for words in ("dns", "1/2 largest", "idle", "43.0 ns/packet", "10.0.0.2·[31m", "a lot·"):
            assert words in c.below, words
        assert "n next table" in c.below
        assert "q Quit" in c.lines[-1]
        await c.press("n")
        assert "2/2 by port" in c.below
        assert "53" in c.below
        await c.press("n", "p", "p")
        assert "1/2 largest" in c.below
        assert NOT_COUNTED not in c.below
        held = replace(window(np.empty(0, "u8")), probe="dns", schema=TableSchema(TableKind.HASH))
        c.plane.publish(replace(held, cut=True))
        await c.becomes(lambda: NOT_COUNTED in c.below)
        await c.press("escape")
        assert not c.below


async def test_a_wide_screen_shows_the_condition_and_all_that_runs() -> None:
    async with console(*policies(), width=180) as c:
        await c.play(SAID)
        assert "Condition" in c.lines[3]
        for words in ("flows > 500", "heavy_hitters, trace", "1.87k..1.99k"):
            assert words in c.lines[4], words


async def test_bars_are_told_apart_without_colours_and_a_paused_screen_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with console(*policies(), width=200) as c:
        await c.play(SAID)
        strips = c.app.screen._compositor.render_strips()

        def ground(y: int, bar: str) -> object:
            """Background of the line's last bar."""
            return next(
                s.style.bgcolor for s in reversed(list(strips[y])) if s.style and bar in s.text
            )

        # Active windows have another background, under the cursor too.
        assert c.policies.cursor_index == 0
        cursor = next(s.style.bgcolor for s in strips[4] if s.style and "flood" in s.text)
        assert ground(4, "█") not in (ground(5, "▄"), cursor)
        colours = {s.style.color for strip in strips for s in strip if s.style and s.style.color}
        assert all(colour.triplet and len(set(colour.triplet)) == 1 for colour in colours)
        # A state that has changed is asked about at once, but not again and again.
        asked: list[MonitorInfo | None] = []

        def asks() -> MonitorInfo | None:
            asked.append(c.plane.monitor_info)
            return asked[-1]

        monkeypatch.setattr(c.plane, "monitor", asks)
        await c.play({**SAID, "syn": Said(state=ON)})
        await c.becomes(lambda: bool(asked))
        await c.pilot.pause(0.2)
        assert len(asked) <= 3
        await c.press("j")
        chosen = c.policies.cursor_key
        await c.app.action_command("trigger.sort state")
        assert c.listed == ["flood", "books", "syn"]
        assert c.policies.cursor_key == chosen != "flood"
        await c.press("space")
        frozen = c.lines[1:]
        assert c.plane.monitor_info is not None
        c.plane.monitor_info = replace(c.plane.monitor_info, policies=())
        await c.play({"flood": Said(9e9, 1)}, Traffic(flows=7))
        c.app.screen._poll()  # type: ignore[attr-defined]
        await c.still()
        assert c.lines[1:] == frozen
        await c.press("space")
        await c.becomes(lambda: "there is no policy" in c.text)
