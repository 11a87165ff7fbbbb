"""A socket's verdict in an operator's words, with the number that decided."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from probes.sockets.records import Limit

_LOSES = 0.005
"""A connection that retransmits more than this share of its segments loses, whatever limits it."""
_FEW = 10
"""Segments."""


def limit_text(row: Any) -> str:
    """Return the verdict of a row of dtype SOCKET: `queue +80 ms`; empty if it is unknown.

    Another limit than loss names losses of the window, too: `application, loses 2.1 %`.
    """
    limit = Limit(int(row["limit"]))
    if limit is Limit.UNKNOWN:
        return ""
    share = retransmitted_share(row)
    return _WORDS[limit](row) + (f", loses {percent(share)}" if loses(limit, share) else "")


def loses(limit: Limit, share: float) -> bool:
    """Whether the share of retransmitted segments is worth a word beside the verdict."""
    return share > _LOSES and limit not in (Limit.LOSS, Limit.NO_ANSWER)


def retransmitted_share(rows: Any) -> float:
    """Return retransmitted of sent segments of a row, or of rows, of dtype SOCKET: 0 to 1.

    The share of a few segments tells nothing, and is 0.
    """
    segments = int(np.sum(rows["segments"]))
    return min(1.0, int(np.sum(rows["retransmitted"])) / segments) if segments >= _FEW else 0.0


def percent(share: float) -> str:
    """`0 %`, `0.12 %`, `1.2 %`, `12 %`."""
    value = share * 100
    places = 0 if value == 0 or value >= 9.95 else 1 if value >= 0.995 else 2
    return f"{value:.{places}f} %"


def span(microseconds: float) -> str:
    """`250 us`, `8.2 ms`, `80 ms`, `1.2 s`."""
    for unit, scale in (("us", 1.0), ("ms", 1e3)):
        if microseconds / scale < 999.5:
            return _three(microseconds / scale, unit)
    return f"{microseconds / 1e6:.1f} s"


def size(count: float, unit: str = "B") -> str:
    """`512 B`, `64 kB`, `1.2 MB`: decimal prefixes."""
    for prefix in ("", "k", "M", "G"):
        if count < 999.5:
            return _three(count, prefix + unit)
        count /= 1000
    return _three(count, "T" + unit)


def rate(bytes_per_second: float) -> str:
    """`8.2 Mbit/s`."""
    return size(bytes_per_second * 8, "bit/s")


def _three(value: float, unit: str) -> str:
    whole = value >= 9.95 or value == int(value)
    return f"{value:.0f} {unit}" if whole else f"{value:.1f} {unit}"


def _loss(row: Any) -> str:
    # The losses of the last seconds decide, and this window may have none.
    share = retransmitted_share(row)
    return f"loss {percent(share)}" if share else "loss"


def _receiver(row: Any) -> str:
    # The last seconds decide, and the window of this row may have been open.
    return f"peer's window {percent(row['rwnd'])}" if row["rwnd"] >= 0.01 else "peer's window"


def _reads_slowly(row: Any) -> str:
    waits = int(row["rqueue"])
    if row["drops"]:
        return f"reads slowly, {int(row['drops'])} dropped"
    return f"reads slowly, {size(waits)} wait" if waits else "reads slowly"


_WORDS: dict[Limit, Callable[[Any], str]] = {
    Limit.IDLE: lambda row: "idle",
    Limit.APPLICATION: lambda row: "application",
    Limit.RECEIVER: _receiver,
    Limit.SEND_BUFFER: lambda row: "send buffer",
    Limit.PACED: lambda row: f"paced {rate(row['delivery_rate'])}",
    Limit.QUEUE: lambda row: f"queue +{span(row['queue_us'])}",
    Limit.LOSS: _loss,
    Limit.BANDWIDTH: lambda row: f"bandwidth {rate(row['delivery_rate'])}",
    Limit.READS_SLOWLY: _reads_slowly,
    Limit.LOST_BEFORE: lambda row: "lost before here",
    Limit.SENDER: lambda row: "peer sends no faster",
    Limit.NO_ANSWER: lambda row: "no answer",
    Limit.REFUSED: lambda row: "refused",
}
