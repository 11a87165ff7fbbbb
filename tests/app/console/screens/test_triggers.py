"""Screen 4 as an operator sees it (S2.5, S2.11-S2.13, S2.23): policies, applications, changes."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest

from app.console.live.monitor import LiveMonitor, MonitorView
from app.console.prompt.error_line import MARK, ErrorLine
from app.console.prompt.prompt import PromptInput
from app.console.screens.triggers.columns import band_text, state_text
from app.console.screens.triggers.detail import TriggerDetail, top_columns, top_rows
from app.console.screens.triggers.model import PolicyView, Triggers, place_of
from app.console.screens.triggers.rows import mix_bar, policy_columns, policy_rows
from bpf.errors import UsageError
from probes.monitor.applications import views
from probes.monitor.applications.top import TopTable
from probes.monitor.info import MonitorInfo, PolicyInfo
from probes.monitor.options import Input
from probes.monitor.policy import Policy
from probes.monitor.state import PolicyState
from tests.app.console.fake import Desk, desk
from tests.app.console.fake_plane import FakePlane
from tests.app.console.fake_triggers import FakeMonitor, Said, Traffic, monitor, policy
from widgets.sparkline import NOTHING
from widgets.table.table import VirtualTable
from widgets.tones import Tone

FLOOD = "flood: flows > 500 until flows < 300 hold 5s cooldown 10s -> heavy_hitters, trace on udp"
NASTY = "\x1b[31m \u202e"
ON, ARMED, OFF = PolicyState.ACTIVE, PolicyState.ARMED, PolicyState.OFF


def watched(info: MonitorInfo | None, *windows: dict[str, Said], interval: float = 1.0) -> Triggers:
    """A model that was given so many windows."""
    live, source = LiveMonitor(), FakeMonitor(interval)
    for says in windows:
        for table in source.window(says):
            live.add(table)
    return Triggers(live.view(), info)


def line(one: PolicyView) -> str:
    cells = policy_rows([one]).cells(0)[6]
    assert not isinstance(cells, str)
    return "".join(text for text, _ in cells)


def tones(one: PolicyView) -> list[Tone]:
    cells = policy_rows([one]).cells(0)[6]
    assert not isinstance(cells, str)
    return [tone for text, tone in cells for _ in text]


# The model


def test_the_time_line_is_of_the_value_in_thresholds_and_shows_what_was_active() -> None:
    """Two windows are a cell, which shows the higher one: the threshold is half a bar."""
    says = [(0, ARMED), (250, ARMED), (500, ARMED), (100, ARMED), (501, ON), (400, ON), (9e9, ON)]
    windows = [{"flood": Said(value, 500, state)} for value, state in says]
    one = watched(monitor(policy(FLOOD)), *windows).statuses(6)[0]
    # Windows are numbered from 1, so that the first cell has one.
    assert line(one) == f"{NOTHING * 2}▁▄▅█"
    assert tones(one) == [Tone.ACCENT] * 4 + [Tone.ACTIVE] * 2
    assert one.line.values[2:].tolist() == [0, 1.0, 501 / 500, 9e9 / 500]


def test_cells_move_together_and_only_when_one_is_over() -> None:
    says = [{"a": Said(n, 10), "b": Said(10 - n, 10)} for n in range(10)]
    info = monitor(policy("a: flows > 10 -> dns"), policy("b: flows > 9 -> dns"))
    before, same, after = (
        [line(one) for one in watched(info, *says[:n]).statuses(8)] for n in (8, 9, 10)
    )
    assert [text[:-1] for text in same] == [text[:-1] for text in before]
    assert [text[:-1] for text in after] == [text[1:] for text in same]


@pytest.mark.parametrize(
    ("interval", "cells", "shown"), [(10.0, 3, [3, 4, 5]), (0.5, 2, [3, 5]), (4.0, 2, [4, 5])]
)
def test_a_cell_is_two_seconds_or_a_window(interval: float, cells: int, shown: list[float]) -> None:
    windows = [{"a": Said(n, 1)} for n in range(1, 6)]
    model = watched(monitor(policy("a: flows > 1 -> dns"), interval=interval), *windows)
    assert model.statuses(cells)[0].line.values.tolist() == shown
    assert model.span(cells) == cells * max(2.0, interval)


def test_values_without_a_ratio_and_policies_without_a_value() -> None:
    says = {"zero": Said(3, 0), "below": Said(-1, 0), "always": Said(state=ON), "gone": Said(1, 1)}
    shorts = ("zero: flows > 0 -> dns", "below: flows > 0 -> dns", "always: always -> dns")
    model = watched(monitor(*map(policy, shorts), policy("new: operator -> dns")), says)
    zero, below, always, new = model.statuses(1)
    assert [line(one) for one in (zero, below, always, new)] == ["█", "▁", NOTHING, NOTHING]
    assert tones(always) == [Tone.ACTIVE]
    assert tones(new) == [Tone.ACCENT]
    assert policy_rows([new]).cells(0)[3] == "-"
    assert watched(None, says).statuses(5) == []


def test_a_monitor_that_was_started_anew_has_a_new_past() -> None:
    live = LiveMonitor()
    for source, count in ((FakeMonitor(), 5), (FakeMonitor(), 2)):
        for number in range(count):
            for table in source.window({"a": Said(number, 1)}):
                live.add(table)
    view = live.view()
    assert [len(view.metrics), len(view.policies)] == [2, 2]
    assert np.isfinite(Triggers(view, monitor()).flows(4)).sum() == 2


def test_what_is_not_sure_is_marked_and_exact_values_have_no_band() -> None:
    says = {
        "sure": Said(1234, 500, error=0.05), "unsure": Said(510, 500, error=0.05, certain=False),
        "exact": Said(600, 500),
    }  # fmt: skip
    found = [policy(f"{name}: flows > 500 -> dns") for name in says]
    statuses = watched(monitor(*found), says).statuses(4)
    cells = [policy_rows([one]).cells(0) for one in statuses]
    assert [row[3] for row in cells] == ["1.23 k", "510 ?", "600"]
    assert [row[4] for row in cells] == ["1.17k..1.30k", "484..536", ""]
    assert band_text(statuses[1], " to ") == "484 to 536"


@pytest.mark.parametrize(
    ("state", "changes", "text"),
    [
        (ARMED, {}, "armed"),
        (ON, {"ago": 12}, "active 12 s"),
        (ON, {"ago": 3700, "forced": True}, "forced 1h01m"),
        (PolicyState.HOLD, {"left": 2.3}, "hold -3 s"),
        (PolicyState.COOLDOWN, {"left": 8, "forced": True}, "cool-down -8 s"),
        (PolicyState.COOLDOWN, {"left": -1}, "cool-down -0 s"),
        (OFF, {}, "off"),
    ],
)
def test_a_state_is_told_with_its_time(
    state: PolicyState, changes: dict[str, float], text: str
) -> None:
    now = 1_700_000_000 * 10**9
    info = policy(FLOOD, state, now_ns=now, **changes)  # type: ignore[arg-type]
    assert state_text(info, now) == text
    assert state_text(info, 0) == text.split(" ")[0]


def test_policies_are_sorted_and_else_stay_as_they_were_given() -> None:
    says = {"b": Said(1, 10), "c": Said(9, 10, ON), "a": Said(state=OFF)}
    shorts = ("b: flows > 10 -> dns", "c: flows > 9 -> dns", "a: operator -> dns")
    infos = [
        policy(short, said.state, selected=n)
        for n, (short, said) in enumerate(zip(shorts, says.values(), strict=True))
    ]
    model = watched(monitor(*infos), says)

    rows = policy_rows(model.statuses(4))
    places = {column.id: n for n, column in enumerate(policy_columns((), 0, 4))}

    def order(sort: str, *, descending: bool = False) -> str:
        found = rows.ordered(places[sort], descending=descending)
        return "".join(found.values(places["policy"]))  # type: ignore[arg-type]

    assert "".join(row.cells[0] for row in rows.content) == "bca"  # type: ignore[misc]
    assert order("state") == "cba"
    assert order("value", descending=True) == "cba"
    assert order("selected", descending=True) == "acb"
    assert order("policy") == "abc"


def test_applications_are_run_by_name_or_by_profile() -> None:
    names = ("one: always -> dns", "two: always -> web, trace", "three: always -> half_open")
    model = Triggers(info=monitor(*map(policy, names), profiles={"web": ("dns", "accounting")}))
    assert model.runs("dns") == ["one", "two"]
    assert model.runs("trace") == ["two"]
    assert model.runs("port_scan") == []


def test_it_is_noticed_that_a_state_has_changed_since_it_was_asked_for() -> None:
    info = monitor(policy(FLOOD))
    assert not watched(info, {"flood": Said(1, 2)}).outdated
    assert watched(info, {"flood": Said(1, 2)}, {"flood": Said(3, 2, ON)}).outdated
    assert not watched(info, {"other": Said(3, 2, ON)}).outdated
    assert not Triggers(MonitorView(), info).outdated


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("flood:  flows >> 500 -> dns", "> 500"),
        ("f: flows > 5 until  flows < -> dns", " -> dns"),
        ("f: flowz > 5 -> dns", "flowz"),
        ("f: flows > 5 hold 5x -> dns", "5x"),
        ("f: always -> dns on tcp or !udp", "!udp"),
        ("flood flows > 5", None),
    ],
)
def test_a_mistake_in_a_policy_has_its_place(text: str, at: str | None) -> None:
    with pytest.raises(UsageError) as raised:
        Policy.parse_short(text)
    place = place_of(str(raised.value), text)
    if at is None:
        assert place is None
    else:
        assert place is not None
        assert text[place:].startswith(at), text[place:]


def test_a_mistake_that_the_plane_finds_has_its_place_too() -> None:
    words = "policy 'dns': run: there is no application 'dns'; did you mean dns2?"
    assert place_of(words, "dns: always -> dns") == 15
    assert place_of("there is no monitor", "dns: always -> dns") is None


def test_a_mix_fills_its_bar_and_whatever_there_is_is_seen() -> None:
    assert mix_bar([0.5, 0.5, 0, 0], 8) == "████▓▓▓▓"
    assert mix_bar([0.999, 0.0005, 0.0004, 0.0001], 8) == "█████▓▒░"
    assert mix_bar([math.nan] * 4, 8) == " " * 8
    assert all(len(mix_bar([a / 9, 1 - a / 9, 0, 0], 11)) == 11 for a in range(10))


def test_the_tables_of_an_application_keep_whole_numbers_whole() -> None:
    table = TopTable("top", ("port", "name", "bit/s"), ((8443, f"x{NASTY}", 1.5e6), (53, "y", 2.0)))
    assert [c.align for c in top_columns(table)] == ["right", "left", "right"]
    assert [c.title for c in top_columns(table)] == ["Port", "Name", "bit/s"]
    assert top_rows(table).cells(0) == ("8443", f"x{NASTY}", "1.50 M")


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
        end = time.monotonic() + 5
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
        for words in ("State", "Value", "Threshold", "▄ threshold"):
            assert words in c.lines[3], words
        assert c.lines[4].split()[0] == "flood"
        for words in ("active ", "1.93 k", "300", "█"):
            assert words in c.lines[4], words
        assert "0.90 ?" in c.lines[5]
        assert "policies 2 of 3 active" in c.strip
        for words in ("Application", "Packets", "ns/packet", "Run by"):
            assert words in c.lines[7], words
        assert c.lines[8].split()[:5] == ["accounting", "active", "1.00", "k", "50.0"]
        assert c.lines[9].split()[:6] == ["dns", "idle", "0", "43.0", "no", "policy"]
        assert "flood, syn" in c.text
        wide = width > 100
        assert ("Runs" in c.lines[3] and "1.87k..1.99k" in c.lines[4]) == wide
        for word in ("Detail", "o On/off", "a Add", "s Sort", "space Pause", "? Keys", "q Quit"):
            assert word in c.lines[-1], word
        digits = " 1 Overview 2 Paths 3 Flows 5 Programs 6 Events " if wide else " 1 2 3 5 6 "
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


async def test_no_monitor_and_no_policy_say_how_to_get_one() -> None:
    async with console(runs=False) as c:
        assert "no monitor runs" in c.text
        assert "probedeck run -i IFACE --policy 'flood: flows > 500 -> heavy_hitters'" in c.text
        assert "a adds a policy" in c.text
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
        await c.becomes(lambda: "forced" in c.lines[5])
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
        assert "column 8" in c.lines[mark - 2] + c.lines[mark - 1]
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
        await c.press("escape")
        assert not c.below


async def test_a_wide_screen_shows_the_condition_and_all_that_runs() -> None:
    async with console(*policies(), width=160) as c:
        await c.play(SAID)
        assert "Condition" in c.lines[3]
        assert "flows > 500" in c.lines[4]
        assert "heavy_hitters, trace" in c.lines[4]


async def test_bars_are_told_apart_without_colours_and_a_paused_screen_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with console(*policies()) as c:
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
