"""The paths of flows: their keys for path tracing, and their round-trip times."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from app.console.live.paths import PathView
from app.console.screens.paths.hop import PathKey
from bpf.arrays import Array, Row, Rows
from bpf.errors import UsageError
from probes.filter.hosts import address_text, protocol_name
from probes.flow.records import FLOW, FlowDirection, hash_keys
from probes.path.analysis.flows import words_of
from probes.path.analysis.statistics import Ordered
from probes.path.options import TracedFlow
from probes.path.records import DESTINATION_HOP

_WORDS = 5
"""Words of a flow's key; the last one has ports, protocol and version."""
_TRANSPORT = np.uint64((1 << 48) - 1)
_NO_PORTS = np.uint64(0xFFFF_0000_0000)
_LOW, _PORT = np.uint64(0xFFFF), np.uint64(16)
ECHO_TYPES = {1: (0, 8), 58: (128, 129)}
"""Types of echo replies and requests, by protocol: all identifiers are one flow."""

Medians = tuple[Array, NDArray[np.float64]]
"""Hashes (m,) of traced flows, ascending, and their RTTs in seconds."""
_NO_MEDIANS: Medians = (np.empty(0, "u8"), np.empty(0))


class Rtts:
    """Medians of the last minute on the paths of a view, computed once a second."""

    def __init__(self) -> None:
        self._of = -1, -1
        self._medians: Medians = _NO_MEDIANS

    def medians(self, paths: PathView) -> Medians:
        """`path_medians`."""
        of = paths.generation, paths.second
        if of != self._of:
            self._of, self._medians = of, path_medians(paths)
        return self._medians


def flow_rtts(rows: Array, keys: Array, medians: Array) -> NDArray[np.float64]:
    """Return the RTT in seconds (n,) of flows of dtype LIVE; NaN for untraced flows."""
    found = np.full(len(rows), np.nan)
    if len(keys):
        own = _path_keys(rows)
        at = np.searchsorted(keys, own)
        at[at == len(keys)] = 0
        traced = keys[at] == own
        found[traced] = medians[at[traced]]
    return found


def path_medians(paths: PathView) -> Medians:
    """Return the known RTTs of traced flows to their destinations."""
    whole = (paths.series["hop"] == DESTINATION_HOP) | paths.arrived
    series = paths.series[whole & (paths.series["last_ns"] >= 0)]
    if not len(series):
        return _NO_MEDIANS
    words = words_of(series)[:, :_WORDS].copy()
    words[:, 4] &= _TRANSPORT
    _leave_ports_out(words, np.isin(series["protocol"], list(ECHO_TYPES)))
    keys = hash_keys(words)
    # Round trips of the flow itself, which come last, rather than probes.
    order = np.lexsort((series["hop"], keys))
    keys, ids = keys[order], series["id"][order]
    last = np.append(keys[1:] != keys[:-1], True)
    keys, ids = keys[last], ids[last]
    samples = paths.samples(np.sort(ids))
    samples = samples[samples["rtt_ns"] >= 0]
    if not len(samples):
        return _NO_MEDIANS
    places = np.argsort(ids)
    of = places[np.searchsorted(ids, samples["id"], sorter=places)]
    ordered = Ordered.of(of, samples["rtt_ns"])
    return keys[ordered.series], ordered.quantile(0.5) / 1e9


def _path_keys(rows: Rows[FLOW]) -> Array:
    """Return hashes (n,) of the flows of outgoing packets, as path tracing has them."""
    words = words_of(rows)
    swapped = rows["direction"] == FlowDirection.EGRESS
    keys = np.empty((len(rows), _WORDS), "u8")
    keys[:, :2] = np.where(swapped[:, None], words[:, 2:4], words[:, :2])
    keys[:, 2:4] = np.where(swapped[:, None], words[:, :2], words[:, 2:4])
    transport = words[:, 4] & _TRANSPORT
    # An answer goes to the source port of the incoming packet.
    back = transport & ~np.uint64(0xFFFF_FFFF) | (transport & _LOW) << _PORT
    back |= transport >> _PORT & _LOW
    keys[:, 4] = np.where(swapped, transport, back)
    for protocol, types in ECHO_TYPES.items():
        kind = rows["destination_port"] >> 8
        _leave_ports_out(keys, (rows["protocol"] == protocol) & np.isin(kind, types))
    return hash_keys(keys)


def _leave_ports_out(words: Array, which: Array) -> None:
    words[which, 4] &= _NO_PORTS


def path_of(row: Row[FLOW]) -> PathKey:
    """Return the path of a flow's outgoing packets. Raises UsageError if it cannot be traced.

    `row` is of dtype FLOW or LIVE. The path of an incoming flow is the path of its answers.
    """
    if row["tunnel"]:
        raise UsageError("this flow is inside a tunnel", hint="trace the tunnel's own flow")
    protocol = int(row["protocol"])
    leaves = row["direction"] == FlowDirection.EGRESS
    near, far = ("source", "destination") if leaves else ("destination", "source")
    address = address_text(row[far].tobytes(), int(row["version"]))
    if protocol in (6, 17):
        flow = TracedFlow(protocol, int(row[f"{near}_port"]), int(row[f"{far}_port"]))
    elif int(row["destination_port"]) >> 8 in ECHO_TYPES.get(protocol, ()):
        flow = TracedFlow(protocol, 0, 0)
    else:
        name = protocol_name(protocol)
        raise UsageError(
            f"this {name} flow has no path to trace", hint="TCP, UDP and ICMP echo have one"
        )
    return PathKey(address, flow)
