"""Flows over many windows, against a plain dictionary."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from app.console.live import flows as live
from app.console.live.flows import LIVE, Focus, LiveFlows
from bpf.arrays import Array, Row
from probes.flow.records import FLOW, words_of
from probes.snapshot import Rest
from tests.support.console.feed import Flows, window

SECOND = 10**9
KEY = ("source", "destination", "source_port", "destination_port", "protocol", "version",
       "direction")  # fmt: skip


def identity(row: Row[LIVE]) -> tuple[object, ...]:
    return tuple(row[name].tobytes() for name in KEY)


def random_rows(random: np.random.Generator, flows: Array, end_ns: int, step_ns: int) -> Array:
    """A window of some of the flows."""
    rows: Array = flows[random.random(len(flows)) < random.choice([0.0, 0.2, 0.9])]
    rows["packets"] = random.integers(1, 1000, len(rows))
    rows["bytes"] = random.integers(60, 1 << 40, len(rows))
    rows["tcp_flags"] = random.integers(0, 256, len(rows))
    rows["last_ns"] = end_ns - random.integers(1, step_ns, len(rows))
    rows["first_ns"] = end_ns - step_ns
    return rows


class Oracle:
    """The same, one flow at a time."""

    def __init__(self) -> None:
        self.flows: dict[tuple[object, ...], dict[str, float]] = {}
        self.rate_start = 0
        self.rated = False

    def add(self, rows: Array, start_ns: int, end_ns: int) -> None:
        for row in rows:
            flow = self.flows.setdefault(
                identity(row),
                {"packets": 0, "bytes": 0, "flags": 0, "first": int(row["first_ns"]), "last": 0,
                 "new_packets": 0, "new_bytes": 0, "bit_rate": 0.0, "packet_rate": 0.0},
            )  # fmt: skip
            for total in ("packets", "bytes"):
                flow[total] += int(row[total])
                flow[f"new_{total}"] += int(row[total])
            flow["flags"] = int(flow["flags"]) | int(row["tcp_flags"])
            flow["last"] = max(flow["last"], int(row["last_ns"]))
        self.rate_start = self.rate_start or start_ns
        elapsed = end_ns - self.rate_start
        for flow in self.flows.values():
            # The first window has rates, however short it is.
            if elapsed >= SECOND // 2 or not self.rated:
                flow["bit_rate"] = flow["new_bytes"] * 8e9 / elapsed
                flow["packet_rate"] = flow["new_packets"] * 1e9 / elapsed
            if elapsed >= SECOND // 2:
                flow["new_bytes"] = flow["new_packets"] = 0
        if elapsed >= SECOND // 2:
            self.rate_start, self.rated = end_ns, True
        self.flows = {k: f for k, f in self.flows.items() if f["last"] > end_ns - 60 * SECOND}


@pytest.mark.parametrize("seed", range(8))
def test_totals_rates_and_times_are_those_of_a_dictionary(seed: int) -> None:
    random = np.random.default_rng(seed)
    flows, oracle, lives = Flows(60, seed=seed).next(0), Oracle(), LiveFlows()
    end_ns = 10 * SECOND
    for number in range(60):
        step_ns = int(random.choice([SECOND // 10, SECOND, 20 * SECOND]))
        start_ns, end_ns = end_ns, end_ns + step_ns
        rows = random_rows(random, flows, end_ns, step_ns)
        oracle.add(rows, start_ns, end_ns)
        lives.add(window(rows, number, seconds=step_ns / SECOND, end_ns=end_ns))
        view = lives.view()
        assert view.now_ns == end_ns
        assert (np.diff(view.rows["id"].astype(object)) > 0).all()
        assert {identity(row) for row in view.rows} == set(oracle.flows)
        for row in view.rows:
            expected = oracle.flows[identity(row)]
            assert int(row["packets"]) == expected["packets"]
            assert int(row["bytes"]) == expected["bytes"]
            assert int(row["tcp_flags"]) == expected["flags"]
            assert int(row["first_ns"]) == expected["first"]
            assert int(row["last_ns"]) == expected["last"]
            assert row["bit_rate"] == pytest.approx(expected["bit_rate"])
            assert row["packet_rate"] == pytest.approx(expected["packet_rate"])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("late", [False, True])
def test_windows_added_at_once_give_the_view_of_one_after_the_other(seed: int, late: bool) -> None:
    random = np.random.default_rng(seed)
    flows, lives, end_ns = Flows(60, seed=seed).next(0), (LiveFlows(), LiveFlows()), 10 * SECOND
    for each in lives:
        each.begin(late=late)
    for number in range(60):
        step_ns = int(random.choice([SECOND // 2, SECOND, 5 * SECOND, 20 * SECOND, 59 * SECOND]))
        end_ns += step_ns
        rows = random_rows(random, flows, end_ns, step_ns)
        item = window(rows, number, seconds=step_ns / SECOND, end_ns=end_ns)
        if not seed:
            item = replace(item, cut=bool(random.random() < 0.1))
        for each in lives:
            each.add(item)
        lives[0].view()
    one, at_once = (each.view() for each in lives)
    assert one.rows.tobytes() == at_once.rows.tobytes()
    others = [field.name for field in fields(one) if field.name != "rows"]
    assert [getattr(one, name) for name in others] == [getattr(at_once, name) for name in others]


@pytest.mark.parametrize("step_s", [0.5, 1, 5, 20])
def test_lines_have_the_rates_of_the_last_minute(step_s: float) -> None:
    random, flows, lives = np.random.default_rng(3), Flows(60).next(0), LiveFlows()
    sent: list[tuple[int, Array]] = []
    for number in range(1, round(80 / step_s) + 1):
        end_ns = round(number * step_s * SECOND)
        rows = random_rows(random, flows, end_ns, round(step_s * SECOND))
        lives.add(window(rows, number, seconds=step_s, end_ns=end_ns))
        sent.append((end_ns, rows))
    view = lives.view()
    is_of = view.rows["destination_port"] == 443
    lines = np.array([view.line(np.flatnonzero(is_of == wanted)) for wanted in (False, True)])
    # Windows longer than a cell have one cell each.
    cell = max(step_s, 5)
    cells = math.ceil(60 / cell)
    assert (~np.isnan(lines)).sum(axis=1).tolist() == [cells] * 2
    for line, is_https in zip(lines, (False, True), strict=True):
        for back, rate in enumerate(line[::-1][:cells].tolist()):
            until = 80 - back * cell
            total = sum(
                int(rows["bytes"][(rows["destination_port"] == 443) == is_https].sum())
                for end_ns, rows in sent
                if until - cell < end_ns / SECOND <= until
            )
            assert rate == pytest.approx(total * 8 / cell, rel=1e-5)


def test_the_newest_cell_grows_and_older_views_keep_theirs() -> None:
    flows, lives, views = Flows(10), LiveFlows(), []
    for second in range(1, 8):
        lives.add(window(flows.next(second * SECOND), second, end_ns=second * SECOND))
        views.append(lives.view())
    assert [view.seconds[-2:] for view in views[3:]] == [(0, 4), (0, 5), (5, 1), (5, 2)]
    last = views[-1].rows
    assert (views[4].rows["history"][:, -1] == last["history"][:, -2]).all()
    assert (last["history"].sum(axis=1) == last["bytes"].astype("f4")).all()


def test_a_short_first_window_has_rates() -> None:
    rows, lives = Flows(5).next(0), LiveFlows()
    lives.add(window(rows, seconds=0.1, end_ns=SECOND + SECOND // 10))
    found = lives.view().rows
    assert sorted(found["bit_rate"]) == pytest.approx(sorted(rows["bytes"] * 80.0))
    lives.add(window(rows, 2, seconds=0.9, end_ns=2 * SECOND))
    assert sorted(lives.view().rows["bit_rate"]) == pytest.approx(sorted(rows["bytes"] * 16.0))


def test_a_flow_keeps_its_id_and_an_old_view_its_numbers() -> None:
    flows, lives = Flows(100), LiveFlows()
    lives.add(window(flows.next(SECOND), end_ns=SECOND))
    before = lives.view()
    copy = before.rows.copy()
    ids = {identity(row): int(row["id"]) for row in before.rows}
    lives.add(window(flows.next(2 * SECOND), 2, end_ns=2 * SECOND))
    assert (before.rows == copy).all()
    assert {identity(row): int(row["id"]) for row in lives.view().rows} == ids


def test_of_too_many_new_flows_the_largest_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_NEW_FLOWS", 30)
    rows, lives = Flows(100).next(SECOND), LiveFlows()
    lives.add(window(rows, end_ns=SECOND))
    view = lives.view()
    assert sorted(view.rows["bytes"]) == sorted(rows["bytes"])[-30:]
    assert view.left_out == 70
    lives.add(window(rows[:10].copy(), 2, end_ns=2 * SECOND))
    assert lives.view().left_out == 0


def test_no_flow_that_is_here_misses_a_packet_however_many_are_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a flood of large new flows a small one that was seen before counts on."""
    monkeypatch.setattr(live, "MAX_NEW_FLOWS", 30)
    ping, flood, lives = Flows(1, seed=5).next(0), Flows(200, seed=7).next(0), LiveFlows()
    ping["protocol"], ping["packets"], ping["bytes"] = 1, 1, 98
    flood["bytes"] = 1 << 20
    for number in range(1, 6):
        end_ns = number * SECOND
        rows = np.concatenate((ping, flood[:0] if number == 1 else flood))
        rows["last_ns"] = end_ns - 1
        flood["source_port"] += 1
        lives.add(window(rows, number, end_ns=end_ns))
    view = lives.view()
    (row,) = view.rows[view.rows["protocol"] == 1]
    assert (row["packets"], row["bytes"], row["at_least"]) == (5, 490, 0)
    assert row["last_ns"] == end_ns - 1
    assert view.left_out == 170


