"""Moments: which are kept, how they are found again, and that all screens show the same one."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from app.console.live.flows import LiveFlows
from app.console.live.frames import Frame
from app.console.live.paths import LivePaths
from app.console.live.state import LiveState
from app.console.live.timeline import Timeline, whole
from app.console.screens.paths.detail import long_history
from bpf.arrays import Array
from bpf.errors import UsageError
from bpf.quantities import moment
from probes.flow.records import FLOW
from probes.monitor.state import PolicyState as Standing
from probes.path.traced import Traced
from probes.snapshot import Event
from tests.app.console.fake import Desk, desk, flow
from tests.app.console.fake_paths import LAB, FakePath, table
from tests.app.console.fake_plane import FakePlane
from tests.app.console.fake_triggers import FakeMonitor, Said, monitor, policy
from tests.support.console.feed import Flows, Routes, hops_window, window

SECOND = 10**9
NOON = 1_700_000_000 // 86400 * 86400 * SECOND + 43200 * SECOND
"""12:00:00 UTC of some day."""


_EMPTY = window(np.empty(0, FLOW))
_FRAME = LiveState().frame()


def at(second: float, **values: object) -> Frame:
    """A frame of a window that ends at a second after noon."""
    end = round(second * SECOND)
    last = replace(_EMPTY, start_ns=end - SECOND, end_ns=end, end_utc_ns=NOON + end)
    return replace(_FRAME, last=last, at=float(second), **values)  # type: ignore[arg-type]


def seconds(timeline: Timeline) -> list[float]:
    return [frame.at for frame in timeline.frames]


# What is kept


def test_frames_of_300_traced_flows_share_all_but_what_changed() -> None:
    timeline, live, routes = Timeline(), LivePaths(), Routes(300, 6, rate=1)
    sizes = []
    for second in range(1, 41):
        end = second * SECOND
        live.add(hops_window(routes.next(end - SECOND, end), second, end - SECOND, end))
        timeline.keep(at(second, paths=live.view()))
        sizes.append(timeline.nbytes)
    assert len(live.view().series) == 1800
    # Series, responders, the samples of a second, and four seconds of bins.
    assert (sizes[-1] - sizes[9]) / 30 < 600_000


def test_frames_of_10000_flows_stay_within_the_bytes() -> None:
    limit = 24 << 20
    timeline, lives, flows = Timeline(limit), LiveFlows(), Flows(10_000)
    rows = {}
    for second in range(1, 61):
        lives.add(window(flows.next(second * SECOND), second, end_ns=second * SECOND))
        rows[second] = lives.view().rows
        timeline.keep(at(second, flows=lives.view()))
        real = sum(len(frame.flows.packed) for frame in timeline.frames)
        assert real <= timeline.nbytes <= limit
    # It is made use of, too, from the first moment to the last: twice as many as fit unpacked.
    assert real > limit * 0.9
    assert real < len(timeline.frames) * rows[60].nbytes / 2
    assert seconds(timeline)[0] == 1
    assert seconds(timeline)[-3:] == [58, 59, 60]
    for frame in timeline.frames:
        assert whole(frame).flows.rows.tobytes() == rows[int(frame.at)].tobytes()


def test_older_moments_are_farther_apart() -> None:
    timeline = Timeline(max_frames=100)
    for second in range(1, 3601):
        timeline.keep(at(second))
    kept = np.array(seconds(timeline))
    gaps, ages = np.diff(kept), 3600 - kept[:-1]
    assert len(kept) == 100
    assert (gaps[ages < 15] == 1).all()
    assert (gaps <= np.maximum(1, ages * 0.15)).all()


def test_what_frames_share_is_counted_once_and_let_go_of_with_the_last() -> None:
    rows = LiveFlows()
    rows.add(window(Flows(1000).next(SECOND), end_ns=SECOND))
    view, events = rows.view(), (Event(1, "info", "x", "y" * 10_000),)
    timeline = Timeline(max_frames=10)
    timeline.keep(at(1, flows=view, events=events))
    one = timeline.nbytes
    assert one > len(timeline.frames[0].flows.packed) + 10_000
    for second in range(2, 11):
        timeline.keep(at(second, flows=view, events=events))
    assert timeline.nbytes - one < 9 * 4096
    for second in range(11, 400):
        timeline.keep(at(second))
    again = Timeline()
    for frame in timeline.frames:
        again.keep(frame)
    assert timeline.nbytes == again.nbytes


def test_a_view_of_larger_memory_counts_as_all_of_it() -> None:
    large = np.zeros(100_000, FLOW)
    timeline = Timeline()
    timeline.keep(at(1, metrics=(window(large[:1]),)))
    assert timeline.nbytes > large.nbytes


def test_a_frame_has_its_flows_once() -> None:
    state, timeline = LiveState(), Timeline()
    state.take(window(Flows(10_000).next(SECOND), end_ns=SECOND))
    frame = state.frame()
    timeline.keep(frame)
    assert len(frame.flows.rows) == 10_000
    assert timeline.nbytes < 0.5 * frame.flows.rows.nbytes
    assert whole(frame) is frame


def test_a_window_is_kept_once() -> None:
    timeline = Timeline()
    timeline.keep(LiveState().frame())
    assert not timeline.frames
    for second in (1, 1, 2):
        timeline.keep(at(second))
    assert seconds(timeline) == [1, 2]


@pytest.mark.parametrize(
    ("how", "by", "found"),
    [
        ("step", -1, 12), ("step", 1, 14), ("step", -3, 10), ("step", -99, 10), ("step", 99, 15),
        ("move", -2.5, 10), ("move", -60, 10), ("move", 2, 15), ("move", 0.5, 14),
    ],
)  # fmt: skip
def test_steps(how: str, by: float, found: float) -> None:
    timeline = Timeline()
    for second in (10, 11, 12, 13, 14, 15):
        timeline.keep(at(second))
    shown = getattr(timeline, how)(at(13), by)
    assert shown is not None
    assert shown.at == found


def test_steps_from_a_moment_that_is_not_kept() -> None:
    timeline = Timeline()
    for second in (10, 20, 30):
        timeline.keep(at(second))
    for by, found in ((1, 30), (-1, 20)):
        shown = timeline.step(at(25), by)
        assert shown is not None
        assert shown.at == found
    assert timeline.step(at(30), 1) is None
    assert timeline.step(at(10), -1) is None
    assert timeline.move(at(10), -5) is None
    assert [frame.at for frame in timeline.back(at(30), 10, 15)] == [30, 20]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("30s", -30), ("5m", -300), ("1h30m", -5400), ("11:59:30", -30 + 1 - 1e-9),
        ("11:59:30.25", -29.75), ("9:05", -10500 + 1 - 1e-9), ("12:00:00", 1 - 1e-9),
        ("12:00:01", 2 - 86400 - 1e-9),
    ],
)  # fmt: skip
def test_moments_are_read(text: str, found: float) -> None:
    assert moment(text, NOON) == NOON + round(found * SECOND)


@pytest.mark.parametrize("text", ["", "24:00:00", "12:60", "yesterday", "-30s"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no time; 12:30:05 "):
        moment(text, NOON)


# On the screens


class Past:
    """A desk whose clocks are set by hand."""

    def __init__(self, console: Desk, time: SimpleNamespace) -> None:
        self.console, self._time = console, time

    async def feed(self, second: float, *flows: Array) -> None:
        """A window that ends so long after noon."""
        end = round(second * SECOND)
        self._time.now = float(second)
        rows = np.concatenate(flows, dtype=FLOW)
        rows["first_ns"] += end
        rows["last_ns"] += end
        made = replace(window(rows, round(second), end_ns=end), end_utc_ns=NOON + end)
        self.console.controller.publish(made)
        await self.console.still()

    async def do(self, line: str) -> None:
        await self.console.app.action_command(line)
        await self.console.still()


@pytest.fixture(name="time")
def _time(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    time = SimpleNamespace(now=0.0)
    time.monotonic = lambda: time.now
    time.time_ns = lambda: NOON + round(time.now * SECOND)
    monkeypatch.setattr("app.console.live.state.time", time)
    for module in ("time_travel",):
        monkeypatch.setattr(f"app.console.{module}.time", time)
    return time


async def test_windows_are_looked_back_at_while_counting_goes_on(time: SimpleNamespace) -> None:
    async with desk() as console:
        past = Past(console, time)
        for number in range(1, 5):
            await past.feed(number, *(flow(n, 10) for n in range(1, number + 1)))
        await console.press("left_square_bracket")
        assert "PAUSED 12:00:03 UTC" in console.strip
        assert "1 s ago" in console.strip
        assert len(console.sources) == 3
        await past.feed(40, flow(9, 50))
        assert len(console.sources) == 3
        await past.do("time.back 2")
        assert "PAUSED 12:00:01 UTC" in console.strip
        assert console.sources == [1]
        await console.press("left_square_bracket")
        assert "no other window in that direction; kept since 12:00:01" in console.complaints[-1]
        await console.press("right_square_bracket", "right_square_bracket")
        assert len(console.sources) == 3
        await console.press("right_curly_bracket")
        assert "PAUSED 12:00:40 UTC" in console.strip
        await console.press("space")
        assert "LIVE" in console.strip
        assert len(console.sources) == 5


async def test_a_moment_is_gone_to_and_left_by_escape(time: SimpleNamespace) -> None:
    async with desk() as console:
        past = Past(console, time)
        for number in (1, 30, 61, 125):
            await past.feed(number, flow(number, 10))
        await past.do("time.go 12:01:40")
        assert "PAUSED 12:01:01 UTC" in console.strip
        await past.do("time.go 95s")
        assert "PAUSED 12:00:30 UTC" in console.strip
        await past.do("time.go 11:00:00")
        assert "nothing is kept of 11:00:00; kept since 12:00:01 UTC" in console.complaints[-1]
        assert "PAUSED 12:00:30 UTC" in console.strip
        await console.press("escape")
        assert "LIVE" in console.strip
        await console.press("left_curly_bracket")
        assert "PAUSED 12:01:01 UTC" in console.strip
        await past.do("time.live")
        assert "LIVE" in console.strip


async def test_before_the_first_window_there_is_no_past(time: SimpleNamespace) -> None:
    async with desk() as console:
        await console.press("left_square_bracket")
        assert "there was no window yet" in console.complaints[-1]
        await console.press("M")
        assert "there was no window yet" in console.complaints[-1]
        await console.press("space")
        assert "PAUSED" in console.strip


@pytest.mark.slow
async def test_charts_look_back_as_far_as_asked_and_not_beyond_the_moment(
    time: SimpleNamespace,
) -> None:
    async with desk() as console:
        past = Past(console, time)
        for number in (*range(1, 70, 5), *range(67, 70)):
            await past.feed(number, flow(1, number))
        await console.press("d")
        assert "last 1m" in console.detail
        assert "69.0 kbit/s" in console.detail
        await console.press("minus")
        assert "last 5m" in console.detail
        for _ in range(9):
            await console.press("minus")
        assert "last" not in console.detail.replace("last 0 s ago", "")
        await console.press("equals_sign")
        assert "last 1h00m" in console.detail
        await past.do("time.go 12:00:31")
        assert "31.0 kbit/s" in console.detail
        assert "69.0" not in console.detail
        await past.do("time.live")
        assert "69.0 kbit/s" in console.detail


@pytest.mark.slow
async def test_paths_are_those_of_the_moment(time: SimpleNamespace) -> None:
    async with desk() as console:
        past, path = Past(console, time), FakePath(LAB[:2])
        await console.press("2")
        for number in range(1, 400):
            time.now = float(number)
            if number == 300:
                path.with_hop(2, rtt=80.0, routers=("10.9.9.9",))
            made = table(path.second((number - 1) * SECOND), number * SECOND, number)
            console.controller.publish(replace(made, end_utc_ns=NOON + number * SECOND))
            if number % 50 == 49:
                await console.still()
        assert "10.9.9.9" in console.text
        await past.do("time.go 12:04:30")
        assert "10.9.9.9" not in console.text
        assert "10.94.1.2" in console.text
        await console.press("M")
        await past.do("time.live")
        assert "COMPARING 12:04:09 with now" in console.strip
        hop = next(line for line in console.lines if "10.9.9.9" in line)
        assert "10.94.1.2" in hop
        assert re.search(r" \+7\d\.\d ", hop)
        await console.press("escape", "j", "enter", "minus", "minus")
        chart = next(line for line in console.lines if "Hop 2" in line)
        assert re.search(r"mean (7|8)\d\.\d ms   last 15m", chart)


def test_the_past_of_a_hop_is_put_together_from_frames() -> None:
    lives, path, views = LivePaths(), FakePath(LAB[:1]), []
    for number in range(1, 601):
        lives.add(table(path.second((number - 1) * SECOND), number * SECOND, number))
        if number % 150 == 0:
            views.append(lives.view())
    series = long_history(reversed(views), views[-1].series["id"])
    assert series.times[:600].tolist() == list(range(600))
    assert np.isclose(series.values[:600], 0.21e-3, rtol=0.5).all()


async def test_a_screen_that_is_new_while_paused_asks_once(time: SimpleNamespace) -> None:
    plane, path = FakePlane(), FakePath(LAB[:2])
    running = Traced(path.destination, (), 2, (), (), packets=0, sent=0, matched=0)
    plane.paths[path.destination] = running
    async with desk(controller=plane) as console:
        time.now = 1.0
        plane.publish(table(path.second(0), SECOND))
        await console.still()
        await console.press("space", "2")
        assert path.destination in console.text
        assert "tracing has ended" not in console.text


async def test_policies_are_in_the_states_of_the_moment(time: SimpleNamespace) -> None:
    plane = FakePlane()
    plane.monitor_info = monitor(policy("flood: flows > 500 -> dns", Standing.ACTIVE, ago=1.0))
    source = FakeMonitor()
    async with desk(controller=plane) as console:
        past = Past(console, time)
        await console.press("4")
        for number, state in enumerate((Standing.ARMED, Standing.ARMED, Standing.ACTIVE)):
            time.now = float(number + 1)
            for made in source.window({"flood": Said(400 + 100 * number, 500, state)}):
                plane.publish(made)
            await console.still()
        assert "active" in policies(console)
        await console.press("left_square_bracket")
        assert "armed" in policies(console)
        assert "500" in policies(console)
        await past.do("time.live")
        assert "active" in policies(console)


def policies(console: Desk) -> str:
    return next(line for line in console.lines if "flood" in line)
