"""The control plane of all requests, and the worker threads that call it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import anyio.to_thread
from pydantic import BeforeValidator

from app.api.models import ForbiddenError
from probes.control_plane import ControlPlane


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

    async def read(self, call: Callable[[], Any]) -> Any:
        return await _in_thread(self._readers, call)

    async def work(self, call: Callable[[], Any]) -> Any:
        return await _in_thread(self._workers, call)

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


async def _in_thread(limiter: anyio.CapacityLimiter, call: Callable[[], Any]) -> Any:
    # Cancelled only when the listener closes. A compile then ends on its own.
    return await anyio.to_thread.run_sync(call, limiter=limiter, abandon_on_cancel=True)
