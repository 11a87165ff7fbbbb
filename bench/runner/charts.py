"""Charts of results: in the terminal by plotext, and as SVG."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape

import plotext

Curves = Mapping[str, Sequence[tuple[float, float]]]
_LEAST_DECADES = 1.5
"""Values or sizes that span more are drawn on a logarithmic scale."""
_WIDTH, _HEIGHT = 720, 360
_LEFT, _TOP, _RIGHT, _BOTTOM = 70, 36, 20, 48
_COLORS = ("#0969da", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#bc4c00", "#57606a", "#bf3989")
_STYLE = (
    "text{font:12px sans-serif;fill:#57606a}.t{font-size:14px;font-weight:bold}"
    ".g{stroke:#8c959f;stroke-opacity:.35}.c{fill:none;stroke-width:2}"
    "@media(prefers-color-scheme:dark){text{fill:#adbac7}}"
)


def slug(title: str) -> str:
    """Return the name of a chart's file, without its ending."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


class _Scale:
    """From values to a span of pixels."""

    def __init__(self, values: Sequence[float], begin: float, end: float) -> None:
        low, high = min(values), max(values)
        self.low: float
        self.high: float
        self.log = low > 0 and math.log10(high / low) > _LEAST_DECADES
        if self.log:
            self.low, self.high = math.floor(math.log10(low)), math.ceil(math.log10(high))
        else:
            step = _step(max(high, 0) - min(low, 0))
            self.low = step * math.floor(min(low, 0) / step)
            self.high = step * math.ceil(max(high, 0) / step) or 1
        self._begin, self._end = begin, end

    def at(self, value: float) -> float:
        place = math.log10(value) if self.log else value
        share = (place - self.low) / ((self.high - self.low) or 1)
        return self._begin + share * (self._end - self._begin)

    def ticks(self) -> Iterator[float]:
        if self.log:
            yield from (10.0**power for power in range(int(self.low), int(self.high) + 1))
            return
        step = _step(self.high - self.low)
        for number in range(round((self.high - self.low) / step) + 1):
            yield self.low + number * step


def _step(span: float) -> float:
    """Return a round number that divides a span into four to ten parts."""
    power = 10.0 ** math.floor(math.log10((span or 1) / 4))
    return next(power * each for each in (1, 2, 5, 10) if span <= 10 * power * each)


def _label(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:g}"


def svg(title: str, x: str, unit: str, curves: Curves) -> str:
    """Return a chart as a picture that also suits dark pages."""
    across = _Scale([a for each in curves.values() for a, _ in each], _LEFT, _WIDTH - _RIGHT)
    up = _Scale([b for each in curves.values() for _, b in each], _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}">',
        f"<style>{_STYLE}</style>",
        f'<text class="t" x="{_LEFT}" y="20">{escape(title)}</text>',
        f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 10}" text-anchor="middle">{escape(x)}</text>',
        f'<text x="8" y="20">{escape(unit)}</text>',
    ]
    for value in up.ticks():
        y = f"{up.at(value):.1f}"
        parts.append(f'<path class="g" d="M{_LEFT} {y}H{_WIDTH - _RIGHT}"/>')
        label = _label(value)
        parts.append(f'<text x="{_LEFT - 6}" y="{y}" dy="4" text-anchor="end">{label}</text>')
    for value in across.ticks():
        place = f'x="{across.at(value):.1f}" y="{_HEIGHT - _BOTTOM + 16}"'
        parts.append(f'<text {place} text-anchor="middle">{_label(value)}</text>')
    for number, (name, curve) in enumerate(curves.items()):
        color = _COLORS[number % len(_COLORS)]
        dots = [(f"{across.at(a):.1f}", f"{up.at(b):.1f}") for a, b in curve]
        line = "L".join(f"{a} {b}" for a, b in dots)
        parts.append(f'<path class="c" stroke="{color}" d="M{line}"/>')
        parts += [f'<circle cx="{a}" cy="{b}" r="3" fill="{color}"/>' for a, b in dots]
        below = _TOP + 14 + 16 * number
        box = f'x="{_LEFT + 10}" y="{below - 9}" width="12" height="4"'
        parts.append(f'<rect {box} fill="{color}"/>')
        parts.append(f'<text x="{_LEFT + 28}" y="{below}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def terminal(title: str, x: str, unit: str, curves: Curves, width: int = 76) -> str:
    """Return a chart as text without colors."""
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(width, 18)
    plotext.title(title)
    plotext.xlabel(x)
    plotext.ylabel(unit)
    for name, curve in curves.items():
        plotext.plot([a for a, _ in curve], [b for _, b in curve], label=name, marker="braille")
    for axis, scale in ((0, plotext.xscale), (1, plotext.yscale)):
        values = [point[axis] for curve in curves.values() for point in curve]
        if _Scale(values, 0, 1).log:
            scale("log")
    return str(plotext.uncolorize(plotext.build()))
