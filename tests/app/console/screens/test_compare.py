"""Two moments compared: the fate of each flow, and its row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from app.console.live.flows import LiveFlows, LiveView
from app.console.screens.flows.columns import CHANGES
from app.console.screens.flows.rows import ShownFlows
from bpf.arrays import Array
from probes.flow.records import FLOW
from tests.app.console.fake import desk, flow
from tests.app.console.screens.shown import flow_changes
from tests.support.console.feed import window

SECOND = 10**9
_PLACES = {name: place for place, name in enumerate(CHANGES.names)}


def views(*windows: list[Array], cut: bool = False) -> list[LiveView]:
    """The view after each window of a second; an empty list stands for a minute. The windows after
    the first one may be `cut`."""
    lives, end = LiveFlows(), 0
    found: list[LiveView] = []
    for flows in windows:
        end += SECOND if flows else 61 * SECOND
        rows = np.concatenate([*flows, np.empty(0, FLOW)], dtype=FLOW)
        rows["first_ns"] += end
        rows["last_ns"] += end
        lives.add(replace(window(rows, end_ns=end), cut=cut and len(found) > 0))
        found.append(lives.view())
    return found


def told(changes: ShownFlows, *names: str) -> dict[int, tuple[object, ...]]:
    """Cells of each flow, by its number."""
    found: dict[int, tuple[object, ...]] = {}
    for index in range(changes.rows):
        cells = changes.cells(index)
        number = int(str(cells[2]).split(":")[0].rsplit(".", 1)[1])
        found[number] = tuple(cells[_PLACES[name]] for name in names)
    return found


def test_flows_are_new_gone_or_changed() -> None:
    """A flow that left and came again is another: it counts from nothing."""
    before, _, _, after = views(
        [flow(1, 80), flow(2, 40), flow(3, 16)],
        [],
        [flow(4, 8), flow(3, 24)],
        [flow(4, 8), flow(3, 24)],
    )
    changes = flow_changes(before, after)
    assert told(changes, "change", "rate", "before", "more", "state") == {
        1: ("-80.0 kbit/s", "0 bit/s", "80.0 kbit/s", "0", "gone"),
        2: ("-40.0 kbit/s", "0 bit/s", "40.0 kbit/s", "0", "gone"),
        3: ("+24.0 kbit/s", "24.0 kbit/s", "0 bit/s", "+6", "new"),
        4: ("+8.00 kbit/s", "8.00 kbit/s", "0 bit/s", "+2", "new"),
    }


def test_a_flow_that_is_cut_is_neither_new_nor_gone() -> None:
    before, _, _, after = views(
        [flow(1, 80), flow(2, 40)], [], [flow(4, 8), flow(3, 24)], [flow(4, 8), flow(3, 24)],
        cut=True,
    )  # fmt: skip
    states = dict.fromkeys((1, 2, 3, 4), ("cut",))
    assert told(flow_changes(before, after), "state") == states
    before, after = views([flow(1, 80), flow(2, 40)], [flow(1, 80)], cut=True)
    assert told(flow_changes(before, after), "state") == {1: ("",), 2: ("cut",)}


def test_a_flow_that_stays_has_the_difference() -> None:
    before, _, after = views([flow(1, 80), flow(2, 8)], [flow(1, 40)], [flow(1, 16), flow(2, 8)])
    changes = flow_changes(before, after)
    assert told(changes, "change", "more", "state") == {
        1: ("-64.0 kbit/s", "+7", ""),
        2: ("0 bit/s", "+1", ""),
    }
    back = flow_changes(after, before)
    assert told(back, "change", "more")[1] == ("+64.0 kbit/s", "-7")


def test_the_largest_change_comes_first_whatever_its_sign() -> None:
    before, after = views(
        [flow(1, 10), flow(2, 500), flow(3, 5)], [flow(1, 400), flow(2, 1), flow(3, 5)]
    )
    changes = flow_changes(before, after)
    by_size = changes.ordered(_PLACES["change"], descending=True)
    assert list(told(by_size)) == [2, 1, 3]
    assert by_size.values(_PLACES["change"]) == [-499_000, 390_000, 0]
    assert list(told(changes.ordered(_PLACES["rate"], descending=True))) == [1, 3, 2]
    assert list(told(changes.ordered(_PLACES["source"], descending=False))) == [1, 2, 3]
    key = by_size.key(1)
    assert by_size.index(key) == 1


def test_the_filter_holds_for_both_moments() -> None:
    before, _, after = views([flow(1, 80), flow(2, 40)], [], [flow(3, 8), flow(4, 8, proto=17)])
    changes = flow_changes(before, after, "proto:tcp")
    assert sorted(told(changes)) == [1, 2, 3]
    assert len(changes.view.rows) == 4


def test_nothing_can_be_compared_to_nothing() -> None:
    empty, full = views([], [flow(1, 8)])
    assert flow_changes(empty, empty).rows == 0
    assert told(flow_changes(empty, full), "state") == {1: ("new",)}
    assert told(flow_changes(full, empty), "state") == {1: ("gone",)}


async def test_a_mark_shows_changes_until_escape_and_a_second_mark_ends_it() -> None:
    async with desk(80, 24) as console:
        await console.feed(flow(1, 80), flow(2, 800))
        await console.press("M")
        assert "COMPARING " in console.strip
        assert "with now" in console.strip
        assert "Change" in console.lines[1]
        await console.feed(flow(1, 480), flow(2, 808), flow(3, 16))
        rows = [line.split() for line in console.lines[2:5]]
        assert [row[0].split(":")[0][-1] for row in rows] == ["1", "3", "2"]
        assert "+400 kbit/s" in console.lines[2]
        assert rows[1][-1] == "new"
        await console.press("s", "S")
        await console.press("space")
        await console.feed(flow(1, 80))
        assert "with now" not in console.strip
        assert " with " in console.strip
        await console.press("escape")
        assert "COMPARING" not in console.strip
        assert "PAUSED" in console.strip
        assert console.sources == [2, 1, 3]
        await console.press("M", "M", "escape")
        assert "COMPARING" not in console.strip
        assert "LIVE" in console.strip


async def test_the_cursor_and_the_detail_work_on_changes_too() -> None:
    async with desk() as console:
        await console.feed(flow(1, 80), flow(2, 800))
        await console.press("M")
        await console.feed(flow(1, 480), flow(2, 808))
        await console.press("j", "d")
        assert "10.0.0.2:40002" in console.detail
        await console.press("k")
        assert "10.0.0.1:40001" in console.detail
