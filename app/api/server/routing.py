"""Routes of the API: a method of an endpoints class declares its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from http import HTTPStatus
from inspect import iscoroutinefunction
from typing import Any

from fastapi import FastAPI

from app.api.models import Problem
from app.api.server.executor import PlaneExecutor

CHANGE = (403, 409, 422)
"""Refusals of a request that changes something."""
Responses = dict[int | str, dict[str, Any]]


class Endpoints:
    """Methods that are routes; their docstrings describe the requests."""

    def __init__(self, executor: PlaneExecutor) -> None:
        self.executor = executor
        self.plane = executor.plane


def route(
    method: str,
    path: str,
    *refusals: int,
    works: bool | None = None,
    responses: Responses | None = None,
    **options: Any,
) -> Callable[[Callable[..., Any]], Any]:
    """Declare a route. The method runs in a worker thread, unless it is a coroutine function.

    `works`: it may take long, like a compile; by default every method but GET.
    """

    def declare(function: Callable[..., Any]) -> Any:
        @wraps(function)
        async def in_thread(self: Endpoints, *arguments: Any, **named: Any) -> Any:
            works_long = method != "GET" if works is None else works
            run = self.executor.work if works_long else self.executor.read
            return await run(partial(function, self, *arguments, **named))

        endpoint: Any = function if iscoroutinefunction(function) else in_thread
        endpoint.route = method, path, {"responses": {**refused(*refusals), **(responses or {})}}
        endpoint.route[2].update(options)
        return endpoint

    return declare


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
