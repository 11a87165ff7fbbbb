"""Bases of detectors: one that forgets, and one whose findings last."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from bpf.arrays import Array, Rows
from probes.path.analysis.flows import MAX_FLOWS, MAX_SERIES, Flows
from probes.path.records import PATH, no_rows

AGAIN_NS = 50_000_000_000
"""A finding that lasts is reported again after so long: explanations know the last minute."""

Table = TypeVar("Table", bound=dict[Any, Any])


class Detector:
    """A part of the analysis, with state of flows and of destinations that it can forget."""

    def __init__(self, flows: Flows) -> None:
        self._flows = flows
        self._arrays: list[Array] = []
        self._tables: list[dict[Any, Any]] = []

    def by_flow(self, dtype: Any, *shape: int, rows: int = MAX_FLOWS) -> Array:
        """Return state of flows, zeros (MAX_FLOWS, *shape)."""
        self._arrays.append(np.zeros((rows, *shape), dtype))
        return self._arrays[-1]

    def by_hop(self, dtype: Any) -> Array:
        """Return state of hops, zeros (MAX_SERIES,)."""
        return self.by_flow(dtype, rows=MAX_SERIES)

    def by_destination(self, table: Table) -> Table:
        """Return the table: its keys are address ids, or tuples that begin with one."""
        self._tables.append(table)
        return table

    def drop(self, places: Array) -> None:
        """Forget flows: their places (n,) get other ones."""
        for array in self._arrays:
            array.reshape(MAX_FLOWS, -1)[places] = np.zeros((), array.dtype)

    def forget(self, destination: int) -> None:
        """Forget an address (its address id)."""
        for table in self._tables:
            for key in [*table]:
                if destination == (key[0] if isinstance(key, tuple) else key):
                    del table[key]


class Lasting(Detector):
    """Reports one lasting finding of each destination: at its begin, again after AGAIN_NS, and at
    its end. The kind of the end is the next number."""

    def __init__(self, flows: Flows) -> None:
        super().__init__(flows)
        self.lasting: dict[int, Rows[PATH]] = self.by_destination({})
        """The newest row of each destination (address id), dtype PATH (1,)."""
        self._told_ns: dict[int, int] = self.by_destination({})

    def last(self, destination: int, row: Rows[PATH], now_ns: int) -> Array:
        """Keep the row of a finding that lasts. Return it if it is to be reported, else no row."""
        self.lasting[destination] = row
        if now_ns - self._told_ns.get(destination, -AGAIN_NS) < AGAIN_NS:
            return no_rows(PATH)
        self._told_ns[destination] = row["at_ns"] = now_ns
        return row.copy()

    def end(self, destination: int, now_ns: int) -> Array:
        """Return the row of the end of a finding, or no row if none lasts."""
        row = self.lasting.get(destination, no_rows(PATH)).copy()
        row["kind"], row["at_ns"] = row["kind"] + 1, now_ns
        for table in (self.lasting, self._told_ns):
            table.pop(destination, None)
        return row
