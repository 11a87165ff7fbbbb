"""Rows of the monitor: metrics of each window, states of policies, and transitions."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]

METRIC = np.dtype([
    ("packets", "u8"), ("bytes", "u8"), ("tcp_packets", "u8"), ("tcp_bytes", "u8"),
    ("udp_packets", "u8"), ("udp_bytes", "u8"), ("icmp_packets", "u8"), ("icmp_bytes", "u8"),
    ("flows", "f8"), ("flows_low", "f8"), ("flows_high", "f8"),
    ("syn_packets", "u8"), ("syn_ack_packets", "u8"), ("fin_packets", "u8"), ("rst_packets", "u8"),
    ("fragment_packets", "u8"), ("protocols", "u8"),
    ("arp_request_packets", "u8"), ("arp_reply_packets", "u8"),
])  # fmt: skip
"""One window, one row (S2.6, S2.7). `packets` and `bytes` are of all frames, also non-IP; ICMP is
of both IP versions. `flows` estimates the number of distinct 5-tuples; it lies between `flows_low`
and `flows_high` with 95 % confidence. `syn_packets` are SYNs without ACK; `fragment_packets` are
fragments, the first ones included; `protocols` is the number of IP protocols seen. ARP is of IPv4.
"""

POLICY = np.dtype([
    ("policy", "S64"), ("state", "u1"), ("holds", "u1"), ("certain", "u1"), ("_", "V5"),
    ("since_ns", "i8"), ("value", "f8"), ("low", "f8"), ("high", "f8"), ("threshold", "f8"),
    ("selected", "u8"), ("unit", "S8"), ("comparison", "S128"),
])  # fmt: skip
"""A policy's state after a window, one row a policy. `since_ns` is when it entered the state
(CLOCK_MONOTONIC). `holds`: the evaluated condition holds (in ACTIVE `deactivate`, if there is one);
`certain`: it does at both ends of the error band, too. `value`, `low`, `high` and `threshold` are
the two sides of the deciding comparison, NaN without one. `comparison` is its text, and `unit` its
unit without a prefix; the values are in bytes also if it is of bits. `selected` counts the packets
of this window that the policy gave to its applications."""

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
