"""What all requests share: the control plane, and the threads that ask it."""

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
"""Of a query; pydantic alone would take 1.0 too."""


class PlaneExecutor:
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
        """Raise ForbiddenError if nothing may be changed, and no code loaded."""
        if self.plane.read_only:
            raise ForbiddenError(self.plane.read_only)

    def may_compile(self, *, owner: bool) -> None:
        """Raise ForbiddenError if a client may not have its source compiled.

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
    # Abandoned only when the listener closes: a compile then ends by itself.
    return await anyio.to_thread.run_sync(
        partial(function, *arguments), limiter=limiter, abandon_on_cancel=True
    )
