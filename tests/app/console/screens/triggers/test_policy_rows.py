"""Rows of the triggers screen: time lines, states, mistakes, mixes and tables of applications."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from app.console.live.frames import MonitorView
from app.console.live.state import LiveMonitor
from app.console.screens.triggers.columns import POLICIES, band_text, state_text
from app.console.screens.triggers.detail import top_columns, top_rows
from app.console.screens.triggers.model import PolicyView, Triggers
from app.console.screens.triggers.rows import mix_bar, policy_columns, policy_rows
from probes.monitor.applications.top_table import TopTable
from probes.monitor.info import MonitorInfo
from probes.monitor.policy import Policy
from probes.monitor.state import PolicyState
from tests.app.console.fake_triggers import FakeMonitor, Said, monitor, policy
from tests.app.console.screens.triggers.policies import ARMED, FLOOD, NASTY, OFF, ON
from widgets.sparkline import NOTHING
from widgets.tones import Tone


def watched(info: MonitorInfo | None, *windows: dict[str, Said], interval: float = 1.0) -> Triggers:
    """A model that was given so many windows."""
    live, source = LiveMonitor(), FakeMonitor(interval)
    for says in windows:
        for table in source.window(says):
            live.add(table)
    return Triggers(live.view(), info)


PLACES = {column.id: place for place, column in enumerate(POLICIES.columns)}


def line(one: PolicyView, column: str = "line") -> str:
    cells = policy_rows([one]).cells(0)[PLACES[column]]
    assert not isinstance(cells, str)
    return "".join(text for text, _ in cells)


def tones(one: PolicyView) -> list[Tone]:
    cells = policy_rows([one]).cells(0)[PLACES["line"]]
    assert not isinstance(cells, str)
    return [tone for text, tone in cells for _ in text]


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
    assert policy_rows([new]).cells(0)[PLACES["value"]] == "-"
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
    assert [row[PLACES["value"]] for row in cells] == ["1.23 k", "510 ?", "600"]
    assert [row[PLACES["band"]] for row in cells] == ["1.17k..1.30k", "484..536", ""]
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

    assert "".join(str(rows.cells(at)[0]) for at in range(rows.rows)) == "bca"
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


def gauge(one: PolicyView) -> str:
    return line(one, "gauge")


def test_a_gauge_has_the_threshold_and_the_share_of_it() -> None:
    says = {name: Said(value, 500) for name, value in {"a": 250, "b": 540, "c": 9e9}.items()}
    shorts = (f"{name}: flows > 500 -> dns" for name in "abcd")
    found = watched(monitor(*map(policy, shorts)), says).statuses(1)
    assert [gauge(one) for one in found] == [
        "███▋   │   50 %", "███████│  108 %", "███████│█ >10 x", "",
    ]  # fmt: skip


RATE = "burst: rate(bytes) > 1500kbit/s -> dns"
HIGH = Said(202_500.0, 187_500.0, ON, unit="bit/s", comparison="rate(bytes) > 1500 kbit/s")
LOW = replace(HIGH, value=117_000.0, state=ARMED)


def changing(short: str, *windows: Said) -> PolicyView:
    """A policy with a transition wherever its state changes."""
    live, source = LiveMonitor(), FakeMonitor()
    before = ARMED
    for said in windows:
        for table in source.window({policy(short).policy.name: said}):
            live.add(table)
        if said.state is not before:
            name = policy(short).policy.name
            live.add(source.transition(name, before, said.state, "because"))
        before = said.state
    info = monitor(policy(short, windows[-1].state))
    return Triggers(live.view(), info).statuses(1)[0]


def activity(one: PolicyView) -> str:
    return line(one, "activity")


def test_a_band_has_the_times_at_which_a_policy_was_active() -> None:
    shown = activity(changing(RATE, *[LOW] * 45, *[HIGH] * 60, *[LOW] * 75))
    assert len(shown) == 20
    assert re.fullmatch(" {12,14}▁{1,2}█{3}▁{2,3}", shown), shown
    still_on = activity(changing(RATE, *[LOW] * 60, *[HIGH] * 60))
    assert re.fullmatch(" +▁{2,3}█{2,3}", still_on), still_on
    always = activity(changing("all: always -> dns", *[Said(state=ON)] * 90))
    assert re.fullmatch(" +█{3,4}", always), always


def test_values_and_thresholds_have_the_unit_that_was_typed() -> None:
    cells = policy_rows([changing(RATE, LOW, HIGH)]).cells(0)
    assert (cells[PLACES["value"]], cells[PLACES["threshold"]]) == ("1.62 Mbit/s", "1.50 Mbit/s")


def test_a_policy_that_flaps_gets_advice_from_its_own_history() -> None:
    flapping = changing(RATE, *[LOW, LOW, HIGH, HIGH] * 9, LOW)
    advised = "fired 9 times in 32 s; hold 10s or until rate(bytes) < 930kbit/s would calm it"
    assert flapping.advice == advised
    Policy.parse_short("burst: rate(bytes) > 1500kbit/s until rate(bytes) < 930kbit/s -> dns")
    assert changing(RATE, *[LOW, HIGH] * 3, LOW).advice == ""
    patient = changing(RATE.replace("->", "hold 10s until flows < 5 ->"), *[LOW, HIGH] * 9, LOW)
    assert patient.advice == "fired 9 times in 16 s"
