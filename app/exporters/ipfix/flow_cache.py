"""Flows that go on over windows, until a timeout ends their record."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from app.exporters.ipfix.records import EXPORTED, EndReason, key_words
from bpf.arrays import Array, Rows
from probes.flow.records import FOLDS, OF_FIRST_PACKET, groups_of, hash_keys

MOST_FLOWS = 1 << 17
"""Flows that are kept, 14 MB; the oldest end beyond them."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """When a record ends."""

    active_ns: int
    """Time from its first packet."""
    idle_ns: int
    """Time from its last packet."""


class FlowCache:
    """The flows of one interface whose records have not ended."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._rows: Rows[EXPORTED] = np.empty(0, EXPORTED)
        self._cut_ns = 0
        """End of the last window that the CPU budget cut, UTC: a flow is not known to be idle."""

    def add(self, rows: Rows[EXPORTED], now_ns: int, *, cut: bool = False) -> Rows[EXPORTED]:
        """Add a window (n,) of dtype EXPORTED, and return the rows whose records end.

        `now_ns` is the window's end, UTC; the CPU budget may have `cut` it.
        """
        self._cut_ns = now_ns if cut else self._cut_ns
        self._rows = _merged(np.concatenate((self._rows, rows)))
        return self.expire(now_ns)

    def expire(self, now_ns: int) -> Array:
        """Return the rows whose records end at `now_ns`, UTC."""
        rows = self._rows
        idle = now_ns - rows["last_ns"] >= self._timeouts.idle_ns
        active = now_ns - rows["first_ns"] >= self._timeouts.active_ns
        closed = rows["end_reason"] == EndReason.CLOSED
        ends = idle | active | closed
        known = [closed, idle & (rows["last_ns"] >= self._cut_ns), active]
        reasons = np.select(known, [*map(int, _BY_TIME)], EndReason.NO_ROOM)
        over = len(rows) - int(ends.sum()) - MOST_FLOWS
        if over > 0:
            staying = np.flatnonzero(~ends)
            ends[staying[np.argsort(rows["last_ns"][staying], kind="stable")[:over]]] = True
        ended: Array = rows[ends]
        ended["end_reason"] = reasons[ends]
        self._rows = rows[~ends]
        return ended

    def flush(self) -> Array:
        """Return all rows: the export ends."""
        rows, self._rows = self._rows, np.empty(0, EXPORTED)
        rows["end_reason"] = np.where(
            rows["end_reason"] == EndReason.CLOSED, EndReason.CLOSED, EndReason.FORCED
        )
        return rows


_BY_TIME = (EndReason.CLOSED, EndReason.IDLE, EndReason.ACTIVE)


def _merged(rows: Rows[EXPORTED]) -> Array:
    """Merge rows of one key; the older ones of a key come first."""
    keys = key_words(rows)
    order, starts = groups_of(keys, hash_keys(keys), stable=True)
    if len(starts) >= len(rows):
        return rows
    last = np.append(starts[1:], len(rows)) - 1
    rows = rows[order]
    merged: Array = rows[last]
    for name in OF_FIRST_PACKET:
        merged[name] = rows[name][starts]
    for name, fold in (FOLDS | dict.fromkeys(("windows", "retransmitted"), np.add)).items():
        merged[name] = fold.reduceat(rows[name], starts)
    return merged
