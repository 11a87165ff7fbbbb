"""The output `openmetrics://HOST:PORT`: it listens, and scrapers come."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler

from app.exporters.host import ExportHost
from app.exporters.openmetrics.exposition import control_samples, exposition
from app.exporters.openmetrics.metric_state import MetricState
from app.exporters.openmetrics.options import OpenMetricsOptions
from probes.snapshot import Item

Page = Callable[[str], tuple[bytes, str]]
"""From the header `Accept` to a text and its media type."""
PATH = "/metrics"
_PATIENCE_S = 5.0
"""Time for a scraper to send its request, and to take the answer."""
_MOST = 8
"""Scrapers at a time; others find their connections closed."""


class MetricsServer(socketserver.ThreadingTCPServer):
    """Serves one page by its threads, until it is closed."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = _MOST

    def __init__(self, host: str, port: int, page: Page) -> None:
        """Listen on an address. Raises OSError."""
        (found, *_) = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        self.address_family = found[0]
        self.page = page
        self._free = threading.BoundedSemaphore(_MOST)
        super().__init__((str(found[4][0]), port), _Request)
        self._thread = threading.Thread(target=self.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def process_request(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """A scraper that breaks its connection is no event."""

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()


class _Request(BaseHTTPRequestHandler):
    timeout = _PATIENCE_S
    server: MetricsServer

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != PATH:
            self.send_error(HTTPStatus.NOT_FOUND, f"only {PATH}")
            return
        text, media_type = self.server.page(self.headers.get("accept", ""))
        self.send_response(HTTPStatus.OK)
        self.send_header("content-type", media_type)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def version_string(self) -> str:
        return "probedeck"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Scrapers come all the time."""


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
