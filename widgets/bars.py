"""Bars in a cell: behind a text, and as a gauge with a limit."""

from __future__ import annotations

import math

from widgets.table.columns import cell
from widgets.table.rows import Pieces
from widgets.tones import Tone, Way

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
