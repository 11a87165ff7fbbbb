"""Sizes of the flow tables: as many records as the memory limit allows."""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from bpf.errors import UsageError
from bpf.machine import numbered_cpus, possible_cpus
from probes.flow.records import RECORD, WIDE_RECORD
from probes.memory_limit import limit_for_flows, size_text
from probes.snapshot import LossReason

_TABLES = 4
"""Sets of tables of a probe: two hooks, with two sets each."""
_SET_BYTES = 4
"""Bytes of the index for a record."""
_CACHE_LINE = 64
_LOSSES = len(LossReason) * 16
"""Bytes of one CPU's loss counters."""
_RECORDS = (512, 131072)
"""Fewest and most records of a CPU: a way of the index has 17 bits for a record's number."""
DATAGRAMS = 4096
"""Fragmented datagrams whose ports a probe knows at the same time."""
_DATAGRAMS_BYTES = DATAGRAMS * 128
_RING_SHARE = 5
"""The overflow rings take at most this part of the memory."""
_RINGS = (64 << 10, 8 << 20)
"""Bytes, not pages: a page has 4 to 64 KiB."""


@dataclass(frozen=True, slots=True)
class TableSizes:
    """Sizes of one set of tables; two sets of each hook take turns."""

    records: int
    """Records of one CPU, a power of two."""
    cpus: int = field(default_factory=numbered_cpus)
    """CPUs that have records. Packets of a CPU with a higher number go to the overflow ring."""
    ring: int = _RINGS[1]
    """Bytes of the overflow ring, a power of two and at least a page."""
    wide: bool = False
    """Whether flows of other tunnels or interfaces are other flows."""

    @classmethod
    def within(cls, memory: int, cpus: int | None = None, *, wide: bool = False) -> Self:
        """The largest sizes with which a probe takes at most `memory` bytes.

        `cpus` are the online ones by default. Raises UsageError if the smallest tables take more.
        """
        cpus = numbered_cpus() if cpus is None else cpus
        least = replace(cls.least(cpus), wide=wide)
        if least.memory > memory:
            raise UsageError(
                f"the flow tables of {cpus} CPUs do not fit into {size_text(memory)} "
                "of kernel memory",
                hint=f"--memory must be at least {size_text(limit_for_flows(least.memory))}",
            )
        _, records = _RECORDS
        ring = max(least.ring, min(_RINGS[1], _power_below(memory // (_RING_SHARE * _TABLES))))
        sizes = replace(least, records=records, ring=ring)
        while sizes.records > least.records and sizes.memory > memory:
            sizes = replace(sizes, records=sizes.records // 2)
        while sizes.memory > memory:
            sizes = replace(sizes, ring=sizes.ring // 2)
        return sizes

    @classmethod
    def least(cls, cpus: int | None = None) -> Self:
        """The smallest tables of so many CPUs, by default the online ones."""
        cpus = numbered_cpus() if cpus is None else cpus
        return cls(_RECORDS[0], cpus, max(_RINGS[0], mmap.PAGESIZE))

    @property
    def record(self) -> np.dtype[Any]:
        """`struct flow_record` of flow.c."""
        return WIDE_RECORD if self.wide else RECORD

    @property
    def memory(self) -> int:
        """Bytes of kernel memory of a probe on two hooks."""
        own = self.records * (self.record.itemsize + _SET_BYTES) + _CACHE_LINE
        hooks = _TABLES * (self.cpus * own + self.ring + possible_cpus() * _LOSSES)
        return hooks + _DATAGRAMS_BYTES

    @property
    def summary(self) -> str:
        return (
            f"{size_text(self.memory)} of kernel memory: {self.records} records on each of "
            f"{self.cpus} CPUs, and {size_text(_TABLES * self.ring)} for packets beyond"
        )

    @property
    def sets(self) -> int:
        """8-way sets, a way for each record: at the alarm one set in 4000 has overflowed."""
        return self.records // 8

    @property
    def alarm_at(self) -> int:
        """Records in use at which the program wakes user space to swap early.

        The remaining records must last until user space has drained the other set of tables.
        """
        return self.records // 4

    @property
    def entries(self) -> dict[str, int]:
        """Entries of each table, by the map's name; of a ring its bytes."""
        return {
            "records": self.cpus * self.records,
            "sets": self.cpus * self.sets,
            "cpus": self.cpus,
            "overflow": self.ring,
        }


def _power_below(number: int) -> int:
    return 1 << max(number.bit_length() - 1, 0)
