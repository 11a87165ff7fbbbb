"""Filters of screen 2, applied to its paths and hops."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

import numpy as np

from app.console.screens.paths.hop import Hop, PathKey
from app.console.screens.paths.hosts import PathHosts
from probes.filter import Filter, RowTable
from probes.filter.table import AddressNames

_PATH = np.dtype(
    [
        ("destination", "u1", (16,)),
        *((name, "u1") for name in ("version", "protocol")),
        *((name, "u2") for name in ("source_port", "destination_port")),
        *((name, "f8") for name in ("hops", "rtt", "loss", "queue")),
        ("node", "O"),
    ]
)
_HOP = np.dtype(
    [
        ("version", "u1"),
        ("responder", "u1", (16,)),
        *((name, "f8") for name in ("hop", "loss", "rtt", "last", "p95", "jitter", "queue")),
    ]
)


def path_table(hosts: PathHosts, names: AddressNames | None = None) -> RowTable:
    """Return the fields of PATHS, a row for each of `hosts.choices`."""
    choices = hosts.choices
    rows = np.zeros(len(choices), _PATH)
    for row, choice in zip(rows, choices, strict=True):
        paths = hosts.of(choice)
        row["node"] = choice.host
        row["version"], row["destination"] = _address(choice.destination)
        flows = (choice.flow,) if choice.flow else paths.flows(choice.destination)
        if len(flows) == 1 and flows[0] is not None:
            row["protocol"], row["source_port"], row["destination_port"] = flows[0]
        summary = paths.summary(choice)
        row["hops"] = summary.length or np.nan
        row["rtt"], row["loss"] = summary.rtt, summary.loss
        row["queue"] = summary.queue[1] / 1e9
    return RowTable(rows, names=names)


def shown_paths(hosts: PathHosts, shown: Filter, names: AddressNames) -> tuple[PathKey, ...]:
    """Return the choices that pass; a destination passes with any of its flows."""
    choices = hosts.choices
    if not shown:
        return choices
    passed = set()
    several = {choice.whole for choice in choices if choice.flow is not None}
    mask = shown.mask(path_table(hosts, names)).tolist()
    for choice, passes in zip(choices, mask, strict=True):
        if passes and (choice.flow is not None or choice not in several):
            passed |= {choice, choice.whole}
    return tuple(choice for choice in choices if choice in passed)


def shown_hops(
    hops: Sequence[Hop], destination: str, shown: Filter, names: AddressNames
) -> list[Hop]:
    """Return the hops that pass; the destination has the number behind its last router's."""
    if not shown:
        return list(hops)
    rows = np.zeros(len(hops), _HOP)
    for row, hop in zip(rows, hops, strict=True):
        row["hop"] = hop.ttl or np.nan
        if hop.is_end or hop.routers:
            responder = destination if hop.is_end else hop.routers[0].address
            row["version"], row["responder"] = _address(responder)
        numbers = hop.numbers
        row["loss"], row["rtt"], row["p95"] = numbers.loss, numbers.median, numbers.p95
        row["jitter"], row["last"], row["queue"] = numbers.jitter, hop.last, hop.queue_ns / 1e9
    passed = shown.mask(RowTable(rows, names=names)).tolist()
    return [hop for hop, passes in zip(hops, passed, strict=True) if passes]


def _address(text: str) -> tuple[int, np.ndarray[tuple[int], np.dtype[np.uint8]]]:
    """Return version, and 16 bytes in network order."""
    address = ipaddress.ip_address(text)
    return address.version, np.frombuffer(address.packed.ljust(16, b"\0"), "u1")
