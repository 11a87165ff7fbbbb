"""Rows that become data records: flows with UTC times, an end reason and their owner."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from app.outputs.view import OwnedFlows
from bpf.arrays import Array, Rows
from probes.flow.records import FLOW, KEY_MASK, KEY_WORDS
from probes.snapshot import Snapshot
from probes.sockets.records import OWNERS_TABLE, SOCKETS_TABLE, Owned

EXPORTED = np.dtype([
    *FLOW.descr,
    ("windows", "u4"), ("owner", "u4"), ("process", "u4"), ("rtt_us", "u4"), ("min_rtt_us", "u4"),
    ("retransmitted", "u4"), ("limit", "u1"), ("reason", "u1"), ("owned_end", "u1"),
    ("end_reason", "u1"), ("zero", "u4"),
])  # fmt: skip
"""An exported flow. The fields of FLOW come first; `first_ns` and `last_ns` are UTC.

- `windows`: rows of windows in it.
- `owner`: number of the owner, as in OWNER; 0: none. `process`: its `tgid`. `owned_end`: bits of
  the template, SOURCE_OWNED or DESTINATION_OWNED; 0 without a socket. `reason`: Reason. The rest is
  of SOCKET.
- `end_reason`: EndReason."""
SOURCE_OWNED, DESTINATION_OWNED = 1 << 4, 2 << 4
_WORDS = EXPORTED.itemsize // 8
_FIN, _RST = 0x01, 0x04
_TCP = 6
_ICMP = (1, 58)


class EndReason(IntEnum):
    """Values of flowEndReason (RFC 5102 section 5.11.3)."""

    IDLE = 1
    ACTIVE = 2
    """The record ends, the flow may go on: also the end of a window."""
    CLOSED = 3
    """A FIN or RST passed."""
    FORCED = 4
    """The export ends."""
    NO_ROOM = 5


def exported(flows: Snapshot, *, owners: bool) -> Rows[EXPORTED]:
    """Return a window of flows as rows (n,) of dtype EXPORTED, in the same order.

    `owners` adds the owner's fields, if the window has its owners.
    """
    rows = np.zeros(len(flows.rows), EXPORTED)
    for name in FLOW.names or ():
        rows[name] = flows.rows[name]
    # Times of both clocks differ by the same number in the whole window.
    offset = flows.end_utc_ns - flows.end_ns
    rows["first_ns"] += offset
    rows["last_ns"] += offset
    rows["windows"] = 1
    closed = (rows["protocol"] == _TCP) & (rows["tcp_flags"] & (_FIN | _RST) != 0)
    rows["end_reason"] = np.where(closed, EndReason.CLOSED, EndReason.ACTIVE)
    if owners and isinstance(flows, OwnedFlows):
        _add_owners(rows, flows)
    return rows


def _add_owners(rows: Rows[EXPORTED], flows: OwnedFlows) -> None:
    sockets = flows.tables[SOCKETS_TABLE].rows
    found = Owned(flows.rows, sockets, flows.tables[OWNERS_TABLE].rows)
    for name in ("owner", "rtt_us", "min_rtt_us", "retransmitted", "limit", "reason"):
        rows[name] = found.field(name)
    rows["process"] = np.append(found.owners["tgid"], np.uint32(0))[found.owner]
    at = np.flatnonzero(found.at >= 0)
    ends, of = rows[at], sockets[found.at[at]]
    # A flow that this host forwards to one of its namespaces has the socket at its other end.
    is_source = (ends["source"] == of["near"]).all(axis=1)
    is_source &= (ends["source_port"] == of["near_port"]) | np.isin(ends["protocol"], _ICMP)
    rows["owned_end"][at] = np.where(is_source, SOURCE_OWNED, DESTINATION_OWNED)


def key_words(rows: Rows[EXPORTED]) -> Array:
    """Return the key of each row of dtype EXPORTED, as words (n, KEY_WORDS)."""
    return rows.view("u8").reshape(len(rows), _WORDS)[:, :KEY_WORDS] & KEY_MASK
