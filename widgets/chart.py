"""Charts: a small line chart of one or two measurements, drawn by plotext, and a histogram."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle

import numpy as np
from numpy.typing import NDArray
from rich.ansi import AnsiDecoder
from rich.color import Color
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from bpf.errors import printable
from bpf.quantities import REPLACED, age, duration, si
from widgets.sparkline import BARS
from widgets.terminal.compositor import caps_of
from widgets.tones import Tone, tone_styles

_CELLS_PER_X_LABEL = 16
_LINES_PER_Y_LABEL = 3
_TIME_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 86400)
"""Possible distances between labels of the time axis, in seconds."""
_POINTS_PER_CELL = 2
"""Samples of a line at most; more take time and show nothing new."""
_LINE = {"braille": ("braille", "━━"), "block": ("hd", "━━"), "ascii": ("*", "**")}
"""plotext's marker of a line and its sign in the legend, by the terminal's finest characters."""
_OTHER = {"braille": ("·", "··"), "block": ("·", "··"), "ascii": ("+", "++")}
"""The same for the second line, on terminals without colours."""
_SMALLEST = (16, 4)
"""Least width and height of a plot, in cells."""


@dataclass(frozen=True, slots=True, eq=False)
class ChartSeries:
    """One line of a chart."""

    name: str
    times: NDArray[np.float64]
    """(n,) seconds, ascending; on any clock, the same for all series."""
    values: NDArray[np.float64]
    """(n,) in the chart's unit; NaN leaves a gap."""
    tone: Tone = Tone.ACCENT


class HistoryChart(Widget):
    """A titled line chart over time; its right edge is the latest sample."""

    COMPONENT_CLASSES = {"chart--title"}
    DEFAULT_CSS = """
    HistoryChart {
        background: $surface;
        width: 1fr;
        height: 1fr;
        & > .chart--title { color: $foreground; text-style: bold; }
    }
    """

    def __init__(
        self,
        title: str = "",
        *,
        unit: Callable[[float], str] = si,
        empty: str = "no samples yet",
        id: str | None = None,  # noqa: A002
        classes: str | None = None,
    ) -> None:
        """`unit` formats a value of the vertical axis; `empty` is the text without data."""
        super().__init__(id=id, classes=classes)
        self._title = title
        self._unit = unit
        self._empty = empty
        self._series: tuple[ChartSeries, ...] = ()
        self._span = math.inf
        self._drawn: tuple[tuple[int, int], list[Strip]] | None = None

    def show(
        self, series: Sequence[ChartSeries], *, title: str | None = None, span: float = math.inf,
        unit: Callable[[float], str] | None = None,
    ) -> None:  # fmt: skip
        """Show the last `span` seconds of `series`, and a new `title` and `unit` if given."""
        self._span = span
        self._unit = unit or self._unit
        self._series = tuple(_last(series, span))
        self._title = self._title if title is None else title
        self._drawn = None
        self.refresh()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._drawn = None

    def render_line(self, y: int) -> Strip:
        """Return one line of the chart; a change of data or size redraws the whole chart once."""
        size = (self.size.width, self.size.height)
        if self._drawn is None or self._drawn[0] != size:
            self._drawn = (size, self._draw(*size))
        return self._drawn[1][y]

    def _draw(self, width: int, height: int) -> list[Strip]:
        tones = tone_styles(self)
        heading = self._heading(tones, width)
        lines = [heading.adjust_cell_length(width, tones[Tone.NORMAL])]
        known = [s for s in self._series if np.isfinite(s.values).any()]
        if not known:
            text = Segment("  " + printable(self._empty, REPLACED), tones[Tone.MUTED])
            lines.append(Strip([text]).adjust_cell_length(width, tones[Tone.NORMAL]))
        elif width >= _SMALLEST[0] and height - 1 >= _SMALLEST[1]:
            markers = [drawn for one, (drawn, _) in self._marked() if one in known]
            plot = _plot(known, self._span, width, height - 1, self._unit, tones, markers)
            lines += _strips(plot, width, tones[Tone.NORMAL], self.app.console)
        rest = height - len(lines)
        return [*lines[:height], *[Strip.blank(width, tones[Tone.NORMAL])] * rest]

    def _marked(self) -> Iterator[tuple[ChartSeries, tuple[str, str]]]:
        """Yield each series with its marker and its sign in the legend."""
        look = caps_of(self.app)
        line, other = _LINE[look.glyphs], _OTHER[look.glyphs]
        alike = look.colors and look.glyphs != "ascii"
        return zip(self._series, cycle((line,) if alike else (line, other)))

    def _heading(self, tones: dict[Tone, Style], width: int) -> Strip:
        """Return the title and the legend entries that fit whole: half a number misleads."""
        title = self.get_component_rich_style("chart--title")
        parts = [[Segment(printable(self._title, REPLACED), title)]] if self._title else []
        for series, (_, sign) in self._marked():
            finite = series.values[np.isfinite(series.values)]
            last = self._unit(float(finite[-1])) if finite.size else "-"
            parts.append([
                Segment(f"{sign} ", tones[series.tone]),
                Segment(printable(series.name, REPLACED), tones[Tone.MUTED]),
                Segment(f" {last}", tones[series.tone]),
            ])  # fmt: skip
        if self._series and self._span < math.inf:
            parts.append([Segment(f"last {age(self._span)}", tones[Tone.MUTED])])
        segments: list[Segment] = []
        for number, part in enumerate(parts):
            longer = [*segments, Segment("   " if number else " ", tones[Tone.NORMAL]), *part]
            if number and Segment.get_line_length(longer) > width:
                break
            segments = longer
        return Strip(segments)


