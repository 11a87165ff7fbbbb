"""Delivers alerts, one after another, at a limited rate."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from itertools import islice
from typing import Protocol

from app.exporters.alerts.alert import Alert, AlertFilter, summary
from app.exporters.alerts.options import AlertOptions
from app.exporters.exporter import DeliveryError, RejectedError, words_of
from app.exporters.host import ExportHost
from probes.snapshot import Item

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
                raise DeliveryError(error.message, number) from None
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
