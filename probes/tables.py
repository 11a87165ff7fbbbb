"""Tables of metrics: what the bytes of a map's keys and values mean, and their conversion (S1.10)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class TableKind(StrEnum):
    """What a map's entries are to a reader."""

    HASH = "hash"
    ARRAY = "array"
    LPM = "lpm"
    """Keys are prefixes."""
    QUEUE = "queue"
    STACK = "stack"
    HISTOGRAM = "histogram"
    """BPF_HISTOGRAM: keys are slots."""


@dataclass(frozen=True, slots=True)
class TableSchema:
    """What the rows of a metric are: dtype `[("key", K), ("value", V)]` or, for each CPU's value
    apart, `[("key", K), ("value", V, (CPUs,))]`."""

    kind: TableKind
    help: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    """What a field is beyond its C type, by path: `{"key.saddr": "ipv4"}`."""
    names: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """Names of numbers, by path: of the enumerators of an enum."""
