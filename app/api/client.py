"""Client of a controller's API: one request a method."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast
from urllib.parse import quote

import httpx

from app.api import wire
from app.api.address import Access, Remote, trusted
from app.api.answers import check_stream, no_controller, parsed, refusal
from app.api.models import ControllerStatus
from bpf.errors import ProbedeckError
from probes.config.model import ProbeConfig, dump
from probes.control_plane import (
    MOST_ROWS,
    Check,
    Cost,
    Entry,
    MemoryUse,
    ProbeInfo,
    Replacement,
    Value,
)
from probes.flow.filter import FlowFilter
from probes.monitor.info import MonitorInfo, PolicyInfo
from probes.monitor.policy import Policy
from probes.monitor.sketch import Sketch
from probes.path.options import OwnFlow, TracedFlow
from probes.path.traced import Traced
from probes.reports import MapReadings
from probes.snapshot import HookStatus, Snapshot

_MAX_ANSWER = 1 << 30
"""Bytes."""
_PATIENCE_S = 60.0
"""Longest time for a whole answer: compiles of other clients may come first."""
_POLICIES = ("monitor", "policies")
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


class Client:
    """A controller's control plane, for any thread. Every method raises ProbedeckError."""

    def __init__(self, remote: Remote) -> None:
        self.url = remote.url
        self._http = Transport(remote)

    def close(self) -> None:
        self._http.close()

    def status(self) -> ControllerStatus:
        return self._http.ask(ControllerStatus, "GET", "status")

    def hook_status(self) -> tuple[HookStatus, ...]:
        return self.status().hooks

    def memory(self) -> MemoryUse:
        return self.status().memory

    def probes(self) -> tuple[ProbeInfo, ...]:
        return self._http.ask(tuple[ProbeInfo, ...], "GET", "probes")

    def config(self, name: str) -> ProbeConfig:
        return self._http.ask(ProbeConfig, "GET", _path("probes", name, "config"))

    def check(self, config: ProbeConfig) -> Check:
        return self._http.ask(Check, "POST", "compile", json=dump(config))

    def add(self, config: ProbeConfig, *, force: bool = False) -> ProbeInfo:
        return self._http.ask(
            ProbeInfo, "POST", "probes", json=dump(config), params={"force": force}
        )

    def replace(self, config: ProbeConfig, *, force: bool = False) -> Replacement:
        path, query = _path("probes", config.name), {"force": force}
        return self._http.ask(Replacement, "PUT", path, json=dump(config), params=query)

    def roll_back(self, name: str) -> Replacement:
        return self._http.ask(Replacement, "POST", _path("probes", name, "rollback"))

    def reconfigure(self, capture: FlowFilter) -> Replacement:
        return self._http.ask(Replacement, "PUT", "capture", json={"filter": capture.text})

    def trace(
        self, destination: str, flow: TracedFlow | None = None, own: OwnFlow | None = None
    ) -> None:
        chosen = flow and flow._asdict()
        wanted = {"destination": destination, "flow": chosen, "own": str(own or "")}
        self._http.answer("POST", "paths", json=wanted)

    def untrace(self, destination: str, flow: TracedFlow | None = None) -> None:
        self._http.answer("DELETE", _path("paths", destination), params=flow and flow._asdict())

    def traced(self) -> tuple[Traced, ...]:
        return self._http.ask(tuple[Traced, ...], "GET", "paths")

    def monitor(self) -> MonitorInfo | None:
        return self._http.ask(
            cast("type[MonitorInfo | None]", MonitorInfo | None), "GET", "monitor"
        )

    def set_policy(self, policy: Policy) -> PolicyInfo:
        return self._http.ask(PolicyInfo, "PUT", _path(*_POLICIES, policy.name), json=policy.dump())

    def remove_policy(self, name: str) -> None:
        self._http.answer("DELETE", _path(*_POLICIES, name))

    def activate_policy(self, name: str) -> PolicyInfo:
        return self._http.ask(PolicyInfo, "POST", _path(*_POLICIES, name, "activate"))

    def deactivate_policy(self, name: str) -> PolicyInfo:
        return self._http.ask(PolicyInfo, "POST", _path(*_POLICIES, name, "deactivate"))

    def sketch(self, windows: int = 1) -> Sketch:
        query = {"windows": windows}
        return Sketch.from_dict(
            self._http.ask(dict[str, Any], "GET", "monitor/sketch", params=query)
        )

    def remove(self, name: str, *, force: bool = False) -> tuple[Snapshot, ...]:
        return self._http.tables("DELETE", _path("probes", name), force=force)

    def export(self, name: str) -> tuple[Snapshot, ...]:
        return self._http.tables("POST", _path("probes", name, "export"))

    def document(self, name: str, kind: str = "") -> bytes:
        """End the window. Returns its tables in format `kind`, or in the probe's own format."""
        query = {"format": kind} if kind else {}
        return self._http.answer("POST", _path("probes", name, "export"), params=query)

    def maps(self, name: str, most: int = MOST_ROWS) -> MapReadings:
        return self._http.ask(
            MapReadings, "GET", _path("probes", name, "maps"), params={"most": most}
        )

    def entries(self, name: str, map_name: str) -> list[Entry]:
        return self._http.ask(list[Entry], "GET", _entries(name, map_name))

    def set_entry(self, name: str, map_name: str, key: Value, value: Value) -> None:
        self._http.answer("PUT", _entries(name, map_name), json={"key": key, "value": value})

    def delete_entry(self, name: str, map_name: str, key: Value) -> bool:
        """As in ControlPlane, but raises UsageError if the entry does not exist."""
        self._http.answer("DELETE", _entries(name, map_name), params={"key": json.dumps(key)})
        return True

    def cost(self, name: str) -> tuple[Cost, ...]:
        return self._http.ask(tuple[Cost, ...], "GET", _path("probes", name, "cost"))

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


def _entries(name: str, map_name: str) -> str:
    return _path("probes", name, "maps", map_name, "entries")


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
