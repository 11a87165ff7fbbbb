"""Requests about probes, paths and events: one method a request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Literal
from zlib import crc32

from fastapi import Depends, Header, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import WrapValidator
from starlette.exceptions import HTTPException
from starlette.responses import Response

from app.api import wire
from app.api.models import (
    CaptureFilter,
    ControllerStatus,
    Events,
    ExistsError,
    PathObject,
    Trace,
    UnknownError,
    status_of,
)
from app.api.server import windows
from app.api.server.broadcaster import Broadcaster
from app.api.server.routing import (
    Endpoints,
    Executor,
    WholeNumber,
    created,
    endpoint_of,
    route,
    serves,
)
from app.outputs.document import document
from app.outputs.filtering import passing
from app.outputs.formats import FORMATS
from app.outputs.views import grouped
from app.resolve import address
from bpf.errors import UsageError, did_you_mean
from probes.config import model as configuration
from probes.config.map_config import MapEntry
from probes.config.model import ProbeConfig
from probes.control_plane import RemoteCalls
from probes.flow.filter import FlowFilter
from probes.flow.kinds import INTERFACES, KINDS, PREFIXES, REPEATED, parse_prefixes
from probes.flow.probe import FlowProbe
from probes.map_reading import MOST_ENTRIES
from probes.path.options import OwnFlow, TracedFlow
from probes.path.traced import Traced
from probes.reports import MOST_ROWS, Check, Entry, MapReadings, ProbeInfo, Replacement
from probes.snapshot import Snapshot
from probes.tables.entries import value_of

BINARY = "binary"
"""The format of `app.api.wire`."""
MEDIA_TYPES = {each.name: each.media_type for each in FORMATS.values()} | {BINARY: wire.MEDIA_TYPE}
_FORMATS = {media_type: name for name, media_type in MEDIA_TYPES.items()}
OF_INTERFACES = (REPEATED, INTERFACES)
"""Tables of a run on several interfaces."""
if TYPE_CHECKING:
    FormatName = str
    ViewName = str
else:
    FormatName = Literal[tuple(MEDIA_TYPES)]
    ViewName = Literal[(*KINDS, *OF_INTERFACES)]


def _wanted(
    request: Request,
    format: FormatName | None = None,  # noqa: A002 - as clients say it
) -> str | None:
    """Return the format of the query, or else of the `Accept` header; None if neither names one."""
    accepted = (
        each.partition(";")[0].strip() for each in request.headers.get("accept", "").split(",")
    )
    return format or next((_FORMATS[each] for each in accepted if each in _FORMATS), None)


WantedFormat = Annotated[str | None, Depends(_wanted)]


def _parse(value: Any, _: Callable[[Any], ProbeConfig]) -> ProbeConfig:
    """Parse a configuration; errors read like errors of a file."""
    if isinstance(value, bytes):
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "a configuration is sent as JSON")
    return configuration.parse(value, "request")


Submitted = Annotated[ProbeConfig, WrapValidator(_parse)]


_PROBE = "/v1/probes/{name}"
_CONTENT: dict[str, Any] = {
    "description": "One table for each metric.",
    "content": {media_type: {"schema": {"type": "string"}} for media_type in MEDIA_TYPES.values()}
    | {
        "application/json": {"schema": {}},
        wire.MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}},
    },
}
_TABLES: dict[str, Any] = {"response_class": Response, "responses": {200: _CONTENT}}
_LATEST = _TABLES | {"responses": {200: _CONTENT, 304: {"description": "As `If-None-Match` says"}}}


class ProbeEndpoints(Endpoints):
    """Requests about probes, paths and events."""

    def __init__(self, executor: Executor, broadcaster: Broadcaster, version: str) -> None:
        super().__init__(executor)
        self._broadcaster = broadcaster
        self._version = version

    @route("GET", "/v1/status")
    def status(self, request: Request) -> ControllerStatus:
        """Return the version and state of the controller, and this client's right to change it."""
        return status_of(self.plane, self._version, request.state.read_only)

    probes = endpoint_of(RemoteCalls.probes)

    @route("GET", _PROBE, 404)
    def probe(self, name: str) -> ProbeInfo:
        """Return one probe."""
        return self.find_probe(name)

    @route("GET", f"{_PROBE}/config", 404)
    def config(self, name: str) -> ProbeConfig:
        """Return the running configuration."""
        return self.find_probe(name).config

    @route("GET", f"{_PROBE}/metrics", 404, 422, **_LATEST)
    def metrics(
        self,
        name: str,
        wanted: WantedFormat,
        window: Annotated[WholeNumber | None, Query(ge=1)] = None,
        filter: str = "",  # noqa: A002
        view: ViewName | None = None,
        prefix: str = "",
        if_none_match: Annotated[str | None, Header()] = None,
    ) -> Response:
        """Return the tables of the latest finished window, or of an older kept window. `filter`
        selects rows of built-in probes. `view` groups the flows that pass, or is a table of a run
        on several interfaces; `prefix` has the lengths of networks' prefixes, such as `24,64`."""
        info = self.find_probe(name)
        kept = self.plane.history.snapshots()
        if view is not None and name != FlowProbe.name:
            raise UsageError(f"only the probe {FlowProbe.name} has the view {view}")
        if name == FlowProbe.name and view not in OF_INTERFACES:
            tables: Sequence[Snapshot] = (windows.find_flows(kept, info, window),)
        else:
            tables = windows.find(kept, info, window)
        if view in OF_INTERFACES:
            tables = [each for each in tables if each.metric == view]
            if not tables:
                raise UsageError(f"a run on one interface has no table {view}", hint="give -i any")
        found = passing(tables, filter)
        if view in KINDS:
            prefixes = parse_prefixes(prefix) if prefix else PREFIXES
            found = [grouped(item, view, prefixes) for item in found]
        answer = _tables(found, wanted or info.config.format)
        # The time belongs to the tag: a probe that starts again counts from 1 again.
        asked = crc32(repr((filter, view, prefix)).encode())
        of = f"{found[0].window}-{found[0].end_utc_ns}-{asked:08x}"
        tag = f'"{of}-{answer.media_type}"'
        headers = {"etag": tag, "vary": "accept, authorization"}
        if if_none_match == tag:
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        answer.headers.update(headers)
        return answer

    @serves(RemoteCalls.maps, 404, 422)
    def maps(
        self, name: str, most: Annotated[WholeNumber, Query(ge=0, le=MOST_ENTRIES)] = MOST_ROWS
    ) -> MapReadings:
        """Read all maps of a probe now, at most `most` rows of each. Nothing changes in them. Rows
        of exported metrics are those of the last window."""
        self.find_probe(name)
        return self.plane.maps(name, most)

    cost = endpoint_of(RemoteCalls.cost, 403, 404, 409, 422, works=True)

    @route("GET", "/v1/events", 422)
    async def events(self, after: Annotated[WholeNumber, Query(ge=0)] = 0) -> Events:
        """Return the events after number `after`."""
        return self._broadcaster.events(after)

    # An endless answer is not in the description: a program that tries every route would hang.
    @route("GET", "/v1/stream", response_class=Response, include_in_schema=False)
    async def stream(
        self,
        top: Annotated[WholeNumber | None, Query(ge=1)] = None,
        behind: Annotated[WholeNumber | None, Query(ge=1)] = None,
        accept_encoding: Annotated[str, Header()] = "",
    ) -> StreamingResponse:
        """Stream every snapshot and event from now on. A slow reader loses the oldest windows, and
        the stream reports the loss. With `top`, windows of flows have only the largest flows; with
        `behind`, those that come late do. `Accept-Encoding: gzip` compresses the stream."""
        subscription = self._broadcaster.open(top, behind)
        is_packed = "gzip" in accept_encoding

        async def records() -> AsyncIterator[bytes]:
            try:
                async for part in subscription.packed() if is_packed else subscription.records():
                    yield part
            finally:
                self._broadcaster.leave(subscription)

        headers = {"content-encoding": "gzip"} if is_packed else {}
        return StreamingResponse(records(), headers=headers, media_type=wire.MEDIA_TYPE)

    @serves(RemoteCalls.check, 415)
    def compile(self, config: Submitted, request: Request) -> Check:
        """Compile and verify without any change: warnings, kept maps of a replacement, costs.

        A refused source has the same answer as adding it: 422, with diagnostics.
        """
        self.may_compile(request)
        return self.plane.check(config)

    @serves(RemoteCalls.add, 415, status_code=201)
    def add(
        self, config: Submitted, request: Request, response: Response, force: bool = False
    ) -> ProbeInfo:
        """Start a probe. A program that passes none of the test frames would cut off its interface:
        it is refused unless `force` is true."""
        response.headers["location"] = f"/v1/probes/{config.name}"
        self.may_compile(request)
        if any(info.name == config.name for info in self.plane.probes()):
            raise ExistsError(f"a probe {config.name} runs", hint="replace it, or remove it first")
        return self.plane.add(config, force=force)

    @serves(RemoteCalls.replace, 404, 415)
    def replace(
        self, name: str, config: Submitted, request: Request, force: bool = False
    ) -> Replacement:
        """Replace the running generation without losing a packet. A generation that passes none of
        the test frames, unlike the one before, is refused unless `force` is true."""
        self.may_compile(request)
        self.find_probe(name)
        if config.name != name:
            raise UsageError(f"the configuration is of {config.name}, not of {name}")
        return self.plane.replace(config, force=force)

    roll_back = endpoint_of(RemoteCalls.roll_back)

    @serves(RemoteCalls.reconfigure, 404)
    def capture(self, capture: CaptureFilter) -> Replacement:
        """Change the capture filter of the flow probe."""
        self.find_probe(FlowProbe.name)
        return self.plane.reconfigure(FlowFilter.parse(capture.filter))

    traced = endpoint_of(RemoteCalls.traced)

    @serves(RemoteCalls.trace, 404, responses=created(Traced))
    def trace(self, wanted: Trace, response: Response) -> Traced:
        """Trace the path of every flow to an address, or of one flow; 200 if traced before."""
        destination = address(wanted.destination)
        before = self._traced(destination)
        own = OwnFlow.parse(wanted.own) if wanted.own else None
        self.plane.trace(destination, wanted.flow, own)
        now = self._traced(destination)
        if now is None:
            raise UnknownError(f"{destination} was given up meanwhile")
        if before is None or before.flows != now.flows:
            response.status_code = HTTPStatus.CREATED
        return now

    @serves(RemoteCalls.untrace, 404, status_code=204)
    def untrace(
        self,
        destination: str,
        protocol: Annotated[WholeNumber | None, Query(ge=0, le=255)] = None,
        source_port: Annotated[WholeNumber | None, Query(ge=0, le=65535)] = None,
        destination_port: Annotated[WholeNumber | None, Query(ge=0, le=65535)] = None,
    ) -> None:
        """Stop tracing a destination, or one flow to it: all three parameters name the flow."""
        given = [each for each in (protocol, source_port, destination_port) if each is not None]
        found = self._traced(address(destination))
        if given and len(given) < 3:
            raise UsageError("a flow has a protocol, a source_port and a destination_port")
        flow = TracedFlow(*given) if given else None
        if found is None or (flow and flow not in found.flows):
            raise UnknownError(f"that is not traced: {destination}")
        self.plane.untrace(found.destination, flow)

    @route("GET", "/v1/path-options")
    def path_options(self) -> PathObject:
        """Return the options of path tracing."""
        return self.plane.path_options

    @route("PUT", "/v1/path-options", writes=True)
    def set_path_options(self, options: PathObject) -> PathObject:
        """Set the options of path tracing: missing ones get their defaults. Running traces start
        again."""
        options.check()
        self.plane.path_options = options
        return self.plane.path_options

    @serves(RemoteCalls.entries, 404, 422)
    def entries(self, name: str, map: str) -> list[Entry]:  # noqa: A002 - as clients say it
        """Return the entries of a map that the configuration makes writable. Other maps are read
        through metrics only."""
        self._find_map(name, map)
        return self.plane.entries(name, map)

    @serves(RemoteCalls.set_entry, 404, status_code=204)
    def set_entry(self, name: str, map: str, entry: MapEntry) -> None:  # noqa: A002
        """Store an entry of a writable map, or replace the entry with its key. Packets meet it at
        once. Fields are written as in tables; missing fields are 0."""
        self._find_map(name, map)
        self.plane.set_entry(name, map, entry.key, entry.value)

    @serves(RemoteCalls.delete_entry, 404, status_code=204)
    def delete_entry(self, name: str, map: str, key: str) -> None:  # noqa: A002
        """Delete an entry of a writable map; an array's entry becomes zero. `key` is JSON, or plain
        text: `192.0.2.1`."""
        self._find_map(name, map)
        if not self.plane.delete_entry(name, map, value_of(key)):
            raise UnknownError(f"map {map} has no entry {key}")

    @serves(RemoteCalls.export, 404, **_TABLES)
    def export(self, name: str, wanted: WantedFormat) -> Response:
        """End the window now, and return its tables."""
        return self._tables_of(self.plane.export, name, wanted)

    @serves(RemoteCalls.remove, 404, **_TABLES)
    def remove(self, name: str, wanted: WantedFormat, force: bool = False) -> Response:
        """End a probe, and return the tables of its last window. An application that an active
        policy runs is not removed unless `force` is true."""
        return self._tables_of(partial(self.plane.remove, force=force), name, wanted)

    def _find_map(self, name: str, map_name: str) -> None:
        maps = self.find_probe(name).config.maps
        writable = sorted(known for known, options in maps.items() if options.writable)
        if map_name not in writable:
            hint = did_you_mean(map_name, writable) or f"give maps.{map_name}.writable = true"
            raise UnknownError(f"probe {name} has no writable map {map_name!r}", hint=hint)

    def _traced(self, destination: str) -> Traced | None:
        return next((t for t in self.plane.traced() if t.destination == destination), None)

    def _tables_of(
        self, end: Callable[[str], Sequence[Snapshot]], name: str, kind: str | None
    ) -> Response:
        default = self.find_probe(name).config.format
        return _tables(end(name), kind or default)


def _tables(snapshots: Sequence[Snapshot], kind: str) -> Response:
    binary = kind == BINARY
    body = b"".join(map(wire.encode, snapshots)) if binary else document(snapshots, kind)
    return Response(body, media_type=MEDIA_TYPES[kind])
