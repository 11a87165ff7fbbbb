"""Owners and TCP health of rows, as columns for filters, order and groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from bpf.arrays import Array, Rows
from probes.filter.table import Coded
from probes.sockets.records import OWNER, SOCKET, Reason, owners_of, sockets_of
from probes.tables.flow_columns import OWNER_COLUMNS

OWNER_TEXTS = {column.name: column.owner for column in OWNER_COLUMNS}
"""Columns of texts, and their fields of OWNER."""


class Owned:
    """The socket and the owner of each of some rows (n,).

    The columns of `probes.filter.owners`, and numbers of the sockets: 0 or NaN if unknown.
    """

    salts: Array | None = None
    """Numbers (n,) u8 that tell flows of several hosts apart; None: the flows are of one host."""
    nodes: Mapping[int, str] = MappingProxyType({})
    """Names of these hosts, by their numbers."""

    def __init__(
        self, rows: Array, sockets: Rows[SOCKET], owners: Rows[OWNER], at: Array | None = None
    ) -> None:
        """`rows` (n,) have the fields of dtype FLOW, `sockets` (m,) of SOCKET, `owners` (k,) are
        of dtype OWNER, ascending by number. `at` has the sockets of the rows, if they are known."""
        self.sockets, self.owners = sockets, owners
        self.at = sockets_of(rows, sockets) if at is None else at
        """Places in `sockets`; -1: none."""

    def field(self, name: str) -> Array:
        """Return a field of SOCKET for each row, (n,); 0 without a socket."""
        found = np.zeros(len(self.at), self.sockets.dtype[name])
        known = self.at >= 0
        found[known] = self.sockets[name][self.at[known]]
        return found

    @cached_property
    def _owner_of_socket(self) -> NDArray[np.int64]:
        """Places in `owners` of the owners of the sockets, (m + 1,); the last is of no socket."""
        found = np.append(owners_of(self.sockets, self.owners), -1)
        return np.where(found < 0, len(self.owners), found)

    def owner_of_socket(self, place: int) -> int:
        """Return the place in `owners` of the owner of a socket; k: none."""
        return int(self._owner_of_socket[place])

    @cached_property
    def owner(self) -> NDArray[np.int64]:
        """Places in `owners`, (n,); k: none."""
        found: NDArray[np.int64] = self._owner_of_socket[self.at]
        return found

    @cached_property
    def reason(self) -> Array:
        """Reason of each row, (n,)."""
        return np.append(self.sockets["reason"], np.uint8(Reason.NOT_ASKED))[self.at]

    def texts(self, column: str) -> Coded:
        """Return a column of OWNER_TEXTS; empty without an owner."""
        fields = self.owners[OWNER_TEXTS[column]].tolist()
        return Coded(self.owner, [*(one.decode(errors="replace") for one in fields), ""])

    @property
    def columns(self) -> Mapping[str, Callable[[], Array]]:
        """Columns of numbers (n,), computed on use: `rtt` in seconds, `retrans` a share."""
        plain = {name: partial(self.field, name) for name in ("limit", "cwnd", "by")}
        return {
            **plain,
            "reason": lambda: self.reason,
            "pid": lambda: np.append(self.owners["tgid"], np.uint32(0))[self.owner],
            "rtt": lambda: _known(self.field("rtt_us") / 1e6),
            "delivery": lambda: self.field("delivery_rate") * 8.0,
            "retrans": self.retransmitted,
        }

    @property
    def coded(self) -> Mapping[str, Callable[[], Coded]]:
        """Columns of texts, computed on use."""
        return {name: partial(self.texts, name) for name in OWNER_TEXTS}

    def retransmitted(self) -> NDArray[np.float64]:
        """Return the share of retransmitted segments, (n,); NaN without segments.

        It is of the window, or of some seconds if the sockets have these fields.
        """
        of = "recent_" if "recent_segments" in (self.sockets.dtype.names or ()) else ""
        sent, again = (self.field(of + name) for name in ("segments", "retransmitted"))
        return np.where(sent > 0, again / np.maximum(sent, 1e-9), np.nan)


def _known(values: Array) -> NDArray[np.float64]:
    return np.where(values > 0, values, np.nan)
