"""Alerts to logs: the journal's native protocol, and syslog (RFC 5424)."""

from __future__ import annotations

import errno
import os
import socket
import struct
from typing import Any

from app.exporters.alerts.exporter import Alert, AlertExporter
from app.exporters.alerts.options import JournalOptions, SyslogHostOptions, SyslogOptions
from app.exporters.host import ExportHost

_PATIENCE_S = 5.0
_PRIORITIES = {"info": 6, "warning": 4, "error": 3}
"""Severities of syslog (RFC 5424, 6.2.1)."""
_SD_ID = "probedeck@32473"
"""32473 is the enterprise number for documentation (RFC 5612)."""


class LogSocket:
    """A socket that connects when it sends, and again after its peer has gone."""

    def __init__(self, family: int, kind: int, address: Any) -> None:
        self._family, self._kind, self._address = family, kind, address
        self._socket: socket.socket | None = None

    def send(self, data: bytes) -> None:
        """Raises OSError."""
        if self._socket is not None and self._kind == socket.SOCK_STREAM and self._has_ended():
            self.close()
        try:
            if self._socket is None:
                self._socket = self._connect()
            self._socket.sendall(data)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connect(self) -> socket.socket:
        family, address = self._family, self._address
        if family != socket.AF_UNIX:
            host, port = address
            family, _, _, _, address = socket.getaddrinfo(host, port, type=self._kind)[0]
        made = socket.socket(family, self._kind)
        made.settimeout(_PATIENCE_S)
        try:
            made.connect(address)
        except OSError:
            made.close()
            raise
        return made

    def _has_ended(self) -> bool:
        """Whether the peer has closed a connection; syslog's receivers answer nothing."""
        assert self._socket is not None
        try:
            return not self._socket.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True


class Journal:
    """Sends an alert as an entry of the journal (systemd, Native Journal Protocol)."""

    def __init__(self, path: str) -> None:
        self._socket = LogSocket(socket.AF_UNIX, socket.SOCK_DGRAM, path)

    def send(self, alert: Alert) -> None:
        try:
            self._socket.send(journal_entry(alert, evidence=True))
        except OSError as error:
            if error.errno != errno.EMSGSIZE:
                raise
            self._socket.send(journal_entry(alert, evidence=False))

    def close(self) -> None:
        self._socket.close()


def journal_entry(alert: Alert, *, evidence: bool) -> bytes:
    fields = {
        "MESSAGE": alert.text,
        "PRIORITY": str(_PRIORITIES[alert.severity]),
        "SYSLOG_IDENTIFIER": "probedeck",
        "PROBEDECK_SOURCE": alert.source,
        "PROBEDECK_SUBJECT": alert.subject,
        "PROBEDECK_PHASE": alert.phase,
        "PROBEDECK_ALERT": alert.json().decode() if evidence else "",
    }
    return b"".join(_field(name, text.encode()) for name, text in fields.items() if text)


def _field(name: str, value: bytes) -> bytes:
    if b"\n" not in value:
        return name.encode() + b"=" + value + b"\n"
    return name.encode() + b"\n" + struct.pack("<Q", len(value)) + value + b"\n"


class Syslog:
    """Sends an alert as a message of syslog."""

    def __init__(self, connection: LogSocket, facility: int, *, framed: bool) -> None:
        """`framed`: each message begins with its length (RFC 6587, 3.4.1)."""
        self._socket = connection
        self._facility = facility
        self._framed = framed

    def send(self, alert: Alert) -> None:
        message = syslog_message(alert, self._facility)
        self._socket.send(f"{len(message)} ".encode() + message if self._framed else message)

    def close(self) -> None:
        self._socket.close()


def syslog_message(alert: Alert, facility: int) -> bytes:
    """Return a message of RFC 5424; its structured data are source, subject, phase and value."""
    number = facility * 8 + _PRIORITIES[alert.severity]
    data = {"source": alert.source, "subject": alert.subject, "phase": alert.phase,
            "value": "" if alert.value is None else f"{alert.value:g}", "unit": alert.unit,
            "filter": str(alert.evidence.get("filter") or "")}  # fmt: skip
    words = "".join(f' {name}="{_escaped(text)}"' for name, text in data.items() if text)
    kind = "policy" if alert.evidence else "health"
    # At most six digits of a second (RFC 5424, 6.2.3).
    at = f"{alert.time[:26]}Z"
    head = f"<{number}>1 {at} {alert.host} probedeck {os.getpid()} {kind} [{_SD_ID}{words}] "
    text = " ".join(alert.text.split())
    return head.encode() + b"\xef\xbb\xbf" + text.encode()


def _escaped(text: str) -> str:
    for character in '\\"]':
        text = text.replace(character, f"\\{character}")
    return text.replace("\n", " ")


def journal(host: ExportHost) -> AlertExporter:
    options = host.config.options
    assert isinstance(options, JournalOptions)
    return AlertExporter(host, Journal(options.socket))


def syslog(host: ExportHost) -> AlertExporter:
    options = host.config.options
    assert isinstance(options, SyslogHostOptions)
    is_tcp = options.transport == "tcp"
    kind = socket.SOCK_STREAM if is_tcp else socket.SOCK_DGRAM
    connection = LogSocket(socket.AF_INET, kind, (host.config.host, host.config.port))
    return AlertExporter(host, Syslog(connection, options.facility, framed=is_tcp))


def local_syslog(host: ExportHost) -> AlertExporter:
    options = host.config.options
    assert isinstance(options, SyslogOptions)
    connection = LogSocket(socket.AF_UNIX, socket.SOCK_DGRAM, host.config.path)
    return AlertExporter(host, Syslog(connection, options.facility, framed=False))
