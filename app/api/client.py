"""Client of a controller's API, one request a method, and a ControlPlane that follows it."""

from __future__ import annotations

import contextlib
import inspect
import math
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import NoneType
from typing import Any, TypeVar
from urllib.parse import quote

import httpx

from app.api import connection_events, wire
from app.api.address import Access, Remote, trusted
from app.api.models import (
    ControllerStatus,
    PathObject,
    check_stream,
    no_controller,
    parsed,
    refusal,
)
from bpf.errors import Closing, ProbedeckError, UsageError, wait_after
from probes.config.model import ProbeConfig, dump
from probes.config.options import values_of
from probes.control.budget import SOURCE as BUDGET
from probes.control_plane import OutputCalls, RemoteCalls
from probes.monitor.policy import Policy
from probes.monitor.sketch import Sketch
from probes.operation import Caller, Operation
from probes.path.options import PathOptions
from probes.poller import Publisher
from probes.reports import BudgetUse, MemoryUse, OutputControl
from probes.snapshot import Event, HookStatus, Snapshot

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
        path = operation.route
        query = dict(operation.query(*values, **named)) if operation.query else {}
        body = operation.body(*values, **named) if operation.body else None
        given = inspect.signature(operation.method).bind(self, *values, **named).arguments
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
        transport = httpx.HTTPTransport(uds=access.path, verify=False)  # no certificates
    else:
        transport = httpx.HTTPTransport(verify=trusted(access.authorities) if access.tls else False)
    timeout = httpx.Timeout(_PATIENCE_S, connect=5)
    return httpx.Client(
        transport=transport, base_url=access.base, headers=access.headers, timeout=timeout
    )


_SILENCE_S = 10.0
"""Longest silence: the controller sends a sign of life every 2 s."""
_LATE_S = 2.0
"""Least delay of a slow link."""
_ROWS = 100
"""Flows of a window for a screen on a slow link: more than it has lines."""


class RemotePlane(Client, Publisher):
    """A ControlPlane by calls of another host's API; somebody else reads its stream: `take`."""

    def __init__(self, remote: Remote) -> None:
        """Raises UsageError for an impossible address or token. Sends no request yet."""
        super().__init__(remote)
        Publisher.__init__(self)
        self.read_only = ""
        """Why changes are refused, as of the last status."""
        self.unwritten: Mapping[str, int] = {}
        """Rows that the controller could not write, by table, as of its last status."""
        self.late_by = 0.0
        """Of several hosts always 0: their hub reports its connections."""
        self.outputs: OutputControl = RemoteOutputs(self._http)
        self._hooks: tuple[HookStatus, ...] = ()
        self._budget = BudgetUse()
        self.interval = 1.0
        self.capture = ""
        self._generation = 0
        """The flow probe's, to which `interval` and `capture` belong."""
        self._failure: ProbedeckError | None = None

    def unconfined(self) -> str:
        return ""  # the controller itself decides which sources it accepts

    def hook_status(self) -> tuple[HookStatus, ...]:
        return self._hooks

    def budget(self) -> BudgetUse:
        """As of the last status: each step is an event, and events of the budget renew it."""
        return self._budget

    def failure(self) -> ProbedeckError | None:
        return self._failure

    @property
    def path_options(self) -> PathOptions:
        return self._http.ask(PathObject, "GET", "path-options")

    @path_options.setter
    def path_options(self, options: PathOptions) -> None:
        self._http.answer("PUT", "path-options", json=values_of(options))

    def learn(self) -> None:
        """Ask for the status. Raises ProbedeckError."""
        self.apply(self.status())

    def apply(self, status: ControllerStatus) -> None:
        """Keep what a status says of the controller."""
        self.read_only, self._hooks = status.read_only, status.hooks
        self.unwritten = status.unwritten
        self.interval, self.capture = status.interval, status.capture
        self._budget = status.budget

    def take(self, record: wire.WireRecord) -> None:
        """Publish a record of the stream; ask for the status if it tells of another one."""
        if isinstance(record, wire.Lost):
            for event in connection_events.missed(self.url, record):
                self.publish(event)
            return
        if isinstance(record, Snapshot):
            attached = (each for each in record.hooks if each.mode != "monitor")
            newest = {(each.interface, each.hook): each for each in (*self._hooks, *attached)}
            self._hooks = tuple(newest.values())
            if record.probe == "flow" and record.generation != self._generation:
                self.learn()
                self._generation = record.generation
        elif record.source == BUDGET:
            # A step changes the length of windows, too.
            self.learn()
        self.publish(record)


