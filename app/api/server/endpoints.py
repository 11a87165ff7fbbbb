"""Requests about probes, paths and events: one method a request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Literal
from zlib import crc32

from fastapi import Header, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import WrapValidator
from starlette.exceptions import HTTPException
from starlette.responses import Response

from app.api import wire
from app.api.models import CaptureFilter, ControllerStatus, Events, ExistsError, Trace, UnknownError
from app.api.server import windows
from app.api.server.broadcaster import Broadcaster
from app.api.server.executor import PlaneExecutor, WholeNumber
from app.outputs.document import document
from app.outputs.filtering import passing
from app.outputs.formats import FORMATS
from app.resolve import address
from bpf.errors import UsageError, did_you_mean
from probes.config import model as configuration
from probes.config.map_config import MapEntry
from probes.config.model import ProbeConfig
from probes.control_plane import Check, Cost, Entry, ProbeInfo, Replacement
from probes.flow.filter import FlowFilter
from probes.flow.probe import FlowProbe
from probes.path.options import TracedFlow
from probes.path.traced import Traced
from probes.snapshot import Snapshot
from probes.tables.entries import value_of

BINARY = "binary"
"""The format of `app.api.wire`."""
MEDIA_TYPES = {each.name: each.media_type for each in FORMATS.values()} | {BINARY: wire.MEDIA_TYPE}
_FORMATS = {media_type: name for name, media_type in MEDIA_TYPES.items()}
if TYPE_CHECKING:
    FormatName = str
else:
    FormatName = Literal[tuple(MEDIA_TYPES)]


def _parse(value: Any, _: Callable[[Any], ProbeConfig]) -> ProbeConfig:
    """Parse a configuration; errors read like errors of a file."""
    if isinstance(value, bytes):
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "a configuration is sent as JSON")
    return configuration.parse(value, "request")


Submitted = Annotated[ProbeConfig, WrapValidator(_parse)]


class Endpoints:
    """One method a request."""

    def __init__(self, executor: PlaneExecutor, broadcaster: Broadcaster, version: str) -> None:
        self._executor = executor
        self._plane = executor.plane
        self._broadcaster = broadcaster
        self._version = version

    async def status(self, request: Request) -> ControllerStatus:
        """Return the version and state of the controller, and this client's right to change it."""
        hooks = await self._executor.read(self._plane.hook_status)
        modes = {each.hook: each.mode for each in hooks}
        failure = self._plane.failure()
        words = "" if failure is None else str(failure)
        why_not = self._plane.read_only or request.state.read_only
        plane = self._plane
        memory = await self._executor.read(plane.memory)
        return ControllerStatus(
            self._version, why_not, words, modes, dict(plane.unwritten), memory, hooks,
            plane.interval, plane.capture,
        )  # fmt: skip

    async def probes(self) -> tuple[ProbeInfo, ...]:
        """List all probes, oldest first."""
        return await self._executor.read(self._plane.probes)

    async def probe(self, name: str) -> ProbeInfo:
        """Return one probe."""
        return await self._executor.read(self._find, name)

    async def config(self, name: str) -> ProbeConfig:
        """Return the running configuration."""
        return (await self._executor.read(self._find, name)).config

    async def metrics(
        self,
        name: str,
        request: Request,
        window: Annotated[WholeNumber | None, Query(ge=1)] = None,
        format: FormatName | None = None,  # noqa: A002 - as clients say it
        filter: str = "",  # noqa: A002
        if_none_match: Annotated[str | None, Header()] = None,
    ) -> Response:
        """Return the tables of the latest finished window, or of an older kept window. `filter`
        selects rows of built-in probes."""
        wanted = _wanted(request, format)
        return await self._executor.read(self._metrics, name, window, wanted, filter, if_none_match)

    async def cost(self, name: str) -> tuple[Cost, ...]:
        """Return the nanoseconds a packet, measured once for each generation."""

        def measure() -> tuple[Cost, ...]:
            self._find(name)
            return self._plane.cost(name)

        return await self._executor.work(measure)

    async def events(self, after: Annotated[WholeNumber, Query(ge=0)] = 0) -> Events:
        """Return the events after number `after`."""
        return self._broadcaster.events(after)

    async def stream(self) -> StreamingResponse:
        """Stream every snapshot and event from now on. A slow reader loses the oldest windows, and
        the stream reports the loss."""
        subscription = self._broadcaster.open()

        async def records() -> AsyncIterator[bytes]:
            try:
                async for record in subscription.records():
                    yield record
            finally:
                self._broadcaster.leave(subscription)

        return StreamingResponse(records(), media_type=wire.MEDIA_TYPE)

    async def compile(self, config: Submitted, request: Request) -> Check:
        """Compile and verify without any change: warnings, kept maps of a replacement, costs.

        A refused source has the same answer as adding it: 422, with diagnostics.
        """

        def check() -> Check:
            self._may_compile(request)
            return self._plane.check(config)

        return await self._executor.work(check)

    async def add(
        self, config: Submitted, request: Request, response: Response, force: bool = False
    ) -> ProbeInfo:
        """Start a probe. A program that passes none of the test frames would cut off its interface:
        it is refused unless `force` is true."""
        response.headers["location"] = f"/v1/probes/{config.name}"
        return await self._executor.work(self._add, config, request, force)

    async def replace(
        self, name: str, config: Submitted, request: Request, force: bool = False
    ) -> Replacement:
        """Replace the running generation without losing a packet. A generation that passes none of
        the test frames, unlike the one before, is refused unless `force` is true."""
        return await self._executor.work(self._replace, name, config, request, force)

    async def roll_back(self, name: str) -> Replacement:
        """Return to the generation before."""

        def roll_back() -> Replacement:
            self._may_change(name)
            return self._plane.roll_back(name)

        return await self._executor.work(roll_back)

    async def capture(self, capture: CaptureFilter) -> Replacement:
        """Change the capture filter of the flow probe."""

        def reconfigure() -> Replacement:
            self._may_change(FlowProbe.name)
            return self._plane.reconfigure(FlowFilter.parse(capture.filter))

        return await self._executor.work(reconfigure)

    async def traced(self) -> tuple[Traced, ...]:
        """List the destinations of path tracing, oldest request first."""
        return await self._executor.read(self._plane.traced)

    async def trace(self, wanted: Trace, response: Response) -> Traced:
        """Trace the path of every flow to an address, or of one flow; 200 if traced before."""

        def trace() -> Traced:
            self._may_change()
            destination = address(wanted.destination)
            before = self._traced(destination)
            self._plane.trace(destination, wanted.flow)
            now = self._traced(destination)
            if now is None:
                raise UnknownError(f"{destination} was given up meanwhile")
            if before is None or before.flows != now.flows:
                response.status_code = HTTPStatus.CREATED
            return now

        return await self._executor.work(trace)

    async def untrace(
        self,
        destination: str,
        protocol: Annotated[WholeNumber | None, Query(ge=0, le=255)] = None,
        source_port: Annotated[WholeNumber | None, Query(ge=0, le=65535)] = None,
        destination_port: Annotated[WholeNumber | None, Query(ge=0, le=65535)] = None,
    ) -> None:
        """Stop tracing a destination, or one flow to it: all three parameters name the flow."""
        given = protocol, source_port, destination_port

        def untrace() -> None:
            self._may_change()
            found = self._traced(address(destination))
            flow = None if given == (None,) * 3 else TracedFlow(*_whole(given))
            if found is None or (flow and flow not in found.flows):
                raise UnknownError(f"that is not traced: {destination}")
            self._plane.untrace(found.destination, flow)

        await self._executor.work(untrace)

    async def entries(self, name: str, map: str) -> list[Entry]:  # noqa: A002 - as clients say it
        """Return the entries of a map that the configuration makes writable. Other maps are read
        through metrics only."""

        def entries() -> list[Entry]:
            self._find_map(name, map)
            return self._plane.entries(name, map)

        return await self._executor.read(entries)

    async def set_entry(self, name: str, map: str, entry: MapEntry) -> None:  # noqa: A002
        """Store an entry of a writable map, or replace the entry with its key. Packets meet it at
        once. Fields are written as in tables; missing fields are 0."""

        def store() -> None:
            self._may_change(name)
            self._find_map(name, map)
            self._plane.set_entry(name, map, entry.key, entry.value)

        await self._executor.work(store)

    async def delete_entry(self, name: str, map: str, key: str) -> None:  # noqa: A002
        """Delete an entry of a writable map; an array's entry becomes zero. `key` is JSON, or plain
        text: `192.0.2.1`."""

        def erase() -> None:
            self._may_change(name)
            self._find_map(name, map)
            if not self._plane.delete_entry(name, map, value_of(key)):
                raise UnknownError(f"map {map} has no entry {key}")

        await self._executor.work(erase)

    async def export(
        self,
        name: str,
        request: Request,
        format: FormatName | None = None,  # noqa: A002
    ) -> Response:
        """End the window now, and return its tables."""
        wanted = _wanted(request, format)
        return await self._executor.work(self._tables_of, self._plane.export, name, wanted)

    async def remove(
        self,
        name: str,
        request: Request,
        format: FormatName | None = None,  # noqa: A002
    ) -> Response:
        """End a probe, and return the tables of its last window."""
        wanted = _wanted(request, format)
        return await self._executor.work(self._tables_of, self._plane.remove, name, wanted)

    def _find(self, name: str) -> ProbeInfo:
        infos = {info.name: info for info in self._plane.probes()}
        if name not in infos:
            hint = did_you_mean(name, sorted(infos)) or "there are none"
            raise UnknownError(f"no probe {name!r}", hint=hint)
        return infos[name]

    def _find_map(self, name: str, map_name: str) -> None:
        maps = self._find(name).config.maps
        writable = sorted(known for known, options in maps.items() if options.writable)
        if map_name not in writable:
            hint = did_you_mean(map_name, writable) or f"give maps.{map_name}.writable = true"
            raise UnknownError(f"probe {name} has no writable map {map_name!r}", hint=hint)

    def _traced(self, destination: str) -> Traced | None:
        return next((t for t in self._plane.traced() if t.destination == destination), None)

    def _may_change(self, name: str = "") -> None:
        self._executor.may_change()
        if name:
            self._find(name)

    def _may_compile(self, request: Request) -> None:
        self._executor.may_compile(owner=request.state.owner)

    def _add(self, config: ProbeConfig, request: Request, force: bool) -> ProbeInfo:
        self._may_compile(request)
        if any(info.name == config.name for info in self._plane.probes()):
            raise ExistsError(f"a probe {config.name} runs", hint="replace it, or remove it first")
        return self._plane.add(config, force=force)

    def _replace(
        self, name: str, config: ProbeConfig, request: Request, force: bool
    ) -> Replacement:
        self._may_compile(request)
        self._find(name)
        if config.name != name:
            raise UsageError(f"the configuration is of {config.name}, not of {name}")
        return self._plane.replace(config, force=force)

    def _metrics(
        self, name: str, number: int | None, kind: str | None, shown: str, known: str | None
    ) -> Response:
        info = self._find(name)
        found = passing(windows.find(self._plane.history.snapshots(), info, number), shown)
        response = _tables(found, kind or info.config.format)
        # The time belongs to the tag: a probe that starts again counts from 1 again.
        of = f"{found[0].window}-{found[0].end_utc_ns}-{crc32(shown.encode()):08x}"
        tag = f'"{of}-{response.media_type}"'
        headers = {"etag": tag, "vary": "accept, authorization"}
        if known == tag:
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        response.headers.update(headers)
        return response

    def _tables_of(
        self, end: Callable[[str], Sequence[Snapshot]], name: str, kind: str | None
    ) -> Response:
        self._may_change(name)
        default = self._find(name).config.format
        return _tables(end(name), kind or default)


def _whole(given: Sequence[int | None]) -> list[int]:
    """Raises UsageError if one is missing."""
    numbers = [number for number in given if number is not None]
    if len(numbers) < len(given):
        raise UsageError("a flow has a protocol, a source_port and a destination_port")
    return numbers


def _wanted(request: Request, kind: str | None) -> str | None:
    """Return the format of the query, or else of the `Accept` header; None if neither names one."""
    accepted = (
        each.partition(";")[0].strip() for each in request.headers.get("accept", "").split(",")
    )
    return kind or next((_FORMATS[each] for each in accepted if each in _FORMATS), None)


def _tables(snapshots: Sequence[Snapshot], kind: str) -> Response:
    binary = kind == BINARY
    body = b"".join(map(wire.encode, snapshots)) if binary else document(snapshots, kind)
    return Response(body, media_type=MEDIA_TYPES[kind])
