"""Metrics of the packets that a filter selects, and their values in a window."""

from __future__ import annotations

from typing import NamedTuple

from probes.monitor.owners.text import is_of_owners

UNITS = {
    "packets": "packets",
    "bytes": "bytes",
    "flows": "flows",
    "sources": "sources",
    "destinations": "destinations",
    "ports": "ports",
    "source_ports": "ports",
    "recent_sources": "sources",
    "recent_destinations": "destinations",
    "recent_ports": "ports",
    "single_flows": "flows",
    "short_flows": "flows",
    "answered_flows": "flows",
    "unanswered_flows": "flows",
    "top_source": "ratio",
    "top_destination": "ratio",
    "top_port": "ratio",
    "top_source_port": "ratio",
}
"""Unit of each metric that a selection can have. `flows`, `sources`, `destinations`, `ports`
(destination ports) and `source_ports` count distinct values, `recent_...` in the last 60 windows
together. `single_flows` have one packet,
`short_flows` at most two. `answered_flows` have packets of both directions in the selection, and
count once; `unanswered_flows` have one direction. `top_...` is the largest share of the selection's
packets that one of them has."""

RECENT = {
    "recent_sources": "sources",
    "recent_destinations": "destinations",
    "recent_ports": "ports",
}
"""Metrics of the last 60 windows together, by the metric of one window."""
OUT = "out_"
"""Before the name of a metric of outgoing packets; others are of incoming ones."""
_ANSWERS = ("answered_flows", "unanswered_flows")
"""Metrics of packets of both directions."""
UNITS |= {f"{OUT}{name}": unit for name, unit in UNITS.items() if name not in _ANSWERS}

OWNER_METRICS = ("packets", "bytes", "flows", "retransmissions")
"""Metrics that a selection of owners can have. `retransmissions` is the retransmitted share of the
segments that TCP sockets sent."""
SOCKET_METRICS = ("owned", "retransmissions")
"""Metrics without a selection that the socket probe knows. `owned` is the share of the bytes
of this host that have an owner, see `probes.sockets.records.owned_share`."""


class SelectedMetric(NamedTuple):
    """A metric of a selection of packets, which the kernel counts while a policy needs it; or of
    owners."""

    name: str
    """One of UNITS, OWNER_METRICS or SOCKET_METRICS."""
    selection: str
    """Canonical text of the filter, of packets or of owners; empty: all packets."""

    @property
    def outgoing(self) -> bool:
        """Whether outgoing packets count, and incoming ones do not."""
        return self.name.startswith(OUT)

    @property
    def leaves(self) -> bool:
        """Whether outgoing packets count."""
        return self.outgoing or self.name in _ANSWERS

    @property
    def is_recent(self) -> bool:
        """Whether it is of the last windows together."""
        return self.name.removeprefix(OUT) in RECENT

    @property
    def of_owners(self) -> bool:
        """Whether the socket probe knows it, not the kernel's counters."""
        return self.name in SOCKET_METRICS or is_of_owners(self.selection)

    def mean(self, of: Estimate, windows: int) -> Estimate:
        """Return a value of several windows as the mean of one. Shares, and values of the last
        windows, are the same."""
        if self.is_recent or UNITS.get(self.name) == "ratio":
            return of
        return Estimate(*(each / windows for each in of))

    def __str__(self) -> str:
        return f"{self.name} on {self.selection}" if self.selection else self.name


class Estimate(NamedTuple):
    """A metric's value in a window, with its limits at 95 % confidence; counts are exact."""

    value: float
    low: float
    high: float


NOTHING = Estimate(0.0, 0.0, 0.0)
"""The value of a window without packets."""
