"""Receivers of alerts: a web server, and sockets of logs; events and transitions for them."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np

from probes.monitor.records import TRANSITION
from probes.monitor.state import PROBE, TRIGGERS_TABLE, PolicyState
from probes.snapshot import Event, Snapshot
from tests.support.console.feed import window

FINDING = "10.0.0.9 floods 192.0.2.1:443"


def health(phase: str, source: str = "flow", subject: str = "losses") -> Event:
    severity = "warning" if phase == "begin" else "info"
    return Event.now(severity, source, f"{subject} {phase}", subject, phase, 12.0, "packets")


def transitions(*states: tuple[PolicyState, PolicyState]) -> Snapshot:
    rows = np.zeros(len(states), TRANSITION)
    rows["policy"], rows["cause"] = b"flood", b"flows 900 > 500"
    for row, (before, after) in zip(rows, states, strict=True):
        row["before"], row["after"] = before, after
        if after is PolicyState.ACTIVE:
            row["finding"], row["filter"], row["found_packets"] = FINDING, "src:10.0.0.9", 77
    made = window(np.zeros(0, np.uint8), 1)
    return replace(made, probe=PROBE, metric=TRIGGERS_TABLE, rows=rows)


class _Server(HTTPServer):
    def handle_error(self, *_: object) -> None:
        """Print nothing: a sender may refuse the certificate."""


class Web:
    """A web server that keeps requests, and answers with `statuses` and `bodies`, the last ones
    again, and with `headers`."""

    def __init__(self, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.got: list[tuple[str, dict[str, str], bytes]] = []
        self.statuses = [200]
        self.bodies = [b""]
        self.headers: dict[str, str] = {}
        web = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): text for name, text in self.headers.items()}
                web.got.append((self.path, headers, body))
                status = web.statuses.pop(0) if len(web.statuses) > 1 else web.statuses[0]
                self.send_response(status)
                for name, text in web.headers.items():
                    self.send_header(name, text)
                self.end_headers()
                self.wfile.write(web.bodies.pop(0) if len(web.bodies) > 1 else web.bodies[0])

            def log_message(self, *_: object) -> None:
                pass

        self.server = _Server(("127.0.0.1", port), Handler)
        if tls is not None:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_port
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


@contextmanager
def web(port: int = 0, tls: ssl.SSLContext | None = None) -> Iterator[Web]:
    made = Web(port, tls)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def log(path: Path) -> Iterator[socket.socket]:
    """A socket for datagrams, as the journal's and syslog's."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(path))
        made.settimeout(5)
        yield made
