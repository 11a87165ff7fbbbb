"""Series of the monitor's policies."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from app.exporters.openmetrics import families as of
from app.exporters.openmetrics.families import Sample, summed
from app.outputs.view import is_table
from probes.flow.records import Array
from probes.monitor import state
from probes.monitor.state import PolicyState
from probes.snapshot import Snapshot


class PolicySeries:
    """State, value and activations of each policy. A removed policy has no series."""

    def __init__(self) -> None:
        self._rows: dict[str, Array] = {}
        """Of dtype POLICY, of the last window."""
        self._selected: dict[str, int] = {}
        self._activations: dict[str, int] = {}

    def take(self, item: Snapshot) -> None:
        if is_table(item, state.PROBE, state.TRIGGERS_TABLE):
            for row in item.rows:
                before, after = PolicyState(row["before"]), PolicyState(row["after"])
                if after.runs and not before.runs:
                    summed(self._activations, _text(row["policy"]), 1)
        elif is_table(item, state.PROBE, state.POLICIES_TABLE):
            self._rows = {_text(row["policy"]): row for row in item.rows}
            for name, row in self._rows.items():
                summed(self._selected, name, int(row["selected"]))

    def removed(self, probe: str) -> None:
        if probe == state.PROBE:
            self._rows = {}

    def samples(self) -> Iterator[Sample]:
        for totals in (self._selected, self._activations):
            for name in totals.keys() - self._rows.keys():
                del totals[name]
        for name, row in self._rows.items():
            for each in PolicyState:
                label = {of.POLICY_STATE.name: each.label}
                yield of.POLICY_STATE(name, value=int(row["state"] == each), **label)
            yield of.POLICY_ACTIVATIONS(name, value=self._activations.get(name, 0))
            yield of.POLICY_SELECTED(name, value=self._selected[name])
            for field, family in (("value", of.POLICY_VALUE), ("threshold", of.POLICY_THRESHOLD)):
                if np.isfinite(row[field]):
                    yield family(name, value=float(row[field]))


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")
