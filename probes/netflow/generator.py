"""Generates one readable C program from NetFlow features, for further edits.

`netflow.c.in` is the adaptive program with all features. After a line `//: NAMES`, lines
are kept only if one of NAMES holds: a feature, or a condition such as `NO_KEY`.

Flows are in one hash that all CPUs share, and counted by atomic operations. A per-CPU
hash is as fast, 76 ns a packet against 75, but its creation takes 25 times as long, and no single
`agg` suits counters, flags, first and last times.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Literal, get_args

Feature = Literal[
    "INPUT_SNMP",
    "OUTPUT_SNMP",
    "SRC_AS",
    "DST_AS",
    "IN_PKTS",
    "IN_BYTES",
    "IPV4_SRC_ADDR",
    "IPV4_DST_ADDR",
    "PROTOCOL",
    "SRC_TOS",
    "L4_SRC_PORT",
    "L4_DST_PORT",
    "TCP_FLAGS",
    "FIRST_SWITCHED",
    "LAST_SWITCHED",
]
FEATURES: tuple[Feature, ...] = get_args(Feature)
"""In the order of the paper, which numbers them from 1 (S1.30)."""
ADDRESSES = frozenset({"IPV4_SRC_ADDR", "IPV4_DST_ADDR"})
KEYS = ADDRESSES | {"PROTOCOL", "SRC_TOS", "L4_SRC_PORT", "L4_DST_PORT"}
"""Features that identify a flow; all others describe it."""
IP_FEATURES = KEYS | {"SRC_AS", "DST_AS", "TCP_FLAGS"}
"""Features that need a parsed packet, and exist for IPv4 only."""


class Method(StrEnum):
    """Methods of selection (S1.31)."""

    FULLY_ADAPTIVE = "fully-adaptive"
    """The program has only the chosen features; another choice replaces the program."""
    ADAPTIVE = "adaptive"
    """The program has all features; for each packet a map tells which are on."""
    NON_ADAPTIVE = "non-adaptive"
    """The program has all features, always on."""


MAP = "flows"
"""Name of the map of flows."""
_TEMPLATE = Path(__file__).with_name("netflow.c.in")
_DIRECTIVE = "//:"
_GUARD = re.compile(r"if \(ON\(\w+\)\)\n +|ON\(\w+\) && ")


def source(features: Collection[Feature], method: Method = Method.FULLY_ADAPTIVE) -> str:
    """Return a program that counts flows by `features`, one or more in any order.

    In an adaptive program they are on at first. A non-adaptive one has all features.
    """
    has = _compiled_in(features, method)
    text = "\n".join(_lines_for(_names(has, method)))
    if method is Method.ADAPTIVE:
        on = sum(1 << number for number, name in enumerate(FEATURES) if name in features)
        text = text.replace("INITIAL 0x7fff", f"INITIAL {on:#x}")
    else:
        text = _GUARD.sub("", text)
    return f"{_head(has)}\n{text}\n"


def describe(features: Collection[Feature], method: Method = Method.FULLY_ADAPTIVE) -> str:
    """Return the help text of the metric: its counters and its keys."""
    has = _compiled_in(features, method)
    values = ", ".join(name for name in has if name not in KEYS) or "flows"
    keys = ", ".join(name for name in has if name in KEYS)
    return f"NetFlow v9: {values} {f'by {keys}' if keys else 'of all packets'}"


def field_types(
    features: Collection[Feature], method: Method = Method.FULLY_ADAPTIVE
) -> dict[str, str]:
    """Return the types of the map's fields beyond C, by path."""
    return {f"key.{name}": "ipv4" for name in _compiled_in(features, method) if name in ADDRESSES}


def _compiled_in(features: Collection[Feature], method: Method) -> list[Feature]:
    fully = method is Method.FULLY_ADAPTIVE
    return [name for name in FEATURES if name in features or not fully]


def _names(has: Collection[Feature], method: Method) -> set[str]:
    """Return the names after `//:` that hold."""
    return {
        *has,
        "IP" if IP_FEATURES.intersection(has) else "NO_IP",
        "KEY" if KEYS.intersection(has) else "NO_KEY",
        *(["NO_VALUE"] if KEYS.issuperset(has) else []),
        *(["ADAPTIVE"] if method is Method.ADAPTIVE else []),
    }


def _lines_for(names: set[str]) -> Iterator[str]:
    wanted = True
    for line in _TEMPLATE.read_text(encoding="utf-8").splitlines():
        if line.startswith(_DIRECTIVE):
            needs = line.removeprefix(_DIRECTIVE).split()
            wanted = not needs or not names.isdisjoint(needs)
        elif wanted:
            yield line


def _head(has: Collection[Feature]) -> str:
    words = f"NetFlow v9 features: {', '.join(has)}."
    if IP_FEATURES.intersection(has):
        words += " They are of IPv4; of other packets, only how many there were is kept."
    words += " Made from a list of features; edit it as any other source."
    lines = textwrap.wrap(words, 97, break_on_hyphens=False)
    return "\n".join(["/*", *(f" * {line}" for line in lines), " */"])
