"""Filters of screen 2, applied to its paths and hops."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

import numpy as np

from app.console.screens.paths.hop import Hop, PathKey
from app.console.screens.paths.model import Paths
from probes.filter import Filter, RowTable
from probes.filter.table import AddressNames

_PATH = np.dtype(
    [
        ("destination", "u1", (16,)),
        *((name, "u1") for name in ("version", "protocol")),
        *((name, "u2") for name in ("source_port", "destination_port")),
        *((name, "f8") for name in ("hops", "rtt", "loss", "queue")),
    ]
)
_HOP = np.dtype(
    [
        ("version", "u1"),
        ("responder", "u1", (16,)),
        *((name, "f8") for name in ("hop", "loss", "rtt", "last", "p95", "jitter", "queue")),
    ]
)


def path_table(paths: Paths, names: AddressNames | None = None) -> RowTable:
    """Return the fields of PATHS, a row for each of `paths.choices`."""
    rows = np.zeros(len(paths.choices), _PATH)
    for row, choice in zip(rows, paths.choices, strict=True):
        row["version"], row["destination"] = _address(choice.destination)
        flows = (choice.flow,) if choice.flow else paths.flows(choice.destination)
        if len(flows) == 1 and flows[0] is not None:
            row["protocol"], row["source_port"], row["destination_port"] = flows[0]
        summary = paths.summary(choice)
        row["hops"] = summary.length or np.nan
        row["rtt"], row["loss"] = summary.rtt, summary.loss
        row["queue"] = summary.queue[1] / 1e9
    return RowTable(rows, names=names)


def shown_paths(paths: Paths, shown: Filter, names: AddressNames) -> tuple[PathKey, ...]:
    """Return the choices that pass; a destination passes with any of its flows."""
    if not shown:
        return paths.choices
    passed = set()
    several = {choice.destination for choice in paths.choices if choice.flow is not None}
    mask = shown.mask(path_table(paths, names)).tolist()
    for choice, passes in zip(paths.choices, mask, strict=True):
        if passes and (choice.flow is not None or choice.destination not in several):
            passed |= {choice, PathKey(choice.destination)}
    return tuple(choice for choice in paths.choices if choice in passed)


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
