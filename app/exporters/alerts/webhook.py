"""Alerts as HTTP requests: `http://` and `https://`, a POST of JSON each."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import ssl
import time
from http import HTTPStatus
from urllib.parse import quote

from app.exporters.alerts.alert import Alert
from app.exporters.alerts.exporter import AlertExporter
from app.exporters.alerts.options import WebhookOptions
from app.exporters.exporter import DeliveryError, RejectedError
from app.exporters.host import ExportHost
from app.files import as_invoker
from bpf.errors import UsageError
from probes.config.trusted_file import check_regular, read_secret

_PATIENCE_S = 5.0
_LATER = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS)


class Webhook:
    """Posts alerts to a URL. With a key, `X-Probedeck-Signature` is `sha256=` and the HMAC of
    `X-Probedeck-Timestamp`, a dot and the body."""

    def __init__(self, host: ExportHost) -> None:
        config, options = host.config, host.config.options
        assert isinstance(options, WebhookOptions)
        self._at = config.host, config.port
        self._path = quote(config.path or "/", safe="/%:=&?+,;@~!$'()*")
        self._tls: ssl.SSLContext | None = None
        if config.kind.scheme == "https":
            try:
                check_regular(options.ca)
                self._tls = ssl.create_default_context(cafile=options.ca or None)
            except OSError as error:
                raise UsageError(f"option ca: {options.ca}: {error.strerror or error}") from None
        self._key = key_of(options.key) if options.key else b""
        self._headers = {"content-type": "application/json", "user-agent": "probedeck"}
        if config.user or config.password:
            both = base64.b64encode(f"{config.user}:{config.password}".encode()).decode()
            self._headers["authorization"] = f"Basic {both}"

    def send(self, alert: Alert) -> None:
        body, headers = alert.json(), dict(self._headers)
        if self._key:
            now = str(int(time.time()))
            signed = hmac.new(self._key, f"{now}.".encode() + body, hashlib.sha256).hexdigest()
            headers |= {"x-probedeck-timestamp": now, "x-probedeck-signature": f"sha256={signed}"}
        if self._tls:
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                *self._at, timeout=_PATIENCE_S, context=self._tls
            )
        else:
            connection = http.client.HTTPConnection(*self._at, timeout=_PATIENCE_S)
        try:
            connection.request("POST", self._path, body, headers)
            status = connection.getresponse().status
        except http.client.HTTPException as error:
            raise DeliveryError(f"no HTTP answer: {type(error).__name__}") from None
        finally:
            connection.close()
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _LATER:
            raise DeliveryError(f"HTTP status {status}")
        if status >= HTTPStatus.MULTIPLE_CHOICES:
            raise RejectedError(f"HTTP status {status}", 1)

    def close(self) -> None:
        """No connection stays open."""


def key_of(path: str) -> bytes:
    """Return the secret in a file. Raises UsageError if others can read it."""
    try:
        with as_invoker():
            key = read_secret(path)
    except OSError as error:
        raise UsageError(f"option key: {path}: {error.strerror}") from None
    if not key:
        hint = "openssl rand -hex 16 makes one"
        raise UsageError(f"option key: {path}: it holds no key", hint=hint)
    return key


def webhook(host: ExportHost) -> AlertExporter:
    return AlertExporter(host, Webhook(host))
