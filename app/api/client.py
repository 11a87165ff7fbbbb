"""Client of a controller's API: one request a method."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import NoneType
from typing import Any, TypeVar
from urllib.parse import quote

import httpx

from app.api import wire
from app.api.address import Access, Remote, trusted
from app.api.answers import check_stream, no_controller, parsed, refusal
from app.api.models import ControllerStatus
from bpf.errors import ProbedeckError
from probes.config.model import ProbeConfig, dump
from probes.control_plane import (
    Caller,
    MemoryUse,
    Operation,
    OutputCalls,
    RemoteCalls,
    SegmentCalls,
)
from probes.monitor.policy import Policy
from probes.monitor.sketch import Sketch
from probes.reports import BudgetUse
from probes.snapshot import HookStatus, Snapshot

_MAX_ANSWER = 1 << 30
"""Bytes."""
_PATIENCE_S = 60.0
"""Longest time for a whole answer: compiles of other clients may come first."""
_T = TypeVar("_T")


class Transport:
    """Sends requests to a controller, and reads its answers. Every method raises ProbedeckError."""

    def __init__(self, remote: Remote) -> None:
        self.url = remote.url
        self._http = _open(Access.of(remote))

    def close(self) -> None:
        self._http.close()

    def tables(self, method: str, path: str, **query: object) -> tuple[Snapshot, ...]:
        decoder = wire.Decoder()
        answer = self.answer(method, path, params={"format": "binary", **query})
        records = tuple(decoder.feed(answer))
        decoder.end()
        return tuple(record for record in records if isinstance(record, Snapshot))

    def ask(self, kind: type[_T], method: str, path: str, **options: Any) -> _T:
        return parsed(kind, self.answer(method, path, **options), self.url)

    def answer(self, method: str, path: str, **options: Any) -> bytes:
        with self.responding(method, path, **options) as response:
            return _read(response, self.url)

    @contextmanager
    def responding(self, method: str, path: str, **options: Any) -> Iterator[httpx.Response]:
        """Open an answer, before its body is read. `options` are httpx's."""
        try:
            with self._http.stream(method, f"/v1/{path}", **options) as response:
                if not response.is_success:
                    body = _read(response, self.url)
                    raise refusal(response.status_code, response.reason_phrase, body, self.url)
                yield response
        except httpx.HTTPError as error:
            words = str(error) or type(error).__name__
            if not isinstance(error, httpx.ConnectError):
                raise ProbedeckError(f"{self.url}: {words}") from None
            raise no_controller(self.url, words) from None


class _RestCaller(Caller):
    """Makes operations to requests. Every method raises ProbedeckError."""

    def __init__(self, http: Transport) -> None:
        self._http = http

    def _call(self, operation: Operation[..., Any], values: Any, named: Mapping[str, Any]) -> Any:
        path, method = operation.route, operation.method
        query = dict(operation.query(*values, **named)) if operation.query else {}
        body = operation.body(*values, **named) if operation.body else None
        given = inspect.signature(method).bind(self, *values, **named).arguments
        for name, value in list(given.items())[1:]:
            field = "{" + name.removesuffix("_name") + "}"
            if field in path:
                path = path.replace(field, _path(value))
            elif isinstance(value, ProbeConfig | Policy):
                body = dump(value) if isinstance(value, ProbeConfig) else value.dump()
                path = path.replace("{name}", _path(value.name))
            elif operation.body is None and operation.query is None:
                query[name] = value
        kind = operation.answer
        if kind == tuple[Snapshot, ...]:
            return self._http.tables(operation.verb, path, **query)
        options = {"params": query or None} | ({} if body is None else {"json": body})
        if kind in (NoneType, bool):
            self._http.answer(operation.verb, path, **options)
            return kind is bool or None
        if kind is Sketch:
            found = self._http.ask(dict[str, Any], operation.verb, path, **options)
            return Sketch.from_dict(found)
        return self._http.ask(kind, operation.verb, path, **options)


class RemoteOutputs(_RestCaller, OutputCalls):
    """The `OutputControl` of a controller."""


class RemoteSegment(_RestCaller, SegmentCalls):
    """The `SegmentControl` of a controller."""


class Client(_RestCaller, RemoteCalls):
    """A controller's control plane, for any thread. Every method raises ProbedeckError.

    `delete_entry` raises UsageError if the entry does not exist.
    """

    def __init__(self, remote: Remote) -> None:
        super().__init__(Transport(remote))
        self.url = remote.url

    def close(self) -> None:
        self._http.close()

    def status(self) -> ControllerStatus:
        return self._http.ask(ControllerStatus, "GET", "status")

    def hook_status(self) -> tuple[HookStatus, ...]:
        return self.status().hooks

    def memory(self) -> MemoryUse:
        return self.status().memory

    def budget(self) -> BudgetUse:
        return self.status().budget

    def config(self, name: str) -> ProbeConfig:
        return self._http.ask(ProbeConfig, "GET", _path("probes", name, "config"))

    def document(self, name: str, kind: str = "", *, last: bool = False) -> bytes:
        """End the window. Returns its tables in format `kind`, or in the probe's own format.

        `last` ends no window, and returns the tables of the last one.
        """
        query = {"format": kind} if kind else {}
        how = ("GET", "metrics") if last else ("POST", "export")
        return self._http.answer(how[0], _path("probes", name, how[1]), params=query)

    @contextmanager
    def stream(
        self, timeout: float, *, packed: bool = False, **query: int
    ) -> Iterator[httpx.Response]:
        """Stream `wire` records, compressed if `packed`. `query` is described in docs/api.md.

        Raises ProbedeckError after `timeout` seconds of silence.
        """
        with self._http.responding(
            "GET", "stream", timeout=timeout, params=query,
            headers={"accept-encoding": "gzip"} if packed else None,
        ) as response:  # fmt: skip
            check_stream(response.headers.get("content-type", ""), self.url)
            yield response


def _path(*names: str) -> str:
    # Unquoted dots would mean directories.
    return "/".join(quote(name, safe="").replace(".", "%2E") for name in names)


def _read(response: httpx.Response, url: str) -> bytes:
    """Return the body. Requests refuse compression, so a small body stays small."""
    deadline = time.monotonic() + _PATIENCE_S
    body = bytearray()
    for part in response.iter_raw():
        body += part
        if len(body) > _MAX_ANSWER or time.monotonic() > deadline:
            raise ProbedeckError(f"{url} sends too much, or too slowly")
    return bytes(body)


def _open(access: Access) -> httpx.Client:
    if access.path:
        transport = httpx.HTTPTransport(uds=access.path)
    else:
        transport = httpx.HTTPTransport(verify=trusted(access.authorities) if access.tls else False)
    timeout = httpx.Timeout(_PATIENCE_S, connect=5)
    return httpx.Client(
        transport=transport, base_url=access.base, headers=access.headers, timeout=timeout
    )
