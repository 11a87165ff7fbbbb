"""The endpoints: a control plane as HTTP, described by its own OpenAPI document."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Literal, TypeVar

import anyio.to_thread
from fastapi import Depends, FastAPI, Header, Query, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from pydantic import BeforeValidator, WrapValidator
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from app import outputs
from app.rest import windows, wire
from app.rest.gate import Gate, Rights, refusal
from app.rest.hub import Hub, TooManyError
from app.rest.models import (
    Capture,
    Events,
    ExistsError,
    ForbiddenError,
    Problem,
    Status,
    UnknownError,
    problem_of,
)
from bpf.errors import DeckError, UsageError, did_you_mean
from probes import config as configuration
from probes.config import ProbeConfig
from probes.flow import FlowFilter, FlowProbe
from probes.plane import Check, ControlPlane, Cost, ProbeInfo, Replacement
from probes.snapshot import Event, Snapshot

Kind = Literal["json", "xml", "csv", "jsonl", "binary"]
"""What tables are written as; `binary` is that of `app.rest.wire`."""
MEDIA_TYPES: dict[str, str] = {
    "json": "application/json",
    "xml": "application/xml",
    "csv": "text/csv",
    "jsonl": "application/x-ndjson",
    "binary": wire.MEDIA_TYPE,
}
_STATUS: dict[type[DeckError], HTTPStatus] = {
    UnknownError: HTTPStatus.NOT_FOUND,
    ExistsError: HTTPStatus.CONFLICT,
    ForbiddenError: HTTPStatus.FORBIDDEN,
    TooManyError: HTTPStatus.TOO_MANY_REQUESTS,
    UsageError: HTTPStatus.UNPROCESSABLE_ENTITY,
    # Not 5xx: what a kernel or a device refuses depends on what the client wants of it.
    DeckError: HTTPStatus.CONFLICT,
}
_TABLES: dict[str, Any] = {
    "description": "One table for each metric.",
    "content": {
        "application/json": {"schema": {}},
        "application/xml": {"schema": {"type": "string"}},
        "text/csv": {"schema": {"type": "string"}},
        "application/x-ndjson": {"schema": {"type": "string"}},
        wire.MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}},
    },
}
_T = TypeVar("_T")


def _parse(value: Any, _: Callable[[Any], ProbeConfig]) -> ProbeConfig:
    """With the words that a file's errors have."""
    if isinstance(value, bytes):
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "a configuration is sent as JSON")
    return configuration.parse(value, "request")


Submitted = Annotated[ProbeConfig, WrapValidator(_parse)]


def _digits(text: Any) -> Any:
    if isinstance(text, str) and not (text.isascii() and text.isdigit()):
        raise ValueError("it is no whole number")
    return text


Number = Annotated[int, BeforeValidator(_digits)]
"""Of a query; pydantic alone would take 1.0 too."""


def _no_others(request: Request) -> None:
    """Raises UsageError for a parameter that there isn't."""
    known = {parameter.alias for parameter in request.scope["route"].dependant.query_params}
    for name in request.query_params:
        if name not in known:
            hint = did_you_mean(name, sorted(known)) or "there are none here"
            raise UsageError(f"no parameter {name!r}", hint=hint)


def _methods(app: FastAPI, request: Request) -> list[str]:
    """That the path of `request` has."""
    return sorted(
        method
        for route in app.routes
        if isinstance(route, APIRoute) and route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods or ()
    )


def _refusals(*codes: int) -> dict[int | str, dict[str, Any]]:
    return {code: {"model": Problem, "description": HTTPStatus(code).phrase} for code in codes}


