"""What all requests share: the control plane, and the threads that ask it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, TypeVar

import anyio.to_thread
from pydantic import BeforeValidator

from app.rest.models import ForbiddenError
from probes.plane import ControlPlane

_T = TypeVar("_T")


def _digits(text: Any) -> Any:
    if isinstance(text, str) and not (text.isascii() and text.isdigit()):
        raise ValueError("it is no whole number")
    return text


Number = Annotated[int, BeforeValidator(_digits)]
"""Of a query; pydantic alone would take 1.0 too."""


class Desk:
    """Asks a control plane in threads, as it may take its time; only so many at once."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self._readers = anyio.CapacityLimiter(4)
        # Apart, or a few compiles would keep everybody from reading.
        self._workers = anyio.CapacityLimiter(4)

    async def read(self, function: Callable[..., _T], *arguments: Any) -> _T:
        return await _in_thread(self._readers, function, *arguments)

    async def work(self, function: Callable[..., _T], *arguments: Any) -> _T:
        return await _in_thread(self._workers, function, *arguments)

    def may_change(self) -> None:
        """Raises ForbiddenError where nothing may be changed."""
        if self.plane.read_only:
            raise ForbiddenError(self.plane.read_only)


async def _in_thread(
    limiter: anyio.CapacityLimiter, function: Callable[..., _T], *arguments: Any
) -> _T:
    # Abandoned only when the listener closes: a compile then ends by itself.
    return await anyio.to_thread.run_sync(
        partial(function, *arguments), limiter=limiter, abandon_on_cancel=True
    )