def test_flows_in_focus_are_taken_before_larger_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """The focus sees the whole window, also columns that only live flows have."""
    monkeypatch.setattr(live, "MAX_NEW_FLOWS", 30)
    lives, rows = LiveFlows(), Flows(100).next(SECOND)
    small = np.argsort(rows["bytes"])[:20]
    rows["destination_port"][small] = 22
    seen: list[int] = []

    def passes(found: Array, now_ns: int) -> Array:
        assert (found["bit_rate"] == found["bytes"] * 8).all()
        assert now_ns == SECOND
        seen.append(len(found))
        mask: Array = found["destination_port"] == 22
        return mask

    lives.focus = Focus(passes)
    lives.add(window(rows, end_ns=SECOND))
    found = lives.view().rows
    assert seen == [100]
    assert (found["destination_port"] == 22).sum() == (rows["destination_port"] == 22).sum() >= 20
    assert len(found) == 30
    assert not found["bit_rate"].any() or (found["bit_rate"] == found["bytes"] * 8).all()


def test_totals_of_a_flow_that_may_have_been_left_out_are_lower_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For as long as a flow without a packet would have been kept."""
    monkeypatch.setattr(live, "MAX_NEW_FLOWS", 30)
    lives, rows = LiveFlows(), Flows(200).next(0)

    def add(part: Array, second: int) -> Array:
        part = part.copy()
        part["last_ns"] = second * SECOND - 1
        lives.add(window(part, second, end_ns=second * SECOND))
        return lives.view().rows

    assert not add(rows[:30], 1)["at_least"].any()
    assert not add(rows[:100], 2)["at_least"].any()
    late = add(rows[100:110], 61)
    assert set(late["at_least"].tolist()) == {0, 1}
    exact = add(rows[110:120], 62)
    assert not exact["at_least"][exact["last_ns"] == 62 * SECOND - 1].any()
    begun_anew = add(rows[120:130], 125)
    assert len(begun_anew) == 10
    assert not begun_anew["at_least"].any()


def test_flows_in_focus_leave_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_FLOWS", 50)
    rows, lives = Flows(100).next(0), LiveFlows()
    for number, part in enumerate((rows[:30], rows[30:50], rows[50:70]), 1):
        part["last_ns"] = number * SECOND - 1
        if number == 3:
            oldest = lives.view().rows
            oldest = oldest[oldest["last_ns"] < SECOND]
            lives.focus = Focus(ids=oldest["id"][:10])
        lives.add(window(part, number, end_ns=number * SECOND))
    view = lives.view()
    assert (len(view.rows), view.left_out) == (50, 20)
    assert np.isin(oldest["id"][:10], view.rows["id"]).all()
    assert not np.isin(oldest["id"][10:], view.rows["id"]).any()


def test_of_too_many_flows_the_longest_idle_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_FLOWS", 50)
    all_rows, lives = Flows(90).next(0), LiveFlows()
    for number, part in enumerate((slice(0, 30), slice(30, 50), slice(0, 10), slice(50, 65))):
        end_ns = (number + 1) * SECOND
        rows = all_rows[part].copy()
        rows["last_ns"] = end_ns - 1
        lives.add(window(rows, number + 1, end_ns=end_ns))
    view = lives.view()
    kept = {identity(row) for row in view.rows}
    # 15 came to 50: 15 of those that were seen only in the first window went.
    assert len(view.rows) == 50
    assert view.left_out == 15
    assert {identity(row) for row in all_rows[:10]} <= kept
    assert {identity(row) for row in all_rows[30:65]} <= kept


def test_columns_begin_with_those_of_a_window() -> None:
    # Rows are copied as words, and the console compares keys so.
    for name in FLOW.names or ():
        assert LIVE.fields is not None
        assert FLOW.fields is not None
        assert LIVE.fields[name] == FLOW.fields[name]
    assert words_of(np.zeros(3, FLOW)).shape == (3, 12)


def test_views_are_whole_while_windows_come() -> None:
    flows, lives = Flows(2000), LiveFlows()
    done = threading.Event()

    def feed() -> None:
        for number in range(1, 60):
            rows = flows.next(number * SECOND)
            rows["packets"] = number
            lives.add(window(rows, number, end_ns=number * SECOND))
        done.set()

    thread = threading.Thread(target=feed)
    thread.start()
    seen = 0
    while not done.is_set():
        view = lives.view()
        if len(view.rows):
            # All flows of one moment: each has the same sum of the packets of its windows.
            last = view.now_ns // SECOND
            assert set(view.rows["packets"].tolist()) == {last * (last + 1) // 2}
            seen += 1
    thread.join()
    assert seen


@pytest.mark.parametrize(
    ("count", "windows", "limit"), [(10_000, 12, 0.015), (65_536, 8, 0.060)], ids=["busy", "flood"]
)
@pytest.mark.timing
def test_a_window_costs_the_poller_little(count: int, windows: int, limit: float) -> None:
    """About 2 ms for 10,000 known flows and 7 ms for a flood of new ones; the limits are for CI."""
    lives, times = LiveFlows(), []
    flows = Flows(count)
    for number in range(1, windows):
        end_ns = number * SECOND
        if count > live.MAX_NEW_FLOWS:
            flows = Flows(count, seed=number)
        snapshot = window(flows.next(end_ns), number, end_ns=end_ns)
        started = time.thread_time()
        lives.add(snapshot)
        times.append(time.thread_time() - started)
    assert min(times[1:]) < limit


@pytest.mark.parametrize("lacking", [{"cut": True}, {"rest": (Rest("ingress", 1, 1, 60),)}])
def test_a_flow_that_is_left_out_is_not_idle_and_has_no_rate(lacking: dict[str, Any]) -> None:
    rows, lives = Flows(2).next(0), LiveFlows()
    for second in range(1, 31):
        mine = rows[: 2 if second <= 10 else 1].copy()
        mine["first_ns"] = mine["last_ns"] = second * SECOND - 1
        made = window(mine, second, end_ns=second * SECOND)
        lives.add(replace(made, **(lacking if 10 < second <= 25 else {})))
        view = lives.view()
        assert view.cut_rates == (10 < second <= 25)
        assert view.lacks == (replace(made, **lacking).lacks if second > 10 else "")
    assert sorted(view.idle_ns(view.rows["last_ns"]).tolist()) == [1, 5 * SECOND]
    (quiet,) = np.flatnonzero(view.rows["last_ns"] == 10 * SECOND - 1)
    gaps = np.isnan(view.line(np.array([quiet])))
    # A cell has 5 s. The first six lie before the first window, and the last one is complete.
    assert gaps.tolist() == [True] * 6 + [False] * 2 + [True] * 3 + [False]
    assert not np.isnan(view.line(np.array([1 - quiet]))[6:]).any()
