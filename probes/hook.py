"""The hooks in use: each the chain of its probes, and its attachment to an interface."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from bpf.attach import Attachment, Hook, attach
from bpf.chain import Chain
from bpf.interface import Interface


class HookPoint:
    """One hook of one interface. Packets pass it, with probes in its chain and without."""

    def __init__(self, interface: Interface, hook: Hook) -> None:
        self.interface = interface
        self.hook = hook
        self.chain = Chain(hook.prog_type)
        self.attachment: Attachment | None = None
        """None before `attach`: only PROG_TEST_RUN brings packets then."""
        self.users = 0
        """Programs that have a place here; `Hooks` counts them."""

    def attach(self, *, by_link: bool = True) -> Attachment:
        """Have the interface's packets go through the chain. Raises as bpf.attach.attach does."""
        self.attachment = attach(self.hook, self.chain.fd, self.interface, by_link=by_link)
        return self.attachment

    @property
    def mode(self) -> str:
        """How it is attached."""
        return self.attachment.mode if self.attachment else "not attached"

    def close(self) -> None:
        """Detach; the probes have left before."""
        if self.attachment:
            self.attachment.close()
        self.chain.close()


class Hooks:
    """Every hook in use, detached after its last user. For use by several threads."""

    def __init__(self, attach: Callable[[HookPoint], None]) -> None:
        """`attach` attaches a point, or does not where packets come from test runs alone."""
        self._attach = attach
        self._points: dict[tuple[int, Hook], HookPoint] = {}
        # Attaching is told to listeners, who may ask what is in use.
        self._lock = threading.RLock()

    def acquire(self, interface: Interface, hook: Hook) -> HookPoint:
        """A hook, not yet attached if it is new; to be given back by `release`."""
        with self._lock:
            key = (interface.index, hook)
            point = self._points.get(key)
            if point is None:
                point = self._points[key] = HookPoint(interface, hook)
            point.users += 1
            return point

    def attach(self, point: HookPoint) -> None:
        """Attach it if it is not. Raises as bpf.attach.attach does."""
        with self._lock:
            if point.attachment is None:
                self._attach(point)

    def release(self, point: HookPoint) -> None:
        """Give a hook back; it is detached when nobody has it any more."""
        with self._lock:
            point.users -= 1
            if not point.users:
                del self._points[point.interface.index, point.hook]
                point.close()

    def points(self) -> Sequence[HookPoint]:
        with self._lock:
            return tuple(self._points.values())
