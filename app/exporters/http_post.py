"""Requests of outputs: POST by `http://` or `https://`, and the meaning of an answer."""

from __future__ import annotations

import base64
import http.client
import ssl
import time
from collections.abc import Container, Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from urllib.parse import quote

from app.exporters.exporter import DeliveryError, RejectedError
from app.exporters.kinds import ExporterConfig
from app.files import as_invoker
from bpf.errors import UsageError
from probes.config.trusted_file import check_regular, read_secret

_PATIENCE_S = 5.0
_LONGEST_WAIT_S = 300.0
_LONGEST_ANSWER = 1 << 16


class HttpPost:
    """Sends requests to the host of an output, one connection each."""

    def __init__(self, config: ExporterConfig, ca: str, later: Container[int]) -> None:
        """`ca` is a file of authorities, or empty; requests with a status of `later` are sent
        again. Raises UsageError for a file that can't be read."""
        self._at = config.host, config.port
        self._path = quote(config.path, safe="/%:=&?+,;@~!$'()*")
        self._later = later
        self._tls: ssl.SSLContext | None = None
        if config.kind.scheme.endswith("https"):
            try:
                check_regular(ca)
                self._tls = ssl.create_default_context(cafile=ca or None)
            except OSError as error:
                raise UsageError(f"option ca: {ca}: {error.strerror or error}") from None
        self._headers = {"user-agent": "probedeck"}
        if config.user or config.password:
            both = base64.b64encode(f"{config.user}:{config.password}".encode()).decode()
            self._headers["authorization"] = f"Basic {both}"

    def send(self, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        """Return the answer to a request; `path` goes behind the URL's own.

        Raises DeliveryError or OSError if the request is to be sent again, RejectedError if not.
        """
        if self._tls:
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                *self._at, timeout=_PATIENCE_S, context=self._tls
            )
        else:
            connection = http.client.HTTPConnection(*self._at, timeout=_PATIENCE_S)
        try:
            where = self._path.rstrip("/") + path if path else self._path or "/"
            connection.request("POST", where, body, {**self._headers, **headers})
            answer = connection.getresponse()
            status, text = answer.status, answer.read(_LONGEST_ANSWER)
        except http.client.HTTPException as error:
            raise DeliveryError(f"no HTTP answer: {type(error).__name__}") from None
        finally:
            connection.close()
        if status in self._later:
            wait_s = _seconds(answer.getheader("retry-after", ""))
            raise DeliveryError(f"HTTP status {status}", wait_s=wait_s)
        if status >= HTTPStatus.MULTIPLE_CHOICES:
            raise RejectedError(f"HTTP status {status}", 1)
        return text


def _seconds(text: str) -> float:
    """Return the seconds of a header Retry-After, a number or a date; 0 for anything else."""
    try:
        seconds = (
            float(text) if text.isdecimal()
            else parsedate_to_datetime(text).timestamp() - time.time()
        )  # fmt: skip
    except ValueError:
        return 0.0
    return min(max(seconds, 0.0), _LONGEST_WAIT_S)


def secret_of(option: str, path: str) -> bytes:
    """Return the content of an option's file. Raises UsageError if others can read it."""
    try:
        with as_invoker():
            return read_secret(path)
    except OSError as error:
        raise UsageError(f"option {option}: {path}: {error.strerror}") from None
