"""Sparklines: a history in one line of a table, with losses and marks, on a shared scale."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from widgets.table.columns import cell
from widgets.table.rows import Pieces
from widgets.tones import Tone, Way

BARS = "▁▂▃▄▅▆▇█"
NOTHING = " "
"""No sample in this time."""
LOST = "\N{MULTIPLICATION SIGN}"
"""Every probe of this time was lost."""
MARK = "◆"
"""An event at this time."""
_STEPS = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0)


def round_scale(highest: float) -> float:
    """Return a round end of the scale for values up to `highest`; it seldom changes."""
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
    """Return a character for each of `values` (n,), from 0 to `scale`, the newest at the right.

    NaN is a missing value. If samples were `lost`, the bar hangs from above; without any value it
    is a cross. If losses are `forgiven`, bars stay bars and crosses are muted. `marked` replaces
    the bar by a mark.
    """
    return sparklines(values[None], lost[None], marked[None], scale, [tone], [forgiven])[0]


def sparklines(
    values: NDArray[np.float64],
    lost: NDArray[np.bool_],
    marked: NDArray[np.bool_],
    scale: float,
    tones: Sequence[Tone],
    forgiven: Sequence[bool],
) -> list[Pieces]:
    """As `sparkline`, for (m, n) values: m lines, each with its tone."""
    codes = _heights(values, scale) + _WAS_LOST * lost + _IS_MARKED * marked
    rows = np.array(forgiven, int)[:, None]
    return _runs(_GLYPHS[rows, codes], _PLACES[rows, codes], [(tone, *_TONES) for tone in tones])


def bars(values: NDArray[np.float64], tones: Iterable[Tone], scale: float) -> Pieces:
    """Return a bar for each of `values` (n,), from 0 to `scale`, the newest at the right.

    NaN is a missing value; larger values are cut at the scale.
    """
    of = np.fromiter((_TONES.index(tone) for tone in tones), int, len(values))
    return _runs(_GLYPHS[0][_heights(values, scale)][None], of[None], [_TONES])[0]


_TONES = tuple(Tone)
_WAS_LOST, _IS_MARKED = 16, 32
"""Offsets that are added to a bar's height to make the code of its cell."""


def _heights(values: NDArray[np.float64], scale: float) -> NDArray[np.int64]:
    """Return the height of each bar, in eighths; 0 for a missing value."""
    known = ~np.isnan(values)
    heights = np.zeros(values.shape, int)
    np.ceil(
        np.clip(values / scale, 0.01, 1.0) * len(BARS), out=heights, where=known, casting="unsafe"
    )
    return heights


def _look(code: int, *, forgiven: bool) -> tuple[str, Tone | None]:
    """Return a cell's character, and its tone if it differs from the line's."""
    height, lost = code % _WAS_LOST, bool(code & _WAS_LOST)
    if code & _IS_MARKED:
        return MARK, Tone.BAD if lost and not forgiven else Tone.WARN
    if not height:
        return (LOST, Tone.MUTED if forgiven else Tone.BAD) if lost else (NOTHING, None)
    if lost and not forgiven:
        # A full hanging bar would be an empty cell.
        return BARS[min(height, len(BARS) - 1) - 1], Tone.LOST
    return BARS[min(height, len(BARS)) - 1], None


_LOOKS = [
    [_look(code, forgiven=forgiven) for code in range(2 * _IS_MARKED)] for forgiven in (False, True)
]
_GLYPHS = np.array([[ord(glyph) for glyph, _ in looks] for looks in _LOOKS], "<u4")
"""Characters by forgiven (0, 1) and code."""
_PLACES = np.array(
    [[0 if tone is None else 1 + _TONES.index(tone) for _, tone in looks] for looks in _LOOKS]
)
"""Indices of their tones, by forgiven and code: the line's own, then _TONES."""


def _runs(
    glyphs: NDArray[np.uint32], places: NDArray[np.int64], tones: Sequence[Sequence[Tone]]
) -> list[Pieces]:
    """Join characters (m, n) into lines of pieces of one tone; `places` (m, n) index `tones`."""
    text, width = glyphs.tobytes().decode("utf-32-le"), glyphs.shape[1]
    edge = np.ones(glyphs.shape, bool)
    edge[:, 1:] = places[:, 1:] != places[:, :-1]
    edges = [*np.flatnonzero(edge).tolist(), len(text)]
    lines: list[list[tuple[str, Tone]]] = [[] for _ in tones]
    for (begin, end), place in zip(pairwise(edges), places[edge].tolist(), strict=True):
        line = begin // width
        lines[line].append((text[begin:end], tones[line][place]))
    return list(map(tuple, lines))


def means(sums: NDArray[Any], counts: NDArray[Any]) -> NDArray[np.float64]:
    """Return `sums` over `counts`, NaN if a count is 0."""
    result = np.full(sums.shape, np.nan)
    np.divide(sums, counts, out=result, where=counts > 0)
    return result


_EIGHTHS = " ▏▎▍▌▋▊▉"
_FULL = "█"
_LIMIT = "│"
_BARS: dict[Way, Tone] = {"in": Tone.IN_BAR, "out": Tone.OUT_BAR}


def behind(text: str, width: int, share: float, way: Way, tone: Tone) -> Pieces:
    """Return `text` at the right of `width` cells, over a bar of `share` (0..1) of the width.

    The bar grows from the left by whole cells, so that few cells change. `tone` is the tone of the
    text beside the bar. A share that is not a number is no bar.
    """
    shown = cell(text, width, "right")
    end = _cells(share, width)
    pieces = (shown[:end], _BARS[way]), (shown[end:], tone)
    return tuple(piece for piece in pieces if piece[0])


def gauge(share: float, width: int, limit: float | None = None) -> Pieces:
    """Return a bar of `share` (0..1) of `width` cells in eighths, with a mark at `limit` (0..1).

    From the limit on the bar is a warning.
    """
    eighths = _cells(share, 8 * width)
    full, rest = divmod(eighths, 8)
    text = (_FULL * full + _EIGHTHS[rest]).ljust(width)[:width]
    if limit is None:
        return ((text, Tone.ACCENT),)
    at = min(_cells(limit, width), width - 1)
    tone = Tone.WARN if share >= limit else Tone.ACCENT
    pieces = (text[:at], tone), (_LIMIT, Tone.NORMAL), (text[at + 1 :], tone)
    return tuple(piece for piece in pieces if piece[0])


def _cells(share: float, width: int) -> int:
    return 0 if math.isnan(share) else round(max(0.0, min(share, 1.0)) * width)
