"""The history chart, as seen."""

from __future__ import annotations

import numpy as np
import pytest
from textual.app import App, ComposeResult
from textual.pilot import Pilot

from widgets.chart import HistoryChart, Series, axis_ticks
from widgets.format import duration
from widgets.tones import Tone

TIMES = np.arange(60.0)
RTT = Series("rtt", TIMES, 0.02 + 0.01 * np.sin(TIMES / 5))
BEST = Series("best", TIMES, np.full(60, 0.002), Tone.GOOD)


class ChartApp(App[None]):
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


async def test_nothing_known_says_so() -> None:
    app = ChartApp()
    async with app.run_test(size=(40, 10)) as pilot:
        assert "no samples yet" in seen(pilot)[1]
        app.chart.show([Series("rtt", TIMES, np.full(60, np.nan))])
        await pilot.pause()
        assert "no samples yet" in seen(pilot)[1]


async def test_a_gap_is_left_where_nothing_was_measured() -> None:
    values = np.full(60, 0.01)
    values[20:40] = np.nan
    app = ChartApp()
    async with app.run_test(size=(80, 12)) as pilot:
        app.chart.show([Series("rtt", TIMES, values)])
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
