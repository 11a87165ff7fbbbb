"""Filters of flows, in the language of `probes.filter`.

In the kernel a filter chooses the captured flows; on rows it chooses the shown or written flows; as
sets of packets' parts it selects a policy's packets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from bpf import quantities
from probes.filter import Domain, Filter, fields, parse
from probes.filter.domain import NONE
from probes.filter.owners import OWNER_FIELDS
from probes.flow.records import FlowDirection
from probes.tunnels import TUNNELS


def key_fields(*, named: bool) -> dict[str, fields.Field]:
    """Fields of a flow's key."""
    return {
        "proto": fields.protocol(),
        "port": fields.Ports("either port"),
        "sport": fields.Ports("source port", ("source",)),
        "dport": fields.Ports("destination port", ("destination",)),
        "icmp": fields.IcmpTypes(),
        "id": fields.IcmpIdentifiers(),
        "net": fields.Addresses("either address is within", prefixes_only=True),
        "host": fields.Addresses("either host", named=named),
        "src": fields.Addresses("source host or prefix", ("source",), named=named),
        "dst": fields.Addresses("destination host or prefix", ("destination",), named=named),
        "ip": fields.ip_version(),
    }


BARE = ("proto", "port", "net")
"""Fields of a bare word, if rows have a flow's key."""
_DIRECTIONS = {"in": int(FlowDirection.INGRESS), "out": int(FlowDirection.EGRESS)}
_DSCPS = {
    "le": 1, "ef": 46, "va": 44,
    **{f"cs{n}": 8 * n for n in range(8)},
    **{f"af{n}{drop}": 8 * n + 2 * drop for n in range(1, 5) for drop in range(1, 4)},
}  # fmt: skip
"""Differentiated services (IANA) by name."""
_TUNNELS = {"none": 0, **TUNNELS}
_COUNTED: dict[str, fields.Field] = {
    "dir": fields.Codes("direction", "direction, seen from this host", "direction", _DIRECTIONS),
    "if": fields.InterfaceNames("interface", "interface that counts it", ("eth0", "veth*")),
    "rate": fields.Quantity("bit_rate", "bits per second", quantities.BIT_RATES),
    "packet_rate": fields.Quantity("packet_rate", "packets per second", quantities.RATES),
    "pps": fields.Quantity("packet_rate", "packets per second", quantities.RATES),
    "packets": fields.Quantity("packets", "packets", quantities.COUNTS),
    "bytes": fields.Quantity("bytes", "bytes of frames", quantities.SIZES),
    "flags": fields.Flags(),
    "vlan": fields.Vlans(),
    "tunnel": fields.Codes("tunnel", "kind of the tunnel around it", "kind of tunnel", _TUNNELS),
    "tunnel_id": fields.Quantity("tunnel_id", "id of the tunnel around it, such as a VNI", {}),
    "tos": fields.Quantity("tos", "type of service of the first packet", {}, most=255),
    "dscp": fields.Codes("tos", "DSCP of the first packet", "DSCP", _DSCPS, 64, shift=2),
}
WINDOW_FLOWS = Domain("flows", {**key_fields(named=False), **_COUNTED}, BARE, "host")
"""Flows of a window: dtype FLOW, with columns `bit_rate` and `packet_rate`."""
OWNED_FLOWS = Domain("flows", {**WINDOW_FLOWS.fields, **OWNER_FIELDS}, BARE, "host")
"""The same flows, with the columns of their owners."""
LIVE_FLOWS = Domain(
    "flows",
    {
        **key_fields(named=True),
        **_COUNTED,
        **OWNER_FIELDS,
        "node": fields.Texts("node", "host of the fleet that sees the flow contains the text"),
        "age": fields.times("age", "time since the first packet", "s", column_ns=1),
        "idle": fields.times("idle", "time since the last packet", "s", column_ns=1),
    },
    BARE,
    "host",
)  # fmt: skip
"""dtype LIVE, with columns `age` and `idle` in ns, and the columns of owners."""


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