class _Endpoints:
    """One method each. Whatever may block is done by a thread, and only so many at a time."""

    def __init__(self, plane: ControlPlane, hub: Hub, version: str) -> None:
        self._plane = plane
        self._hub = hub
        self._version = version
        self._readers = anyio.CapacityLimiter(4)
        # Apart, or a few compiles would keep everybody from reading.
        self._workers = anyio.CapacityLimiter(4)

    async def status(self, request: Request) -> Status:
        """The controller: its version, and whether this client may change anything."""
        modes = await self._read(self._plane.modes)
        failure = self._plane.failure()
        words = "" if failure is None else str(failure)
        why_not = self._plane.read_only or request.state.read_only
        return Status(self._version, why_not, words, modes)

    async def probes(self) -> tuple[ProbeInfo, ...]:
        """All probes, in the order in which they were added."""
        return await self._read(self._plane.probes)

    async def probe(self, name: str) -> ProbeInfo:
        """One probe."""
        return await self._read(self._find, name)

    async def config(self, name: str) -> ProbeConfig:
        """The configuration that runs."""
        return (await self._read(self._find, name)).config

    async def metrics(
        self,
        name: str,
        window: Annotated[Number | None, Query(ge=1)] = None,
        format: Kind | None = None,  # noqa: A002 - as clients say it
        if_none_match: Annotated[str | None, Header()] = None,
    ) -> Response:
        """Tables of the latest window that has ended, or of an older one that is still kept."""
        return await self._read(self._metrics, name, window, format, if_none_match)

    async def cost(self, name: str) -> tuple[Cost, ...]:
        """Nanoseconds a packet, measured now."""

        def measure() -> tuple[Cost, ...]:
            self._find(name)
            return self._plane.cost(name)

        return await self._work(measure)

    async def events(self, after: Annotated[Number, Query(ge=0)] = 0) -> Events:
        """What happened since event number `after`."""
        return self._hub.events(after)

    async def stream(self) -> StreamingResponse:
        """Every snapshot and event from now on. Who reads too slowly loses the oldest windows, and
        is told so in the stream."""
        feed = self._hub.open()

        async def records() -> AsyncIterator[bytes]:
            try:
                async for record in feed.records():
                    yield record
            finally:
                self._hub.leave(feed)

        return StreamingResponse(records(), media_type=wire.MEDIA_TYPE)

    async def compile(self, config: Submitted) -> Check:
        """Compile and verify, and change nothing: warnings, what a replacement would keep, costs.

        A source that is refused is answered as it would be by adding it: 422, with diagnostics.
        """
        return await self._work(self._plane.check, config)

    async def add(self, config: Submitted, response: Response) -> ProbeInfo:
        """Start a probe."""
        response.headers["location"] = f"/v1/probes/{config.name}"
        return await self._work(self._add, config)

    async def replace(self, name: str, config: Submitted) -> Replacement:
        """Put another generation in the place of the one that runs; no packet is lost."""
        return await self._work(self._replace, name, config)

    async def roll_back(self, name: str) -> Replacement:
        """Put the generation before back."""

        def roll_back() -> Replacement:
            self._may_change(name)
            return self._plane.roll_back(name)

        return await self._work(roll_back)

    async def capture(self, capture: Capture) -> Replacement:
        """Have the flow probe count other flows from now on."""

        def reconfigure() -> Replacement:
            self._may_change(FlowProbe.name)
            return self._plane.reconfigure(FlowFilter.parse(capture.filter))

        return await self._work(reconfigure)

    async def export(self, name: str, format: Kind | None = None) -> Response:  # noqa: A002
        """End the window now; its tables."""
        return await self._work(self._tables_of, self._plane.export, name, format)

    async def remove(self, name: str, format: Kind | None = None) -> Response:  # noqa: A002
        """End a probe; the tables of its last window."""
        return await self._work(self._tables_of, self._plane.remove, name, format)

    async def _read(self, function: Callable[..., _T], *arguments: Any) -> _T:
        return await _in_thread(self._readers, function, *arguments)

    async def _work(self, function: Callable[..., _T], *arguments: Any) -> _T:
        return await _in_thread(self._workers, function, *arguments)

    def _find(self, name: str) -> ProbeInfo:
        infos = {info.name: info for info in self._plane.probes()}
        if name not in infos:
            hint = did_you_mean(name, sorted(infos)) or "there are none"
            raise UnknownError(f"no probe {name!r}", hint=hint)
        return infos[name]

    def _may_change(self, name: str = "") -> None:
        if self._plane.read_only:
            raise ForbiddenError(self._plane.read_only)
        if name:
            self._find(name)

    def _add(self, config: ProbeConfig) -> ProbeInfo:
        self._may_change()
        if any(info.name == config.name for info in self._plane.probes()):
            raise ExistsError(f"a probe {config.name} runs", hint="replace it, or remove it first")
        return self._plane.add(config)

    def _replace(self, name: str, config: ProbeConfig) -> Replacement:
        self._may_change(name)
        if config.name != name:
            raise UsageError(f"the configuration is of {config.name}, not of {name}")
        return self._plane.replace(config)

    def _metrics(
        self, name: str, number: int | None, kind: Kind | None, known: str | None
    ) -> Response:
        info = self._find(name)
        found = windows.find(self._plane.history.snapshots(), info, number)
        response = _tables(found, kind or info.config.format)
        # The moment too: a probe that comes again counts from 1 again.
        tag = f'"{found[0].window}-{found[0].end_utc_ns}-{response.media_type}"'
        headers = {"etag": tag, "vary": "authorization"}
        if known == tag:
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        response.headers.update(headers)
        return response

    def _tables_of(
        self, end: Callable[[str], Sequence[Snapshot]], name: str, kind: Kind | None
    ) -> Response:
        self._may_change(name)
        default = self._find(name).config.format
        return _tables(end(name), kind or default)


