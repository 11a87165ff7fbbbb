"""A socket's verdict in an operator's words, with the number that decided."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bpf.arrays import Row, Rows
from bpf.quantities import bit_rate, byte_size, duration, percent
from probes.sockets.records import SOCKET, Limit

_LOSES = 0.005
"""A connection that loses more than this share of its segments says so, whatever limits it."""
_FEW = 10
"""Segments."""


def limit_text(row: Row[SOCKET]) -> str:
    """Return the verdict of a row of dtype SOCKET: `queue +80.0 ms`; empty if it is unknown.

    Another limit than loss names losses of the window, too: `application, loses 2.1 %`.
    """
    limit = Limit(int(row["limit"]))
    if limit is Limit.UNKNOWN:
        return ""
    share = lost_share(row)
    return _WORDS[limit](row) + (f", loses {percent(share)}" if loses(limit, share) else "")


def loses(limit: Limit, share: float) -> bool:
    """Whether the share of lost segments is worth a word beside the verdict."""
    return share > _LOSES and limit not in (Limit.LOSS, Limit.NO_ANSWER)


def retransmitted_share(rows: Rows[SOCKET] | Row[SOCKET]) -> float:
    """Return retransmitted of sent segments of a row, or of rows, of dtype SOCKET: 0 to 1.

    The share of a few segments tells nothing, and is 0.
    """
    segments = int(np.sum(rows["segments"]))
    return min(1.0, int(np.sum(rows["retransmitted"])) / segments) if segments >= _FEW else 0.0


def lost_share(rows: Rows[SOCKET] | Row[SOCKET]) -> float:
    """Return the share like `retransmitted_share`, without segments sent again for nothing."""
    retransmitted, segments = int(np.sum(rows["retransmitted"])), int(np.sum(rows["segments"]))
    lost = retransmitted - int(np.sum(rows["needless"]))
    return min(1.0, max(0, lost) / segments) if segments >= _FEW else 0.0


def _loss(row: Row[SOCKET]) -> str:
    # The losses of the last seconds decide, and this window may have none.
    share = lost_share(row)
    return f"loss {percent(share)}" if share else "loss"


def _receiver(row: Row[SOCKET]) -> str:
    # The last seconds decide, and the window of this row may have been open.
    return f"peer's window {percent(row['rwnd'])}" if row["rwnd"] >= 0.01 else "peer's window"


def _reads_slowly(row: Row[SOCKET]) -> str:
    waits = int(row["rqueue"])
    if row["drops"]:
        return f"reads slowly, {int(row['drops'])} dropped"
    return f"reads slowly, {byte_size(waits)} wait" if waits else "reads slowly"


_WORDS: dict[Limit, Callable[[Any], str]] = {
    Limit.IDLE: lambda row: "idle",
    Limit.APPLICATION: lambda row: "application",
    Limit.RECEIVER: _receiver,
    Limit.SEND_BUFFER: lambda row: "send buffer",
    Limit.PACED: lambda row: f"paced {bit_rate(8 * int(row['delivery_rate']))}",
    Limit.QUEUE: lambda row: f"queue +{duration(row['queue_us'] / 1e6)}",
    Limit.LOSS: _loss,
    Limit.BANDWIDTH: lambda row: f"bandwidth {bit_rate(8 * int(row['delivery_rate']))}",
    Limit.READS_SLOWLY: _reads_slowly,
    Limit.LOST_BEFORE: lambda row: "lost before here",
    Limit.SENDER: lambda row: "peer sends no faster",
    Limit.NO_ANSWER: lambda row: "no answer",
    Limit.REFUSED: lambda row: "refused",
}
