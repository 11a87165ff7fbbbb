"""Routes of the API: a method of an endpoints class declares its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from http import HTTPStatus
from inspect import iscoroutinefunction
from types import NoneType
from typing import Annotated, Any, TypeVar, get_type_hints

import anyio.to_thread
from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from pydantic import BeforeValidator

from app.api.models import ForbiddenError, Problem, UnknownError
from bpf.errors import did_you_mean
from probes.control_plane import OPERATIONS, ControlPlane
from probes.monitor.info import PolicyInfo
from probes.monitor.policy import Policy
from probes.operation import Operation
from probes.reports import ProbeInfo

_T = TypeVar("_T")
CHANGE = (403, 409, 422)
"""Refusals of a request that changes something."""
Responses = dict[int | str, dict[str, Any]]


def _digits(text: Any) -> Any:
    if isinstance(text, str) and not (text.isascii() and text.isdigit()):
        raise ValueError("it is no whole number")
    return text


WholeNumber = Annotated[int, BeforeValidator(_digits)]
"""A number in a query. pydantic alone would also accept 1.0."""


class Executor:
    """Calls a control plane in a limited number of worker threads: calls may take long."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self._readers = anyio.CapacityLimiter(4)
        # A second limit: a few compiles must not keep clients from reading.
        self._workers = anyio.CapacityLimiter(4)

    async def run(self, call: Callable[[], Any], *, works: bool) -> Any:
        limiter = self._workers if works else self._readers
        # Cancelled only when the listener closes. A compile then ends on its own.
        return await anyio.to_thread.run_sync(call, limiter=limiter, abandon_on_cancel=True)


class Endpoints:
    """Methods that are routes; their docstrings describe the requests."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.plane = executor.plane

    def may_change(self) -> None:
        """Raise ForbiddenError if the control plane is read-only."""
        if self.plane.read_only:
            raise ForbiddenError(self.plane.read_only)

    def may_compile(self, request: Request) -> None:
        """Raise ForbiddenError if a client's source must not be compiled.

        A source can include any file that the compile helper sees. The owner of a Unix socket
        without a group can read those files anyway.
        """
        if not request.state.owner and (reason := self.plane.unconfined()):
            raise ForbiddenError(
                f"the compile helper is not confined ({reason})",
                hint="take a Unix socket without a group, or a file of the host",
            )

    def may_act(self, policy: Policy, request: Request) -> None:
        """Raise ForbiddenError if a policy acts on packets, and this client may not do that."""
        if policy.action and not policy.action.dry and not request.state.acts:
            raise ForbiddenError(
                f"this token may not let policy {policy.name} act on packets",
                hint="send the token of --api-action-token, or let the action be dry",
            )

    def find_probe(self, name: str) -> ProbeInfo:
        """Return a probe. Raises UnknownError."""
        return find("probe", name, {info.name: info for info in self.plane.probes()})

    def policies_by_name(self) -> dict[str, PolicyInfo]:
        """Return all policies; none without a monitor."""
        info = self.plane.monitor()
        return {each.policy.name: each for each in info.policies} if info else {}

    def find_policy(self, name: str) -> PolicyInfo:
        """Return a policy. Raises UnknownError."""
        return find("policy", name, self.policies_by_name())


def route(
    method: str,
    path: str,
    *refusals: int,
    writes: bool = False,
    works: bool = False,
    responses: Responses | None = None,
    **options: Any,
) -> Callable[[Callable[..., Any]], Any]:
    """Declare a route: a coroutine, or run in a worker thread. `works`: a GET that is slow.

    `writes`: a controller that is read-only refuses it, after checks of the request's form; the
    middleware refuses readers before.
    """

    def declare(function: Callable[..., Any]) -> Any:
        @wraps(function)
        async def in_thread(self: Endpoints, *arguments: Any, **named: Any) -> Any:
            def call() -> Any:
                if writes:
                    self.may_change()
                return function(self, *arguments, **named)

            return await self.executor.run(call, works=method != "GET" or works)

        endpoint: Any = function if iscoroutinefunction(function) else in_thread
        codes = (*CHANGE, *refusals) if writes else refusals
        answers = {**refused(*codes), **(responses or {})}
        endpoint.route = method, path, {"responses": answers, **options}
        return endpoint

    return declare


def serves(
    operation: Operation[..., Any], *refusals: int, **options: Any
) -> Callable[[Callable[..., Any]], Any]:
    """Declare the route of an operation."""
    path, writes = f"/v1/{operation.route}", operation.writes
    return route(operation.verb, path, *refusals, writes=writes, **options)


def endpoint_of(operation: Operation[..., Any], *refusals: int, **options: Any) -> Any:
    """Return an endpoint that only calls the method; a probe or policy in its route must exist."""
    method, hints = operation.method, get_type_hints(operation.method)

    def call(self: Endpoints, **named: Any) -> Any:
        if operation.is_named:
            is_probe = operation.route.startswith("probes/")
            (self.find_probe if is_probe else self.find_policy)(named["name"])
        return getattr(self.plane, operation.name)(**named)

    signature = inspect.signature(method)
    parameters = [
        each.replace(annotation=hints.get(name)) for name, each in signature.parameters.items()
    ]
    answer = None if hints["return"] is NoneType else hints["return"]
    call.__name__, call.__doc__ = operation.name, operation.about
    vars(call)["__signature__"] = signature.replace(parameters=parameters, return_annotation=answer)
    if answer is None:
        options["status_code"] = HTTPStatus.NO_CONTENT
    codes = refusals or ((404,) if operation.is_named else ())
    return serves(operation, *codes, **options)(call)


def refused(*codes: int) -> Responses:
    return {code: {"model": Problem, "description": HTTPStatus(code).phrase} for code in codes}


def created(model: type) -> Responses:
    """Describe status 201; 200 means that the object existed."""
    return {201: {"model": model, "description": "Created"}}


def add_routes(app: FastAPI, endpoints: Endpoints) -> None:
    for name, function in vars(type(endpoints)).items():
        if found := getattr(function, "route", None):
            method, path, options = found
            bound = getattr(endpoints, name)
            app.add_api_route(path, bound, methods=[method], operation_id=name, **options)


def others(app: FastAPI, executor: Executor) -> Endpoints:
    """Return endpoints of the operations that have no route yet."""
    routes = [each for each in app.routes if isinstance(each, APIRoute)]
    served = {(verb, each.path) for each in routes for verb in each.methods or ()}
    rest = {
        name: endpoint_of(each)
        for name, each in OPERATIONS.items()
        if (each.verb, f"/v1/{each.route}") not in served
    }
    made: Endpoints = type("OtherEndpoints", (Endpoints,), rest)(executor)
    return made


def find(what: str, name: str, known: Mapping[str, _T]) -> _T:
    """Return the object of a name. Raises UnknownError."""
    if name not in known:
        hint = did_you_mean(name, sorted(known)) or "there are none"
        raise UnknownError(f"no {what} {name!r}", hint=hint)
    return known[name]
