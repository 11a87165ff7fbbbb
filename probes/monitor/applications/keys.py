"""Keys chosen by macros (bpf/include/key.h), as text."""

from __future__ import annotations

from bpf.arrays import Array
from probes.filter.hosts import protocol_name
from probes.monitor.applications.top_table import Cell, Macros, addresses

_PARTS = {
    "source": "KEY_SOURCE",
    "source port": "KEY_SOURCE_PORT",
    "destination": "KEY_DESTINATION",
    "destination port": "KEY_DESTINATION_PORT",
    "protocol": "KEY_PROTOCOL",
}
"""Possible parts of a key, and the macro of each."""


def parts(define: Macros) -> tuple[str, ...]:
    return tuple(part for part, macro in _PARTS.items() if define[macro])


def columns(define: Macros, keys: Array) -> list[list[Cell]]:
    """The parts of `struct key` (n,), each a list of n; a network as `192.0.2.0/24`."""
    return [_column(define, keys, part) for part in parts(define)]


def texts(define: Macros, keys: Array) -> list[str]:
    """Each key in one phrase: `source 192.0.2.1, destination port 53`."""
    names = parts(define)
    rows = zip(*columns(define, keys), strict=True)
    return [", ".join(f"{n} {c}" for n, c in zip(names, row, strict=True)) for row in rows]


def _column(define: Macros, keys: Array, part: str) -> list[Cell]:
    if part == "protocol":
        return [protocol_name(number) for number in keys["protocol"].tolist()]
    if part.endswith("port"):
        ports: list[Cell] = keys[part.replace(" ", "_")].tolist()
        return ports
    return [_network(define, text) for text in addresses(keys[part])]


def _network(define: Macros, address: str) -> str:
    length, whole = (define["PREFIX_V6"], 128) if ":" in address else (define["PREFIX_V4"], 32)
    return address if length >= whole else f"{address}/{length}"
