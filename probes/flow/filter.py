"""Filters of flows, in the language of `probes.filter`.

In the kernel a filter chooses the captured flows; on rows it chooses the shown or written flows; as
entries of match+action tables it selects a policy's packets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from probes.filter import Domain, Filter, parse
from probes.filter.domain import NONE
from probes.filter.fields import (
    BIT_RATES,
    PLAIN,
    RATES,
    SIZES,
    Addresses,
    Codes,
    Field,
    Flags,
    Ports,
    Quantity,
    ip_version,
    protocol,
    times,
)
from probes.filter.match import EVERYTHING, KEY_SIZE, Match
from probes.filter.network import PROTOCOLS, address_text, protocol_name
from probes.flow.records import FlowDirection

__all__ = [
    "BARE", "EVERYTHING", "KEY_SIZE", "LIVE_FLOWS", "PROTOCOLS", "WINDOW_FLOWS", "FlowFilter",
    "Match", "address_text", "key_fields", "protocol_name",
]  # fmt: skip


def key_fields(*, named: bool) -> dict[str, Field]:
    """Fields of a flow's key."""
    return {
        "proto": protocol(),
        "port": Ports("either port"),
        "sport": Ports("source port", ("source",)),
        "dport": Ports("destination port", ("destination",)),
        "net": Addresses("either address is within", prefixes_only=True),
        "host": Addresses("either host", named=named),
        "src": Addresses("source host or prefix", ("source",), named=named),
        "dst": Addresses("destination host or prefix", ("destination",), named=named),
        "ip": ip_version(),
    }


BARE = ("proto", "port", "net")
"""Fields of a bare word, if rows have a flow's key."""
_DIRECTIONS = {"in": int(FlowDirection.INGRESS), "out": int(FlowDirection.EGRESS)}
_COUNTED: dict[str, Field] = {
    "dir": Codes("direction", "direction, seen from this host", "direction", _DIRECTIONS),
    "rate": Quantity("bit_rate", "bits per second", BIT_RATES),
    "packet_rate": Quantity("packet_rate", "packets per second", RATES),
    "pps": Quantity("packet_rate", "packets per second", RATES),
    "packets": Quantity("packets", "packets", PLAIN),
    "bytes": Quantity("bytes", "bytes of frames", SIZES),
    "flags": Flags(),
}
WINDOW_FLOWS = Domain("flows", {**key_fields(named=False), **_COUNTED}, BARE, "host")
"""Flows of a window: dtype FLOW, with columns `bit_rate` and `packet_rate`."""
LIVE_FLOWS = Domain(
    "flows",
    {
        **key_fields(named=True),
        **_COUNTED,
        "age": times("age", "time since the first packet", "s", column_ns=1),
        "idle": times("idle", "time since the last packet", "s", column_ns=1),
        "rtt": times("rtt", "round-trip time to the other end, if it is traced", "ms",
                     column_ns=1e9),
    },
    BARE,
    "host",
)  # fmt: skip
"""dtype LIVE, and columns `age` and `idle` in ns, `rtt` in seconds."""


class FlowFilter(Filter):
    """A parsed filter of flows; the empty one passes every flow."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str, saved: Mapping[str, str] = NONE) -> Self:
        """Parse a filter of live flows. Raises TextError, with the column."""
        found = parse(text, LIVE_FLOWS, saved)
        return cls(found.root, found.text)

    @property
    def expanded(self) -> Self:
        """The filter with saved filters replaced by their text."""
        return type(self)(self.root, str(self.root) if self.root is not None else "")
