"""A histogram in bars of block characters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from rich.segment import Segment
from textual.strip import Strip
from textual.widget import Widget

from bpf.errors import printable
from bpf.quantities import REPLACED, si
from widgets.sparkline import BARS
from widgets.tones import Tone, tone_styles

_SHOWN = 99.0
"""Percentile at which the axis ends: outliers would flatten all other bars."""
_SMALLEST = 16
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
        elif not len(self._values) or width < _SMALLEST or bars < 1:
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
