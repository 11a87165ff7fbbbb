"""A history in one line of a table: bars on a scale that several of them share, losses, marks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from widgets.rows import Pieces
from widgets.tones import Tone

BARS = "▁▂▃▄▅▆▇█"
NOTHING = " "
"""Nothing was measured."""
LOST = "\N{MULTIPLICATION SIGN}"
"""All that was sent was lost."""
MARK = "◆"
"""Something else is to be seen at that time."""
_STEPS = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0)


def round_scale(highest: float) -> float:
    """The end of a scale for values up to `highest`: a round number, so that it seldom changes."""
    if not (highest > 0 and math.isfinite(highest)):
        return 1.0
    power = 10.0 ** math.floor(math.log10(highest))
    return next((s * power for s in _STEPS if s * power >= highest * (1 - 1e-9)), 10 * power)


def sparkline(
    values: NDArray[np.float64],
    lost: NDArray[np.bool_],
    marked: NDArray[np.bool_],
    scale: float,
    tone: Tone = Tone.ACCENT,
    *,
    forgiven: bool = False,
) -> Pieces:
    """A character for each of `values` (n,), the last one at the right, from 0 to `scale`.

    NaN is where there is no value; `lost` is where samples were lost: a bar there hangs from above,
    and where there is no value either it is a cross. With `forgiven` losses are no fault: bars
    stay bars and crosses are muted. `marked` puts a mark in the place of the bar.
    """
    known = np.isfinite(values)
    eighths = _eighths(values, scale)
    if not (lost.any() or marked.any()):
        return ((_text(eighths), tone),)
    cells = zip(known.tolist(), eighths.tolist(), lost.tolist(), marked.tolist(), strict=True)
    return _pieces(_cell(*cell, tone, forgiven) for cell in cells)


def _text(eighths: NDArray[np.int64]) -> str:
    return "".join(BARS[n] if n >= 0 else NOTHING for n in eighths.tolist())


def bars(values: NDArray[np.float64], tones: Iterable[Tone], scale: float) -> Pieces:
    """A bar for each of `values` (n,), the last one at the right, from 0 to `scale`, each in its
    tone.

    NaN is where there is no value; what is beyond the scale is as high as it.
    """
    drawn = (BARS[n] if n >= 0 else NOTHING for n in _eighths(values, scale).tolist())
    return _pieces(zip(drawn, tones, strict=True))


def _eighths(values: NDArray[np.float64], scale: float) -> NDArray[np.int64]:
    """Which of BARS each value is; -1 for none."""
    known = ~np.isnan(values)
    eighths = np.full(len(values), -1)
    high = np.ceil(np.minimum(values[known] / scale, 1.0) * len(BARS))
    eighths[known] = np.maximum(high, 1).astype(int) - 1
    return eighths


def _pieces(cells: Iterable[tuple[str, Tone]]) -> Pieces:
    runs = groupby(cells, lambda cell: cell[1])
    return tuple(("".join(text for text, _ in run), tone) for tone, run in runs)


def _cell(
    known: bool, eighths: int, lost: bool, marked: bool, tone: Tone, forgiven: bool
) -> tuple[str, Tone]:
    if marked:
        return MARK, Tone.BAD if lost and not forgiven else Tone.WARN
    if not known:
        return (LOST, Tone.MUTED if forgiven else Tone.BAD) if lost else (NOTHING, tone)
    if lost and not forgiven:
        # A full bar that hangs would be an empty cell.
        return BARS[min(eighths, len(BARS) - 2)], Tone.LOST
    return BARS[eighths], tone


def means(sums: NDArray[Any], counts: NDArray[Any]) -> NDArray[np.float64]:
    """`sums` over `counts`, NaN where nothing was counted."""
    result = np.full(sums.shape, np.nan)
    np.divide(sums, counts, out=result, where=counts > 0)
    return result
