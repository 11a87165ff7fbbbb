"""From published items to alerts."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from app.outputs.monitor_views import TRIGGERS
from app.outputs.view import is_table, iso
from bpf.arrays import Row
from probes.monitor.records import TRANSITION
from probes.monitor.state import PROBE, TRIGGERS_TABLE, PolicyState
from probes.snapshot import SEVERITIES, Event, Item, Snapshot

_POLICY = "policy "
"""Subjects of events about policies begin so. Rows of transitions say more about them."""


@dataclass(frozen=True, slots=True)
class Alert:
    """A message to people: an event, or a transition of a policy with its evidence."""

    time: str
    """UTC, ISO 8601."""
    host: str
    severity: str
    """info, warning or error."""
    source: str
    subject: str
    phase: str
    """begin or end of something that lasts; otherwise empty."""
    text: str
    value: float | None = None
    unit: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """The row of the table `triggers`: the cause, the window's metrics, and the finding."""

    def json(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def summary(held: int, sources: Sequence[str]) -> Alert:
    """Return an alert about the alerts that the rate limit held back."""
    what = "1 alert was" if held == 1 else f"{held} alerts were"
    text = f"{what} held back in the last minute, of {', '.join(sources)}"
    return Alert(
        iso(time.time_ns()), os.uname().nodename, "warning", "alerts", "held back", "", text, held,
        "alerts",
    )  # fmt: skip


class AlertFilter:
    """Chooses the items that become alerts."""

    def __init__(self, name: str, severity: str, only: Sequence[str]) -> None:
        """`name` is the output's own: its own failures are no alerts. `severity` is the least one,
        `only` the sources; empty: all."""
        self._name = name
        self._least = SEVERITIES.index(severity)
        self._only = only
        self._begun: set[tuple[str, str]] = set()
        """Sources and subjects whose end becomes an alert, too."""
        self._alarms: dict[str, str] = {}
        """Sentence about the last begin of each policy."""

    def count(self, item: Item) -> int:
        """Return how many alerts an item makes. Each published item is counted once, in order."""
        if isinstance(item, Event):
            return self._takes(item)
        if not is_table(item, PROBE, TRIGGERS_TABLE) or not self._is_source(PROBE):
            return 0
        return len(self._transitions(item))

    def alerts(self, item: Item) -> Iterator[Alert]:
        """Yield the alerts of an item that `count` has counted."""
        host = os.uname().nodename
        if isinstance(item, Event):
            yield Alert(
                iso(item.utc_ns), host, item.severity, item.source, item.subject, item.phase,
                item.text, item.value, item.unit,
            )  # fmt: skip
            return
        rows = list(TRIGGERS.records(item, nested=True))
        for number in self._transitions(item):
            evidence = dict(rows[number])
            phase = _phase(item.rows[number])
            severity = "warning" if phase == "begin" else "info"
            name, finding = evidence["policy"], evidence.get("finding")
            text = f"{name} is {evidence['after']}: {evidence['cause']}"
            if finding and evidence["found_packets"]:
                # The evidence has the cause, which is a formula.
                self._alarms[name] = f"{finding}, since {evidence['time'][11:19]} UTC"
                text = f"{name}: {self._alarms[name]}"
            elif finding:
                text += f"; {finding}"
            elif phase == "end" and name in self._alarms:
                text = f"{name} ended: {self._alarms[name]}"
            subject = f"{_POLICY}{name}"
            yield Alert(
                evidence["time"], host, severity, PROBE, subject, phase, text, evidence=evidence
            )

    def _takes(self, event: Event) -> bool:
        key = event.source, event.subject
        own = key == ("output", self._name)
        if own or event.subject.startswith(_POLICY) or not self._is_source(event.source):
            return False
        if event.phase == "end" and key in self._begun:
            self._begun.discard(key)
            return True
        wanted = bool(event.phase) and SEVERITIES.index(event.severity) >= self._least
        if wanted and event.phase == "begin":
            self._begun.add(key)
        return wanted

    def _is_source(self, name: str) -> bool:
        return not self._only or name in self._only

    def _transitions(self, item: Snapshot) -> list[int]:
        """Return the numbers of the rows that begin or end a policy; with `info`, of all rows."""
        if self._least > SEVERITIES.index("warning"):
            return []
        return [
            number for number, row in enumerate(item.rows) if not self._least or _phase(row)
        ]  # fmt: skip


def _phase(row: Row[TRANSITION]) -> str:
    before, after = PolicyState(int(row["before"])).runs, PolicyState(int(row["after"])).runs
    return "" if before == after else "begin" if after else "end"
