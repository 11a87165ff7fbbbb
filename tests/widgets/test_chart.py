"""The history chart, as seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from textual.app import ComposeResult
from textual.geometry import Size
from textual.pilot import Pilot

from bpf.quantities import duration
from widgets.chart import ChartSeries, HistoryChart, axis_ticks
from widgets.terminal.compositor import DiffApp, TerminalCaps
from widgets.tones import Tone

TIMES = np.arange(60.0)
RTT = ChartSeries("rtt", TIMES, 0.02 + 0.01 * np.sin(TIMES / 5))
BEST = ChartSeries("best", TIMES, np.full(60, 0.002), Tone.GOOD)


class ChartApp(DiffApp[None]):
    least = Size(1, 1)

    def __init__(self) -> None:
        super().__init__()
        self.chart = HistoryChart("10.0.0.1 [/x]\x1b", unit=duration)

    def compose(self) -> ComposeResult:
        yield self.chart


def seen(pilot: Pilot[None]) -> list[str]:
    return [strip.text for strip in pilot.app.screen._compositor.render_strips()]


def dots(lines: list[str]) -> int:
    return sum("\u2800" < character <= "\u28ff" for line in lines for character in line)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
@pytest.mark.parametrize("colour", [True, False])
async def test_title_axes_and_lines(
    size: tuple[int, int], colour: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not colour:
        monkeypatch.setenv("NO_COLOR", "1")
    app = ChartApp()
    async with app.run_test(size=size) as pilot:
        app.chart.show([RTT, BEST])
        await pilot.pause()
        lines = seen(pilot)
        assert lines[0].startswith(" 10.0.0.1 [/x]·   ━━ rtt 13.1 ms   ━━ best 2.00 ms")
        assert "30.0 ms┤" in "\n".join(lines)
        assert "now" in lines[-1]
        assert "-30 s" in lines[-1]
        assert dots(lines) > size[0]
        assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize(
    ("width", "shown"), [(60, "2.00 ms   last 1m"), (53, "2.00 ms "), (49, "13.1 ms ")]
)
async def test_a_heading_has_no_halves(width: int, shown: str) -> None:
    app = ChartApp()
    async with app.run_test(size=(width, 12)) as pilot:
        app.chart.show([RTT, BEST], span=60.0)
        await pilot.pause()
        assert seen(pilot)[0].rstrip().endswith(shown.rstrip())


@pytest.mark.parametrize(
    ("look", "line", "title"),
    [(TerminalCaps("block"), "▀▄▚▞▘▝▖▗▌▐█", "━━"), (TerminalCaps("ascii"), "*", "**")],
)
async def test_lines_are_drawn_with_what_there_is(
    look: TerminalCaps, line: str, title: str
) -> None:
    app = ChartApp()
    app.look = look
    async with app.run_test(size=(80, 24)) as pilot:
        app.chart.show([RTT, BEST])
        await pilot.pause()
        lines = seen(pilot)
        assert not dots(lines)
        assert f"   {title} rtt 13.1 ms" in lines[0]
        drawn = "".join(lines[1:-2])
        assert sum(drawn.count(character) for character in line) > 60


async def test_without_colours_two_lines_are_told_apart() -> None:
    app = ChartApp()
    app.look = TerminalCaps(colors=False)
    async with app.run_test(size=(80, 24)) as pilot:
        app.chart.show([RTT, BEST])
        await pilot.pause()
        lines = seen(pilot)
        assert "━━ rtt" in lines[0]
        assert "·· best" in lines[0]
        assert dots(lines) > 60
        assert "".join(lines[1:-2]).count("·") > 60


async def test_what_a_line_is_compared_with_is_behind_it() -> None:
    app = ChartApp()
    app.look = TerminalCaps("ascii")
    async with app.run_test(size=(80, 24)) as pilot:
        app.chart.show([BEST, replace(BEST, name="threshold")])
        await pilot.pause()
        drawn = "".join(seen(pilot)[1:-2])
        assert drawn.count("*") > 60
        assert "+" not in drawn


async def test_a_span_is_said_and_is_the_whole_axis() -> None:
    app = ChartApp()
    async with app.run_test(size=(80, 12)) as pilot:
        app.chart.show([RTT], span=600.0)
        await pilot.pause()
        lines = seen(pilot)
        assert lines[0].rstrip().endswith("last 10m")
        assert "-10m00s" in lines[-1]
        # There is a minute of it, at the right.
        assert dots([line[12:68] for line in lines[1:-2]]) == 0
        assert dots(lines) > 5
        spike = ChartSeries("rtt", TIMES, np.where(TIMES < 30, 9.0, RTT.values))
        app.chart.show([spike], span=10.0)
        await pilot.pause()
        assert "-10 s" in seen(pilot)[-1]
        assert "ms┤" in "\n".join(seen(pilot))
        assert "rtt 13.1 ms   last 10 s" in seen(pilot)[0]


async def test_many_samples_are_drawn_with_their_extremes_and_gaps() -> None:
    times = np.arange(20_000.0)
    values = np.full(20_000, 0.01)
    values[7777], values[15000:16000] = 0.09, np.nan
    app = ChartApp()
    async with app.run_test(size=(80, 12)) as pilot:
        app.chart.show([ChartSeries("rtt", times, values)])
        await pilot.pause()
        lines = seen(pilot)
        assert "100 ms" in "\n".join(lines) or "90.0 ms" in "\n".join(lines)
        assert dots(lines[1:7]) > 5
        line = max(lines[6:], key=lambda line: dots([line]))
        assert any(dots([line[at : at + 2]]) == 0 for at in range(60, 72))


async def test_nothing_known_says_so() -> None:
    app = ChartApp()
    async with app.run_test(size=(40, 10)) as pilot:
        assert "no samples yet" in seen(pilot)[1]
        app.chart.show([ChartSeries("rtt", TIMES, np.full(60, np.nan))])
        await pilot.pause()
        assert "no samples yet" in seen(pilot)[1]


async def test_a_gap_is_left_where_nothing_was_measured() -> None:
    values = np.full(60, 0.01)
    values[20:40] = np.nan
    app = ChartApp()
    async with app.run_test(size=(80, 12)) as pilot:
        app.chart.show([ChartSeries("rtt", TIMES, values)])
        await pilot.pause()
        line = next(line for line in seen(pilot) if dots([line]) > 5)
        assert dots([line[45:50]]) == 0
        assert dots([line[12:25]]) == 13


async def test_it_is_drawn_once_for_each_change(monkeypatch: pytest.MonkeyPatch) -> None:
    import plotext

    drawn = 0
    build = plotext.build

    def counted() -> str:
        nonlocal drawn
        drawn += 1
        text: str = build()
        return text

    monkeypatch.setattr(plotext, "build", counted)
    app = ChartApp()
    async with app.run_test(size=(80, 24)) as pilot:
        app.chart.show([RTT])
        await pilot.pause()
        app.chart.refresh()
        await pilot.pause()
        assert drawn == 1
        app.chart.show([RTT, BEST])
        await pilot.pause()
        assert drawn == 2


async def test_colours_are_the_themes() -> None:
    app = ChartApp()
    async with app.run_test(size=(80, 24)) as pilot:
        app.chart.show([BEST])
        found = []
        for theme in ("textual-dark", "textual-light"):
            app.theme = theme
            await pilot.pause()
            found.append(
                {
                    segment.style.color
                    for strip in app.screen._compositor.render_strips()
                    for segment in strip
                    if segment.style and dots([segment.text])
                }
            )
        assert [len(colours) for colours in found] == [1, 1]
        assert found[0] != found[1]


async def test_a_pane_too_small_for_a_plot_keeps_its_title() -> None:
    app = ChartApp()
    async with app.run_test(size=(14, 3)) as pilot:
        app.chart.show([RTT])
        await pilot.pause()
        assert seen(pilot)[0].startswith(" 10.0.0.1")
        assert dots(seen(pilot)) == 0


@pytest.mark.parametrize(
    ("low", "high", "count"), [(0, 0.03, 4), (0, 1, 1), (5, 5, 3), (-3, 17, 5), (1e9, 1.1e9, 6)]
)
def test_ticks_are_few_and_hold_the_data(low: float, high: float, count: int) -> None:
    ticks = axis_ticks(low, high, count)
    assert ticks[0] <= low + 1e-6 * abs(low)
    assert ticks[-1] >= high - 1e-6 * abs(high)
    assert 2 <= len(ticks) <= count + 2
