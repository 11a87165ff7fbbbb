"""From published items to alerts, delivered one after another at a limited rate."""

from __future__ import annotations

import json
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any, Protocol

from app.exporters.alerts.options import AlertOptions
from app.exporters.exporter import DeliveryError, RejectedError, words_of
from app.exporters.host import ExportHost
from app.outputs.monitor_views import TRIGGERS
from app.outputs.view import is_table, iso
from probes.monitor.state import PROBE, TRIGGERS_TABLE, phase_of
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
            phase = phase_of(item.rows["before"][number], item.rows["after"][number])
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

    def leaves_out(self, event: Event) -> bool:
        """Whether an event repeats a row of a transition, or is about this output."""
        own = (event.source, event.subject) == ("output", self._name)
        return own or event.subject.startswith(_POLICY)

    def _takes(self, event: Event) -> bool:
        key = event.source, event.subject
        if self.leaves_out(event) or not self._is_source(event.source):
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
            number
            for number, row in enumerate(item.rows)
            if not self._least or phase_of(row["before"], row["after"])
        ]  # fmt: skip


HELD = "held back"
_MINUTE_S = 60.0


class AlertSender(Protocol):
    """Sends one alert to its receiver."""

    def send(self, alert: Alert) -> None:
        """Raises DeliveryError or OSError to be called again, RejectedError to give up."""

    def close(self) -> None: ...


class AlertExporter:
    """An Exporter of alerts."""

    def __init__(
        self, host: ExportHost, sender: AlertSender, clock: Callable[[], float] = time.monotonic
    ) -> None:
        options = host.config.options
        assert isinstance(options, AlertOptions)
        self._filter = AlertFilter(host.config.name, options.severity, options.only)
        self._sender = sender
        self._most = options.most
        self._lost = host.lost
        self._clock = clock
        self._sent: deque[float] = deque()
        """Times of the alerts of the last minute."""
        self._held: Counter[str] = Counter()
        """Alerts that were held back, by source."""
        self._summary_due = 0.0

    def records(self, item: Item) -> int:
        return self._filter.count(item)

    def open(self) -> None:
        """Senders connect when they send."""

    def deliver(self, item: Item, skip: int) -> None:
        for number, alert in enumerate(islice(self._filter.alerts(item), skip, None), skip):
            if not self._has_room():
                self._hold(alert)
                continue
            try:
                self._sender.send(alert)
            except RejectedError as error:
                raise RejectedError(error.message, 1, number, error.reason) from None
            except DeliveryError as error:
                raise DeliveryError(error.message, number, error.wait_s) from None
            except OSError as error:
                raise DeliveryError(words_of(error), number) from None
            self._sent.append(self._clock())

    def tick(self) -> None:
        if self._held and self._clock() >= self._summary_due:
            self._sender.send(summary(self._held.total(), sorted(self._held)))
            self._held.clear()

    def close(self) -> None:
        if self._held:
            self._sender.send(summary(self._held.total(), sorted(self._held)))
        self._sender.close()

    def _has_room(self) -> bool:
        now = self._clock()
        while self._sent and self._sent[0] <= now - _MINUTE_S:
            self._sent.popleft()
        return len(self._sent) < self._most

    def _hold(self, alert: Alert) -> None:
        if not self._held:
            self._summary_due = self._clock() + _MINUTE_S
        self._held[alert.source] += 1
        self._lost(1, HELD)