def _last(series: Sequence[ChartSeries], span: float) -> Iterator[ChartSeries]:
    """Cut `series` to the `span` seconds before the latest sample of all."""
    end = max((float(one.times[-1]) for one in series if len(one.times)), default=0.0)
    for one in series:
        begin = int(np.searchsorted(one.times, end - span))
        yield replace(one, times=one.times[begin:], values=one.values[begin:])


def _thinned(one: ChartSeries, points: int) -> ChartSeries:
    """Reduce to about so many samples: the highest and the lowest of each stretch of time."""
    count = len(one.times)
    if count <= points:
        return one
    starts = np.arange(0, count, -(-2 * count // points))
    chosen = {0, count - 1}
    for begin, end in zip(starts, np.append(starts[1:], count), strict=True):
        part = one.values[begin:end]
        # NaN leaves a gap.
        chosen.add(int(begin + np.argmax(np.isnan(part))))
        if np.isfinite(part).any():
            chosen |= {int(begin + np.nanargmin(part)), int(begin + np.nanargmax(part))}
    places = sorted(chosen)
    return replace(one, times=one.times[places], values=one.values[places])


def axis_ticks(low: float, high: float, count: int) -> list[float]:
    """Return at most `count` + 1 round values that span `low` to `high`."""
    span = max(high - low, abs(high) * 1e-9) or 1.0
    rough = span / max(1, count)
    power = 10.0 ** math.floor(math.log10(rough))
    for step in (1, 2, 2.5, 5, 10, 20):
        unit = step * power
        first, last = math.floor(low / unit), math.ceil(high / unit)
        if last - first <= count:
            break
    return [n * unit for n in range(first, max(last, first + 1) + 1)]


def _time_ticks(span: float, count: int) -> list[float]:
    """Return at most `count` + 1 round times in seconds from -`span` to 0."""
    fitting = (step for step in _TIME_STEPS if span / step <= count)
    step = next(fitting, span / count)
    return [-n * step for n in range(int(span / step), -1, -1)]


def _time_label(at: float) -> str:
    if not at:
        return "now"
    return f"{at:g} s" if -120 < at <= -1 else duration(at)


def _plot(
    series: Sequence[ChartSeries],
    span: float,
    width: int,
    height: int,
    unit: Callable[[float], str],
    tones: dict[Tone, Style],
    markers: Sequence[str],
) -> str:
    """Draw by plotext; it has one figure per process, which is cleared each time."""
    # Imported here: it costs 40 ms, and the first paint needs no chart.
    import plotext as plt

    end = max(float(s.times[-1]) for s in series)
    if span == math.inf:
        span = end - min(float(s.times[0]) for s in series)
    span = max(span, 1e-9)
    series = [_thinned(one, _POINTS_PER_CELL * width) for one in series]
    values = np.concatenate([s.values[np.isfinite(s.values)] for s in series])
    low, high = float(values.min()), float(values.max())
    # A scale from zero, unless that would flatten the curve.
    low = low if high * 0.6 <= low < high else min(low, 0.0)
    marks = axis_ticks(low, high, max(1, (height - 2) // _LINES_PER_Y_LABEL))

    plt.clear_figure()
    plt.theme("clear")
    plt.limitsize(False, False)
    plt.plotsize(width, height)
    plt.xaxes(True, False)
    plt.yaxes(True, False)
    plt.ticks_color(_colour(tones[Tone.MUTED].color))
    # The first series is drawn last, on top of those for comparison.
    for one, marker in reversed(list(zip(series, markers, strict=True))):
        plt.plot(
            (one.times - end).tolist(),
            one.values.tolist(),
            color=_colour(tones[one.tone].color),
            marker=marker,
        )
    plt.ylim(marks[0], marks[-1])
    plt.yticks(marks, [unit(mark) for mark in marks])
    plt.xlim(-span, 0)
    ticks = _time_ticks(span, max(1, width // _CELLS_PER_X_LABEL))
    plt.xticks(ticks, [_time_label(at) for at in ticks])
    drawn: str = plt.build()
    plt.clear_figure()
    return drawn


def _colour(color: Color | None) -> tuple[int, ...] | int | str:
    """Return a theme's colour in plotext's form."""
    if color is None or color.is_default:
        return "default"
    if color.triplet is None and color.number is not None:
        return color.number
    return tuple(color.get_truecolor())


def _strips(plot: str, width: int, base: Style, console: Console) -> Iterator[Strip]:
    """Decode plotext's text into strips; the decoder drops all but colours."""
    for line in AnsiDecoder().decode(plot):
        segments = Segment.apply_style(line.render(console), base)
        yield Strip(segments).adjust_cell_length(width, base)


_SHOWN = 99.0
"""Percentile at which the axis ends: outliers would flatten all other bars."""
_LEAST_WIDTH = 16
_MARGIN = 1


class Distribution(Widget):
    """A histogram with a title and an axis of three values."""

    COMPONENT_CLASSES = {"distribution--title"}
    DEFAULT_CSS = """
    Distribution {
        background: $surface;
        width: 1fr;
        height: 5;
        & > .distribution--title { color: $foreground; text-style: bold; }
    }
    """

    def __init__(self, *, unit: Callable[[float], str] = si) -> None:
        super().__init__()
        self._unit = unit
        self._values: NDArray[np.float64] = np.empty(0)
        self._title = ""

    def show(self, values: NDArray[np.float64], title: str) -> None:
        """Show the distribution of `values` (n,), finite and in the unit of the axis."""
        self._values, self._title = values, title
        self.refresh()

    def render_line(self, y: int) -> Strip:
        width, height = self.size
        tones = tone_styles(self)
        bars = height - 2
        if y == 0:
            title = self.get_component_rich_style("distribution--title")
            segments = [Segment(f" {printable(self._title, REPLACED)}", title)]
        elif not len(self._values) or width < _LEAST_WIDTH or bars < 1:
            segments = []
        elif y <= bars:
            text = _bars(self._values, width - 2 * _MARGIN, bars)[y - 1]
            segments = [Segment(" " * _MARGIN + text, tones[Tone.ACCENT])]
        else:
            text = _axis(self._values, width - 2 * _MARGIN, self._unit)
            segments = [Segment(" " * _MARGIN + text, tones[Tone.MUTED])]
        return Strip(segments).adjust_cell_length(width, tones[Tone.NORMAL])


def limits(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the ends of the axis for `values` (n,), n > 0; they always differ."""
    low, high = float(values.min()), float(np.percentile(values, _SHOWN))
    return (low, high) if high > low else (low, low + (abs(low) or 1.0) * 0.01)


def _bars(values: NDArray[np.float64], width: int, height: int) -> list[str]:
    """Draw (height) lines of (width) bars; the highest fills all lines, outliers come last."""
    low, high = limits(values)
    counts = np.histogram(np.minimum(values, high), width, (low, high))[0]
    # Every measured value gets at least a low bar.
    eighths = np.ceil(counts / counts.max() * height * len(BARS)).astype(int)
    lines = []
    for line in range(height - 1, -1, -1):
        fill = np.clip(eighths - line * len(BARS), 0, len(BARS))
        lines.append("".join((" " + BARS)[n] for n in fill.tolist()))
    return lines


def _axis(values: NDArray[np.float64], width: int, unit: Callable[[float], str]) -> str:
    """Draw the least value, the median at its place, and the end of the axis."""
    low, high = limits(values)
    median = float(np.quantile(values, 0.5, method="inverted_cdf"))  # as the medians of columns
    left, right, middle = unit(low), unit(high), unit(median)
    at = round((median - low) / (high - low) * (width - 1))
    text = f"▲ {middle}"
    if at + len(text) >= width - len(right):
        text = f"{middle} ▲"
        at -= len(text) - 1
    if not len(left) < at < width - len(right) - len(text):
        text = ""
        at = len(left)
    rest = width - at - len(text)
    return left.ljust(at) + text + right.rjust(rest)
