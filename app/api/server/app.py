"""Routes and error answers of the API; FastAPI derives its OpenAPI document from them."""

from __future__ import annotations

import threading
from http import HTTPStatus

from fastapi import Depends, FastAPI, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from app.api.models import ExistsError, ForbiddenError, Problem, UnknownError, problem_of
from app.api.server.auth import AuthMiddleware, Rights, refusal
from app.api.server.broadcaster import Broadcaster, TooManyError
from app.api.server.command_endpoints import CommandEndpoints, CommandRunner
from app.api.server.endpoints import ProbeEndpoints
from app.api.server.monitor_endpoints import (
    ExplainEndpoints,
    MetricsEndpoints,
    MonitorEndpoints,
    OutputEndpoints,
    SegmentEndpoints,
)
from app.api.server.routing import Executor, add_routes, others, refused
from app.exporters.openmetrics.metric_state import MetricState
from bpf.errors import ProbedeckError, ReadOnlyError, UsageError, did_you_mean
from probes.control_plane import ControlPlane
from probes.reports import NoProbeError
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
_ADDING_ROUTES = threading.Lock()
"""FastAPI hides warnings of pydantic by a filter of the whole process, for each parameter. Two
listeners that begin at the same time would remove each other's filter."""


def _no_others(request: Request) -> None:
    dependant = request.scope["route"].dependant
    known = {
        parameter.alias
        for each in (dependant, *dependant.dependencies)
        for parameter in each.query_params
    }
    for name in request.query_params:
        if name not in known:
            hint = did_you_mean(name, sorted(known)) or "there are none here"
            raise UsageError(f"no parameter {name!r}", hint=hint)


def create(
    plane: ControlPlane,
    broadcaster: Broadcaster,
    rights: Rights,
    version: str,
    metrics: MetricState,
    console: CommandRunner | None = None,
) -> AuthMiddleware:
    """Return the application of one listener, for its event loop, behind its access checks."""
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
        responses=refused(400, 401, 413),
        dependencies=[Depends(_no_others), *((bearer,) if rights.token else ())],
    )
    executor = Executor(plane)
    with _ADDING_ROUTES:
        add_routes(app, ProbeEndpoints(executor, broadcaster, version))
        add_routes(app, MonitorEndpoints(executor))
        add_routes(app, CommandEndpoints(executor, console))
        add_routes(app, ExplainEndpoints(executor))
        add_routes(app, OutputEndpoints(executor))
        add_routes(app, MetricsEndpoints(executor, metrics))
        add_routes(app, SegmentEndpoints(executor))
        add_routes(app, others(app, executor))

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
            routes = (each for each in app.routes if isinstance(each, APIRoute))
            fitting = (each for each in routes if each.matches(request.scope)[0] is not Match.NONE)
            headers["Allow"] = ", ".join(sorted(m for each in fitting for m in each.methods or ()))
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
