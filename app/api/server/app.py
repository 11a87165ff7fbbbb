"""Routes and error answers of the API; FastAPI derives its OpenAPI document from them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any

from fastapi import Depends, FastAPI, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from app.api import wire
from app.api.models import ExistsError, ForbiddenError, Problem, Registers, UnknownError, problem_of
from app.api.server.auth import AuthMiddleware, Rights, refusal
from app.api.server.broadcaster import Broadcaster, TooManyError
from app.api.server.command_endpoints import CommandEndpoints, CommandRunner
from app.api.server.endpoints import MEDIA_TYPES, Endpoints
from app.api.server.executor import PlaneExecutor
from app.api.server.monitor_endpoints import MonitorEndpoints
from bpf.errors import ProbedeckError, ReadOnlyError, UsageError, did_you_mean
from probes.control_plane import ControlPlane, NoProbeError
from probes.monitor.info import PolicyInfo
from probes.path.traced import Traced
from probes.snapshot import Event

_STATUS: dict[type[ProbedeckError], HTTPStatus] = {
    UnknownError: HTTPStatus.NOT_FOUND,
    NoProbeError: HTTPStatus.NOT_FOUND,
    ExistsError: HTTPStatus.CONFLICT,
    ForbiddenError: HTTPStatus.FORBIDDEN,
    ReadOnlyError: HTTPStatus.FORBIDDEN,
    TooManyError: HTTPStatus.TOO_MANY_REQUESTS,
    UsageError: HTTPStatus.UNPROCESSABLE_ENTITY,
    # Not 5xx: a kernel or a device refuses because of the request.
    ProbedeckError: HTTPStatus.CONFLICT,
}
_TABLES: dict[str, Any] = {
    "description": "One table for each metric.",
    "content": {media_type: {"schema": {"type": "string"}} for media_type in MEDIA_TYPES.values()}
    | {
        "application/json": {"schema": {}},
        wire.MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}},
    },
}


def _no_others(request: Request) -> None:
    """Raises UsageError for an unknown query parameter."""
    known = {parameter.alias for parameter in request.scope["route"].dependant.query_params}
    for name in request.query_params:
        if name not in known:
            hint = did_you_mean(name, sorted(known)) or "there are none here"
            raise UsageError(f"no parameter {name!r}", hint=hint)


def _methods(app: FastAPI, request: Request) -> list[str]:
    """Return the methods of a request's path."""
    return sorted(
        method
        for route in app.routes
        if isinstance(route, APIRoute) and route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods or ()
    )


def _refusals(*codes: int) -> dict[int | str, dict[str, Any]]:
    return {code: {"model": Problem, "description": HTTPStatus(code).phrase} for code in codes}


def create(
    plane: ControlPlane,
    broadcaster: Broadcaster,
    rights: Rights,
    version: str,
    console: CommandRunner | None = None,
) -> AuthMiddleware:
    """Return the application of one listener, behind its access checks.

    Call it in the listener's event loop. Commands run on `console`, if this process has one.
    """
    bearer = Security(HTTPBearer(auto_error=False))
    app = FastAPI(
        title="probedeck",
        version="1",
        description="Probes of one host and their measurements. Not described here: "
        "GET /v1/stream sends every snapshot and event to remote consoles.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        separate_input_output_schemas=False,
        responses=_refusals(400, 401, 413),
        dependencies=[Depends(_no_others), *((bearer,) if rights.token else ())],
    )
    executor = PlaneExecutor(plane)
    _add_routes(app, Endpoints(executor, broadcaster, version))
    _add_monitor_routes(app, MonitorEndpoints(executor))
    _add_command_routes(app, CommandEndpoints(executor, console))

    def refuse(_: Request, error: Exception) -> Response:
        assert isinstance(error, ProbedeckError)
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
            # Starlette lists only the methods of the path's first route.
            headers["Allow"] = ", ".join(_methods(app, request))
        return refusal(HTTPStatus(error.status_code), said, headers)

    def fault(request: Request, error: Exception) -> Response:
        # A bug: make it visible.
        words = f"{request.method} {request.url.path}: {type(error).__name__}: {error}"
        plane.publish(Event.now("warning", "api", words))
        said = Problem(f"a fault of probedeck: {words}")
        # uvicorn closes the connection after an internal error.
        return refusal(HTTPStatus.INTERNAL_SERVER_ERROR, said, {"connection": "close"})

    app.add_exception_handler(ProbedeckError, refuse)
    app.add_exception_handler(RequestValidationError, misfit)
    app.add_exception_handler(HTTPException, plain)
    app.add_exception_handler(Exception, fault)
    return AuthMiddleware(app, rights)


def _route(
    app: FastAPI, method: str, path: str, endpoint: Callable[..., Any], **options: Any
) -> None:
    app.add_api_route(path, endpoint, methods=[method], operation_id=endpoint.__name__, **options)


def _made(what: type) -> dict[int | str, dict[str, Any]]:
    """Describe status 201; 200 means that the object existed."""
    return {201: {"model": what, "description": "Created"}}


def _add_routes(app: FastAPI, do: Endpoints) -> None:
    change = _refusals(403, 409, 422)
    named = "/v1/probes/{name}"

    route = partial(_route, app)

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
    route("GET", f"{named}/cost", do.cost, responses=_refusals(403, 404, 409, 422))
    entries = f"{named}/maps/{{map}}/entries"
    stored = {"status_code": 204, "responses": change | _refusals(404)}
    route("GET", entries, do.entries, responses=_refusals(404, 422))
    route("PUT", entries, do.set_entry, **stored)
    route("DELETE", entries, do.delete_entry, **stored)
    route("PUT", "/v1/capture", do.capture, responses=change | _refusals(404))
    route("GET", "/v1/paths", do.traced)
    made = _made(Traced)
    route("POST", "/v1/paths", do.trace, responses=change | _refusals(404) | made)
    route(
        "DELETE",
        "/v1/paths/{destination}",
        do.untrace,
        status_code=204,
        responses=change | _refusals(404),
    )
    route("GET", "/v1/events", do.events, responses=_refusals(422))
    # An endless answer is not in the description: a program that tries every route would hang.
    route("GET", "/v1/stream", do.stream, response_class=Response, include_in_schema=False)


def _add_monitor_routes(app: FastAPI, do: MonitorEndpoints) -> None:
    change = _refusals(403, 409, 422)
    known = change | _refusals(404)
    every = "/v1/monitor/policies"
    named = f"{every}/{{name}}"
    route = partial(_route, app)
    route("GET", "/v1/monitor", do.monitor)
    route(
        "GET", "/v1/monitor/sketch", do.sketch,
        response_model=Registers, responses=_refusals(409, 422),
    )  # fmt: skip
    route("GET", every, do.policies)
    route("POST", every, do.add_policy, status_code=201, responses=change | _refusals(415))
    route("GET", named, do.policy, responses=_refusals(404))
    made = _made(PolicyInfo)
    route("PUT", named, do.set_policy, responses=change | _refusals(415) | made)
    route("DELETE", named, do.remove_policy, status_code=204, responses=known)
    route("POST", f"{named}/activate", do.activate_policy, responses=known)
    route("POST", f"{named}/deactivate", do.deactivate_policy, responses=known)


def _add_command_routes(app: FastAPI, do: CommandEndpoints) -> None:
    route = partial(_route, app)
    route("GET", "/v1/commands", do.commands)
    route("POST", "/v1/commands", do.command, responses=_refusals(403, 404, 409, 422))
