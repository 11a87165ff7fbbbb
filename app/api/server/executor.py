"""The control plane of all requests, and the worker threads that call it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, TypeVar

import anyio.to_thread
from pydantic import BeforeValidator

from app.api.models import ForbiddenError
from probes.control_plane import ControlPlane

_T = TypeVar("_T")


def _digits(text: Any) -> Any:
    if isinstance(text, str) and not (text.isascii() and text.isdigit()):
        raise ValueError("it is no whole number")
    return text


WholeNumber = Annotated[int, BeforeValidator(_digits)]
"""A number in a query. pydantic alone would also accept 1.0."""


class PlaneExecutor:
    """Calls a control plane in a limited number of worker threads: calls may take long."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self._readers = anyio.CapacityLimiter(4)
        # A second limit: a few compiles must not keep clients from reading.
        self._workers = anyio.CapacityLimiter(4)

    async def read(self, function: Callable[..., _T], *arguments: Any) -> _T:
        return await _in_thread(self._readers, function, *arguments)

    async def work(self, function: Callable[..., _T], *arguments: Any) -> _T:
        return await _in_thread(self._workers, function, *arguments)

    def may_change(self) -> None:
        """Raise ForbiddenError if the control plane is read-only."""
        if self.plane.read_only:
            raise ForbiddenError(self.plane.read_only)

    def may_compile(self, *, owner: bool) -> None:
        """Raise ForbiddenError if a client's source must not be compiled.

        A source can include any file that the compile helper sees. The `owner` of the Unix socket
        can read those files anyway.
        """
        self.may_change()
        if not owner and (reason := self.plane.unconfined()):
            raise ForbiddenError(
                f"the compile helper is not confined ({reason})",
                hint="sources are taken from the Unix socket and from files of the host only",
            )


async def _in_thread(
    limiter: anyio.CapacityLimiter, function: Callable[..., _T], *arguments: Any
) -> _T:
    # Cancelled only when the listener closes. A compile then ends on its own.
    return await anyio.to_thread.run_sync(
        partial(function, *arguments), limiter=limiter, abandon_on_cancel=True
    )
