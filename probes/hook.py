"""The hooks in use: each the chain of its probes, and its attachment to an interface."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from bpf import grace
from bpf.attach import Attachment, Hook, attach
from bpf.chain import Chain, Stage
from bpf.compiler import Compiled
from bpf.errors import UsageError
from bpf.interface import Interface
from probes.sharing import SharedMaps


class Where(NamedTuple):
    """Which place of which interface programs are put at."""

    interface_index: int

    hook: Hook
    monitored: bool = False
    """Behind the monitoring primitive of that hook, for packets that policies select."""


class Stages(Protocol):
    """Programs that packets come to one after another, as `bpf.chain.Chain` has them."""

    def append(self, stage: Stage, prog_fd: int) -> None: ...

    def replace(self, stage: Stage, prog_fd: int) -> None: ...

    def remove(self, stage: Stage) -> grace.Grace: ...


class Point(Protocol):
    """Where a probe's program can be put."""

    interface: Interface
    hook: Hook
    users: int

    @property
    def chain(self) -> Stages: ...

    @property
    def mode(self) -> str: ...

    @property
    def macros(self) -> Mapping[str, int | str]:
        """What a source is compiled with to run here."""

    @property
    def shared(self) -> Mapping[str, int]:
        """Maps, by name, that all programs here work on."""


class HookPoint:
    """One hook of one interface. Packets pass it, with probes in its chain and without."""

    shared: Mapping[str, int] = {}

    def __init__(self, interface: Interface, hook: Hook) -> None:
        self.interface = interface
        self.hook = hook
        self.chain = Chain(hook.prog_type)
        self.macros = macros_of(interface, hook)
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


class MonitoredPoint:
    """Behind the monitoring primitive of a hook, which is what attaches it."""

    def __init__(
        self,
        point: HookPoint,
        chain: Stages,
        macros: Mapping[str, int | str],
        shared: Mapping[str, int],
        prepare: Callable[[Compiled], None],
    ) -> None:
        self.prepare = prepare
        """Has trials of a program, on the maps that it was compiled with, run as here."""
        self.interface = point.interface
        self.hook = point.hook
        self.chain = chain
        self.macros = macros
        self.shared = shared
        self.users = 0
        self.mode = "monitor"


def macros_of(interface: Interface, hook: Hook) -> dict[str, int | str]:
    """What a source is compiled with for a hook."""
    return {hook.macro: 1, "LINK_ETHERNET": int(interface.ethernet)}


class Hooks:
    """Every hook in use, detached after its last user. For use by several threads."""

    def __init__(self, attach: Callable[[HookPoint], None]) -> None:
        """`attach` attaches a point, or does not where packets come from test runs alone."""
        self._attach = attach
        self._points: dict[Where, HookPoint] = {}
        self.maps = SharedMaps()
        """What programs of several hooks or probes work on."""
        self._monitored: dict[int, MonitoredPoint] = {}
        """By interface."""
        # Attaching is told to listeners, who may ask what is in use.
        self._lock = threading.RLock()

    def acquire(self, interface: Interface, hook: Hook) -> HookPoint:
        """A hook, not yet attached if it is new; to be given back by `release`."""
        with self._lock:
            key = Where(interface.index, hook)
            point = self._points.get(key)
            if point is None:
                point = self._points[key] = HookPoint(interface, hook)
            point.users += 1
            return point

    def place(self, interface: Interface, where: Where) -> Point:
        """As `acquire`, or behind the interface's monitor; to be given back by `release`."""
        with self._lock:
            if not where.monitored:
                return self.acquire(interface, where.hook)
            point = self.monitored(interface)
            point.users += 1
            return point

    def offer(self, point: MonitoredPoint) -> None:
        """Have programs put behind a monitor, until `withdraw`."""
        with self._lock:
            self._monitored[point.interface.index] = point

    def withdraw(self, point: MonitoredPoint) -> None:
        """UsageError while there are programs."""
        with self._lock:
            if point.users:
                raise UsageError("the monitor has applications", hint="remove them first")
            del self._monitored[point.interface.index]

    def monitored(self, interface: Interface) -> MonitoredPoint:
        """The place behind its monitor; UsageError where it has none."""
        with self._lock:
            point = self._monitored.get(interface.index)
            if point is None:
                raise UsageError(
                    f"no monitor runs on {interface.name}, and so no application of it can",
                    hint="give --monitor, or a policy",
                )
            return point

    def attach(self, point: Point) -> None:
        """Attach it if it is not. Raises as bpf.attach.attach does."""
        with self._lock:
            if isinstance(point, HookPoint) and point.attachment is None:
                self._attach(point)

    def release(self, point: Point) -> None:
        """Give a hook back; it is detached when nobody has it any more."""
        with self._lock:
            point.users -= 1
            if isinstance(point, HookPoint) and not point.users:
                del self._points[Where(point.interface.index, point.hook)]
                point.close()

    def points(self) -> Sequence[HookPoint]:
        with self._lock:
            return tuple(self._points.values())
