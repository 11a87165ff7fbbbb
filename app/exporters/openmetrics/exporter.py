"""The output `openmetrics://HOST:PORT`: it listens, and scrapers come."""

from __future__ import annotations

from app.exporters.host import ExportHost
from app.exporters.openmetrics.exposition import control_samples, exposition
from app.exporters.openmetrics.metric_state import MetricState
from app.exporters.openmetrics.options import OpenMetricsOptions
from app.exporters.openmetrics.server import MetricsServer
from probes.snapshot import Item


class OpenMetricsExporter:
    """Keeps the present values of all series, and serves them. An item is one record."""

    def __init__(self, host: ExportHost) -> None:
        options = host.config.options
        assert isinstance(options, OpenMetricsOptions)
        self._address = host.config.host, host.config.port
        self._plane = host.plane
        self._state = MetricState(options.owners)
        self._server: MetricsServer | None = None

    def records(self, item: Item) -> int:
        return 1

    def open(self) -> None:
        if self._server is None:
            self._server = MetricsServer(*self._address, self._page)

    def deliver(self, item: Item, skip: int) -> None:
        self._state.take(item)

    def tick(self) -> None:
        """Nothing is due by time."""

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    def _page(self, accept: str) -> tuple[bytes, str]:
        return exposition(accept, self._state.samples, lambda: control_samples(self._plane))
