"""Flows in groups: conversations, hosts, services and networks.

Of an incoming flow the near end is the destination, of an outgoing flow the source. A conversation
is both directions of near end, far end, protocol, VLAN and tunnel. Each conversation belongs to one
host, one service and one network, so that sums over groups are the sums over flows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bpf.arrays import Array, Rows, halves
from probes.flow.kinds import KINDS as KINDS
from probes.flow.kinds import PREFIXES as PREFIXES
from probes.flow.records import FLOW, FOLDS, FlowDirection, hash_keys
from probes.flow.services import service_ports

GROUP = np.dtype([
    ("near", "u1", (16,)), ("far", "u1", (16,)), ("near_port", ">u2"), ("far_port", ">u2"),
    ("service_port", ">u2"), ("protocol", "u1"), ("version", "u1"), ("tunnel_id", "u4"),
    ("vlan", "u2"), ("tunnel", "u1"), ("prefix", "u1"), ("id", "u8"), ("in_packets", "u8"),
    ("in_bytes", "u8"), ("out_packets", "u8"), ("out_bytes", "u8"), ("first_ns", "i8"),
    ("last_ns", "i8"), ("flows", "u4"), ("tcp_flags", "u1"), ("at_least", "u1"),
    ("zero", "u1", (2,)),
])  # fmt: skip
"""A group. The first six words are its key: a field that is not of the kind's key is 0. `id` is the
key's hash, the same in every window of a run. For ICMP, `near_port` is the identifier and
`far_port` is type * 256 + code; an answer has the numbers of its request. `service_port` is of
conversations and services. `far` has the hosts' and networks' addresses, `near` if they are grouped
by the near end; a network's ends with zeros after `prefix` bits. `flows` counts conversations."""
_KEY_WORDS = 6
_WORDS = GROUP.itemsize // 8
_SUMS = ("in_packets", "in_bytes", "out_packets", "out_bytes")
_OF_FLOWS = ("first_ns", "last_ns", "tcp_flags")
REQUESTS = {1: {0: 8, 14: 13, 16: 15, 18: 17}, 58: {129: 128}}
"""Types of ICMP requests, by the types of their answers."""


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Rows in groups."""

    rows: Rows[GROUP]
    """dtype GROUP, (m,), ascending by `id`."""
    of: Array
    """The place in `rows` of the group of each grouped row, (n,)."""


def group(
    rows: Rows[FLOW], kind: str, prefixes: Sequence[int] = PREFIXES, *, near: bool = False,
    salts: Array | None = None,
) -> Groups:  # fmt: skip
    """Group flows by a kind of KINDS; `rows` (n,) has the fields of dtype FLOW.

    `near` groups hosts and networks by the near address in place of the far one. Lower bounds are
    known if `rows` has the field `at_least`. Flows with different `salts` (n,) u8 are in different
    conversations; an `id` is then the hash of the key, XOR the salt.
    """
    single = _single(rows)
    labels = None if salts is None else hash_keys(_words(single)[:, :_KEY_WORDS]) ^ salts
    conversations = _merged(single, labels)
    conversations.rows["flows"] = 1
    return regroup(conversations, kind, prefixes, near=near)


def regroup(
    conversations: Groups, kind: str, prefixes: Sequence[int] = PREFIXES, *, near: bool = False
) -> Groups:
    """Group conversations by another kind, for less work than `group`: `of` is of their flows."""
    if kind == "conversations":
        return conversations
    source = conversations.rows
    rows = np.zeros(len(source), GROUP)
    _words(rows)[:, _KEY_WORDS:] = _words(source)[:, _KEY_WORDS:]
    if kind == "services":
        for name in ("protocol", "service_port"):
            rows[name] = source[name]
    else:
        end = "near" if near else "far"
        rows["version"], rows[end] = source["version"], source[end]
        if kind == "networks":
            rows["prefix"] = np.where(rows["version"] == 4, *prefixes)
            rows[end] &= _masks(prefixes)[(rows["version"] == 6).astype("u1")]
    groups = _merged(rows)
    return Groups(groups.rows, groups.of[conversations.of])


def relabel(conversations: Groups, labels: Array) -> Groups:
    """Group conversations by numbers (m,) u8 of labels; `of` is of their flows.

    The key of a row is 0, and its `id` the label.
    """
    rows = np.zeros(len(conversations.rows), GROUP)
    _words(rows)[:, _KEY_WORDS:] = _words(conversations.rows)[:, _KEY_WORDS:]
    groups = _merged(rows, labels)
    return Groups(groups.rows, groups.of[conversations.of])


def _single(rows: Array) -> Rows[GROUP]:
    """Each flow as a conversation, (n,) of dtype GROUP."""
    made = np.zeros(len(rows), GROUP)
    leaves = rows["direction"] == FlowDirection.EGRESS
    words = _words(made)
    source, destination = (halves(rows[end]) for end in ("source", "destination"))
    of_leaves = leaves[:, None]
    words[:, 0:2] = np.where(of_leaves, source, destination)
    words[:, 2:4] = np.where(of_leaves, destination, source)
    for name in ("protocol", "version", "vlan", "tunnel", "tunnel_id"):
        made[name] = rows[name]
    protocol = rows["protocol"]
    # As native numbers: np.where of big-endian ones takes twice the time.
    first, last = (rows[f"{end}_port"].astype("u2") for end in ("source", "destination"))
    is_icmp = np.isin(protocol, tuple(REQUESTS))
    forward = leaves | is_icmp
    near, far = np.where(forward, first, last), np.where(forward, last, first)
    made["service_port"] = service_ports(protocol, near, far)
    for number, types in REQUESTS.items():
        for answer, request in types.items():
            far[(protocol == number) & (far == answer << 8)] = request << 8
    made["near_port"], made["far_port"] = near, far
    for name, field, is_ours in (("in", "packets", ~leaves), ("out", "packets", leaves),
                                 ("in", "bytes", ~leaves), ("out", "bytes", leaves)):  # fmt: skip
        made[f"{name}_{field}"] = rows[field] * is_ours
    for name in _OF_FLOWS:
        made[name] = rows[name]
    if "at_least" in (rows.dtype.names or ()):
        made["at_least"] = rows["at_least"] != 0
    return made


def _merged(rows: Rows[GROUP], labels: Array | None = None) -> Groups:
    """Merge rows (n,) of dtype GROUP that have the same label, or by default the same key."""
    ids = hash_keys(_words(rows)[:, :_KEY_WORDS]) if labels is None else labels
    order = np.argsort(ids)
    sorted_ids = ids[order]
    begins = np.ones(len(rows), bool)
    begins[1:] = sorted_ids[1:] != sorted_ids[:-1]
    of = np.empty(len(rows), "i8")
    of[order] = np.cumsum(begins) - 1
    starts = np.flatnonzero(begins)
    merged = rows.take(order[starts])
    merged["id"] = sorted_ids[starts]
    if len(starts) < len(rows):
        folds = dict.fromkeys((*_SUMS, "flows"), np.add) | {name: FOLDS[name] for name in _OF_FLOWS}
        for name, fold in (folds | {"at_least": np.bitwise_or}).items():
            merged[name] = fold.reduceat(rows[name].take(order), starts)
    return Groups(merged, of)


def _words(rows: Rows[GROUP]) -> Array:
    """Return the memory of rows of dtype GROUP as 64-bit words (n, 14)."""
    return rows.view("u8").reshape(len(rows), _WORDS)


def _masks(prefixes: Sequence[int]) -> Array:
    """Masks (2, 16) u1 of networks of IPv4 and IPv6."""
    bits = np.arange(128) < np.array(prefixes)[:, None]
    return np.packbits(bits, axis=1)