class RemoteController(RemotePlane, Closing):
    """Follows the snapshots and events of a controller, and forwards calls to it.

    A lost connection is retried without end. Records published meanwhile are missing, and an event
    reports that. An unreadable record ends the connection: see `failure`.
    """

    def __init__(self, remote: Remote, *, screen: bool = False, few: bool = False) -> None:
        """A `screen` needs no whole windows that come late: they have the largest flows only, as
        many as it has lines, and very late ones are missing. `few`: all windows are so small.
        Raises ProbedeckError if no controller answers, or if it refuses the token."""
        super().__init__(remote)
        self._query = {"behind": _ROWS} if screen else {}
        self._query |= {"top": _ROWS} if few else {}
        self._packed = screen and not remote.url.startswith("unix:")
        self._is_lost = False
        self._connected: socket.socket | None = None
        self._stopping = threading.Event()
        self._first = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="remote", daemon=True)
        try:
            self.learn()
        except ProbedeckError:
            super().close()
            raise
        self._thread.start()
        # From now on no record is missed.
        self._first.wait()

    def close(self) -> None:
        """End the connection; the probes go on running."""
        self._stopping.set()
        if (connected := self._connected) is not None:
            # This wakes the reading thread.
            with contextlib.suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)
        # The thread may wait for a host that does not answer.
        self._thread.join(2)
        super().close()

    def _follow(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                self._read()
                why = "the controller ended it"
            except (UsageError, wire.MalformedError) as error:
                # A retry would fail the same way.
                self._end(error)
            except ProbedeckError as error:
                why = str(error)
            except Exception as error:
                # A bug here or in a listener: make it visible.
                self._end(ProbedeckError(f"{self.url}: {type(error).__name__}: {error}"))
            finally:
                self._connected, self.late_by = None, 0.0
                self._first.set()
            if self._failure or self._stopping.is_set():
                return
            failures = failures + 1 if self._is_lost else 1
            if not self._is_lost:
                self._is_lost = True
                self.publish(connection_events.lost(self.url, why))
            self._stopping.wait(wait_after(failures))

    def _read(self) -> None:
        decoder = wire.Decoder()
        # Seconds from the end of the last window to its arrival, by the clocks of both hosts; the
        # least of this connection; and the arrival of the first bytes of an incomplete record.
        delay, least, begun = 0.0, math.inf, math.inf
        with self.stream(_SILENCE_S, packed=self._packed, **self._query) as response:
            network = response.extensions["network_stream"]
            self._connected = network.get_extra_info("socket")
            if self._stopping.is_set():
                return
            for part in response.iter_bytes():
                now = time.monotonic()
                if self._is_lost:
                    self.learn()
                    self._is_lost = False
                    self.publish(connection_events.again(self.url))
                self._first.set()
                for record in decoder.feed(part):
                    begun = math.inf
                    if isinstance(record, Snapshot):
                        delay = now - record.end_ns / 1e9
                        least = min(delay, least)
                    self.take(record)
                begun = min(begun, now) if decoder.pending else math.inf
                late = max(delay - least, now - begun)
                self.late_by = late if late > _LATE_S else 0.0

    def _end(self, error: ProbedeckError) -> None:
        self._failure = error
        self.publish(Event.now("error", self.url, str(error)))