async def _in_thread(
    limiter: anyio.CapacityLimiter, function: Callable[..., _T], *arguments: Any
) -> _T:
    # Abandoned only when the listener closes: a compile then ends by itself.
    return await anyio.to_thread.run_sync(
        partial(function, *arguments), limiter=limiter, abandon_on_cancel=True
    )


def _tables(snapshots: Sequence[Snapshot], kind: str) -> Response:
    if kind == "binary":
        body: str | bytes = b"".join(map(wire.encode, snapshots))
    else:
        body = outputs.document(snapshots, kind)
    return Response(body, media_type=MEDIA_TYPES[kind])


def create(plane: ControlPlane, hub: Hub, rights: Rights, version: str) -> Gate:
    """The application for one listener, behind its gate. It must be made in its event loop."""
    bearer = Security(HTTPBearer(auto_error=False))
    app = FastAPI(
        title="probedeck",
        version="1",
        description="Probes of one host: what measures there, and what it measured. Beside what is "
        "described here, GET /v1/stream gives every snapshot and event to remote consoles.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        separate_input_output_schemas=False,
        responses=_refusals(400, 401, 413),
        dependencies=[Depends(_no_others), *((bearer,) if rights.token else ())],
    )
    _add_routes(app, _Endpoints(plane, hub, version))

    def refuse(_: Request, error: Exception) -> Response:
        assert isinstance(error, DeckError)
        status = next(_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS)
        return refusal(status, problem_of(error))

    def misfit(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        words = "; ".join(
            f"{'.'.join(map(str, found['loc']))}: {found['msg']}" for found in error.errors()
        )
        return refusal(HTTPStatus.UNPROCESSABLE_ENTITY, Problem(words, exit_code=2))

    def plain(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        said = Problem(str(error.detail), exit_code=2)
        headers = dict(error.headers or {})
        if "Allow" in headers:
            # Starlette's is of the first route of the path only.
            headers["Allow"] = ", ".join(_methods(app, request))
        return refusal(HTTPStatus(error.status_code), said, headers)

    def fault(request: Request, error: Exception) -> Response:
        # Ours: it must be seen.
        words = f"{request.method} {request.url.path}: {type(error).__name__}: {error}"
        plane.publish(Event.now("warning", "api", words))
        said = Problem(f"a fault of probedeck: {words}")
        # uvicorn ends the connection after it.
        return refusal(HTTPStatus.INTERNAL_SERVER_ERROR, said, {"connection": "close"})

    app.add_exception_handler(DeckError, refuse)
    app.add_exception_handler(RequestValidationError, misfit)
    app.add_exception_handler(HTTPException, plain)
    app.add_exception_handler(Exception, fault)
    return Gate(app, rights)


def _add_routes(app: FastAPI, do: _Endpoints) -> None:
    change = _refusals(403, 409, 422)
    named = "/v1/probes/{name}"

    def route(method: str, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        app.add_api_route(
            path, endpoint, methods=[method], operation_id=endpoint.__name__, **options
        )

    def tables(codes: dict[int | str, dict[str, Any]]) -> dict[str, Any]:
        return {"response_class": Response, "responses": {200: _TABLES, **codes}}

    unchanged: dict[int | str, dict[str, Any]] = {304: {"description": "As `If-None-Match` says"}}
    route("GET", "/v1/status", do.status)
    route("GET", "/v1/probes", do.probes)
    route("POST", "/v1/probes", do.add, status_code=201, responses=change | _refusals(415))
    route("POST", "/v1/compile", do.compile, responses=change | _refusals(415))
    route("GET", named, do.probe, responses=_refusals(404))
    route("PUT", named, do.replace, responses=change | _refusals(404, 415))
    route("DELETE", named, do.remove, **tables(change | _refusals(404)))
    route("GET", f"{named}/config", do.config, responses=_refusals(404))
    route("POST", f"{named}/rollback", do.roll_back, responses=change | _refusals(404))
    route("POST", f"{named}/export", do.export, **tables(change | _refusals(404)))
    route("GET", f"{named}/metrics", do.metrics, **tables(unchanged | _refusals(404, 422)))
    route("GET", f"{named}/cost", do.cost, responses=_refusals(404, 409, 422))
    route("PUT", "/v1/capture", do.capture, responses=change | _refusals(404))
    route("GET", "/v1/events", do.events, responses=_refusals(422))
    # Endless, and not in the description: a program that tries all that is in it would hang.
    route("GET", "/v1/stream", do.stream, response_class=Response, include_in_schema=False)
