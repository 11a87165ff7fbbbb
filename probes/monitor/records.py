"""Rows of the monitor: metrics of each window, states of policies, and transitions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bpf.arrays import Array, Rows

PROTOCOLS = {"tcp": "TCP", "udp": "UDP", "icmp": "ICMP and ICMPv6"}
"""Protocols with metrics of their own."""


class MetricColumn(NamedTuple):
    """A metric of each window, and its column in every table."""

    name: str
    meaning: str
    series: tuple[str, ...] = ()
    """Name of its family at /metrics, and its labels after the interface; empty: it has none."""
    type: str = "u8"
    flags: tuple[int, int] | None = None
    """If it counts packets by their flags: those that it compares, and those that must be set."""


_FIN, _SYN, _RST, _ACK, _FRAGMENT = 0x01, 0x02, 0x04, 0x10, 0x40
"""TCP flags, and FRAGMENT of sketch.h."""
METRIC_COLUMNS = (
    MetricColumn("packets", "all frames, also frames without IP"),
    MetricColumn("bytes", "of all frames, without FCS"),
    *(MetricColumn(f"{protocol}_{unit}", words, (f"monitor_{unit}", protocol))
      for protocol, words in PROTOCOLS.items() for unit in ("packets", "bytes")),
    MetricColumn("flows", "distinct 5-tuples, estimated", ("sketch_flows",), "f8"),
    MetricColumn("flows_low", "least number of flows at 95 % confidence", ("sketch_flows_low",),
                 "f8"),
    MetricColumn("flows_high", "largest number of flows at 95 % confidence",
                 ("sketch_flows_high",), "f8"),
    MetricColumn("syn_packets", "TCP with SYN and without ACK", ("monitor_tcp_packets", "syn"),
                 flags=(_SYN | _ACK, _SYN)),
    MetricColumn("syn_ack_packets", "TCP with SYN and ACK", ("monitor_tcp_packets", "syn_ack"),
                 flags=(_SYN | _ACK, _SYN | _ACK)),
    MetricColumn("fin_packets", "TCP with FIN", ("monitor_tcp_packets", "fin"),
                 flags=(_FIN, _FIN)),
    MetricColumn("rst_packets", "TCP with RST", ("monitor_tcp_packets", "rst"),
                 flags=(_RST, _RST)),
    MetricColumn("fragment_packets", "fragments of IP datagrams, also the first ones",
                 ("monitor_fragments",), flags=(_FRAGMENT, _FRAGMENT)),
    MetricColumn("protocols", "number of IP protocols seen", ("monitor_protocols",)),
    MetricColumn("arp_request_packets", "requests of ARP for IPv4"),
    MetricColumn("arp_reply_packets", "replies of ARP for IPv4"),
)  # fmt: skip
SCHEMAS = {"metrics": 3, "triggers": 3}
"""Numbers of the schemas of the tables with these columns."""
METRIC = np.dtype([(one.name, one.type) for one in METRIC_COLUMNS])
"""One window, one row (S2.6, S2.7). ICMP is of both IP versions."""


def of_others(rows: Rows[METRIC], unit: str) -> Array:
    """Return the packets or bytes (n,) that are of none of PROTOCOLS, of rows of dtype METRIC."""
    return rows[unit] - sum(rows[f"{protocol}_{unit}"] for protocol in PROTOCOLS)


POLICY = np.dtype([
    ("policy", "S64"), ("state", "u1"), ("holds", "u1"), ("certain", "u1"), ("_", "V5"),
    ("since_ns", "i8"), ("value", "f8"), ("low", "f8"), ("high", "f8"), ("threshold", "f8"),
    ("selected", "u8"), ("acted", "u8"), ("unit", "S8"), ("comparison", "S128"),
])  # fmt: skip
"""A policy's state after a window, one row a policy. `since_ns` is when it entered the state
(CLOCK_MONOTONIC). `holds`: the evaluated condition holds (in ACTIVE `deactivate`, if there is one);
`certain`: it does at both ends of the error band, too. `value`, `low`, `high` and `threshold` are
the two sides of the deciding comparison, NaN without one. `comparison` is its text, and `unit` its
unit without a prefix; the values are in bytes also if it is of bits. `selected` counts the packets
of this window that the policy gave to its applications, and `acted` those that its action dropped
or mirrored, or would have in a dry run."""

TRANSITION = np.dtype([
    ("policy", "S64"), ("before", "u1"), ("after", "u1"), ("_", "V6"), ("at_ns", "i8"),
    ("cause", "S256"), ("metrics", METRIC),
    ("finding", "S400"), ("filter", "S256"), ("found_packets", "u8"), ("found_bytes", "u8"),
    ("found_flows", "u8"), ("found_lost", "u8"), ("found_seconds", "f8"),
    ("sources", "u8"), ("top_source", "S48"), ("top_source_share", "f8"),
    ("destinations", "u8"), ("top_destination", "S48"), ("top_destination_share", "f8"),
    ("source_ports", "u8"), ("top_source_port", "S16"), ("top_source_port_share", "f8"),
    ("ports", "u8"), ("top_port", "S16"), ("top_port_share", "f8"),
    ("protocol", "S16"), ("flags", "S40"),
])  # fmt: skip
"""One transition of a policy: its time (CLOCK_MONOTONIC), the cause with its values, and the
metrics of the window that caused it (zero if an operator did). If it begins the policy, a Finding
of `probes.monitor.finding` follows: the number of distinct values of each part, and the largest."""
