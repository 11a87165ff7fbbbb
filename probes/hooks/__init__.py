"""The hooks in use: each the chain of its probes, and its attachment to an interface."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, NamedTuple, Protocol, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from bpf.attach import group, ingress
from bpf.attach.attachment import Hook
from bpf.attach.chain import Stage
from bpf.attach.group import InterfaceGroup
from bpf.attach.ingress import HookChoice
from bpf.attach.interface import AnyHook, Interface
from bpf.compiler import Compiled
from bpf.errors import KernelError, ProbedeckError, UsageError
from bpf.programs import grace
from probes.hooks.interface_hook import GroupHook, InterfaceHook
from probes.sharing import SharedMaps
from probes.snapshot import WAITS, HookStatus

_T = TypeVar("_T")


class XdpRefusedError(KernelError):
    """The driver refused native XDP. The operator did not name the hook, so TC can replace it."""


def on_best_hook(make: Callable[[], _T]) -> _T:
    """Call `make`. If the driver refuses native XDP, call it again: it then chooses TC."""
    try:
        return make()
    except XdpRefusedError:
        return make()


class HookKey(NamedTuple):
    """A hook of an interface."""

    interface: Interface | None
    """None for events."""
    hook: AnyHook
    monitored: bool = False
    """Behind the monitor, for packets that policies select."""

    @classmethod
    def of(cls, interface: Interface, hook: AnyHook, *, monitored: bool = False) -> HookKey:
        return cls(interface if interface.index else None, hook, monitored)


class ProbeChain(Protocol):
    """Programs that run one after another, see `bpf.attach.chain.Chain`."""

    def append(self, stage: Stage, prog_fd: int) -> None: ...

    def replace(self, stage: Stage, prog_fd: int) -> None: ...

    def remove(self, stage: Stage) -> grace.Grace: ...


@dataclass(slots=True, eq=False)
class MonitoredHook:
    """A hook behind a monitor, which attaches it."""

    point: InterfaceHook
    chain: ProbeChain
    macros: Mapping[str, int | str]
    shared: Mapping[str, int]
    """Maps, by name, that all programs here share."""
    prepare: Callable[[Compiled], None]
    """Prepares the maps of compile time for trials of an application."""
    users: int = 0
    interface: Interface = field(init=False)
    hook: AnyHook = field(init=False)

    def __post_init__(self) -> None:
        self.interface, self.hook = self.point.interface, self.point.hook

    @property
    def mode(self) -> str:
        return WAITS if self.point.waits else "monitor"

    @property
    def status(self) -> HookStatus:
        return replace(self.point.status, mode=self.mode)


ProbeHook = InterfaceHook | MonitoredHook
"""A hook that a probe's program can join."""
H = TypeVar("H", bound=ProbeHook)


class ChainSlot(Generic[H]):
    """A probe's slot in the chain of a hook; all its generations share it."""

    def __init__(self, hooks: Hooks, point: H, name: str) -> None:
        """`close` releases the acquired `point`. Raises KernelError, and then releases it."""
        self._hooks, self.point = hooks, point
        try:
            self.stage = Stage(name)
        except BaseException:
            hooks.release(point)
            raise

    @property
    def is_reached(self) -> bool:
        return self.stage.prog_fd >= 0

    def replace(self, prog_fd: int) -> None:
        """Swap the program, if packets reach it; until a grace period ends, the old one may run."""
        if self.is_reached:
            self.point.chain.replace(self.stage, prog_fd)

    def leave(self) -> None:
        """Take the program out of the chain; on return no CPU runs it."""
        if self.is_reached:
            self.point.chain.remove(self.stage)

    def close(self) -> None:
        self.leave()
        self.stage.close()
        self._hooks.release(self.point)


class Hooks:
    """Every hook in use, detached after its last user. Any thread may call it."""

    def __init__(
        self, attach: Callable[[InterfaceHook], None], follow: Callable[[], None] = lambda: None
    ) -> None:
        """`attach` attaches a hook; in tests it may do nothing. `follow` renews `interfaces`."""
        self._attach = attach
        self._follow = follow
        self.interfaces: WeakSet[Interface] = WeakSet()
        """Interfaces that a probe may use, one object for each."""
        self._points: dict[HookKey, InterfaceHook] = {}
        self.ingress: Hook | None = None
        """The hook of `--ingress`, for probes that run on every hook."""
        self.maps = SharedMaps()
        """Maps that several programs share."""
        self._choices: WeakKeyDictionary[Interface, dict[AnyHook, HookChoice]]
        self._choices = WeakKeyDictionary()
        """The last decision about each hook."""
        self._refused: WeakKeyDictionary[Interface, str] = WeakKeyDictionary()
        """Reasons why drivers refused native XDP, by interface."""
        self._monitored: dict[Interface, MonitoredHook] = {}
        """By interface."""
        # Attaching publishes an event, and listeners may call back: hence the RLock.
        self.lock = threading.RLock()

    def find(self, name: str) -> Interface:
        """Return an interface, also by the name before it was renamed or went away.

        Raises UsageError with the nearest name if it is unknown.
        """
        self._follow()
        with self.lock:
            try:
                found = group.find(name)
            except UsageError:
                for point in self._points.values():
                    if name in (point.interface.name, *point.interface.former):
                        return point.interface
                raise
            several = isinstance(found, InterfaceGroup)
            for each in self.interfaces:
                same = each.name == found.name if several else each.up is not None
                if each.index == found.index and same:
                    return each
            if isinstance(found, InterfaceGroup):
                found.claim()
            self.interfaces.add(found)
            return found

    def choose(self, interface: Interface, wish: Hook | None, reason: str = "") -> HookChoice:
        """Return the hook for a probe; None as `wish` leaves the choice on ingress open.

        `reason` explains a wish that the operator did not express.
        """
        with self.lock:
            choice = self._choice(interface, wish or self.ingress, reason)
            self._choices.setdefault(interface, {})[choice.hook] = choice
            return choice

    def _choice(self, interface: Interface, wish: Hook | None, reason: str) -> HookChoice:
        if isinstance(interface, InterfaceGroup):
            if wish is Hook.XDP:
                raise UsageError(
                    f"XDP is for one interface, and {interface.name} may be several",
                    hint="leave out --ingress xdp",
                )
            if wish is not Hook.TC_EGRESS:
                return HookChoice(Hook.TC_INGRESS, "several interfaces share the programs of TC")
        if wish is Hook.XDP and not interface.ethernet:
            # Without Ethernet, drivers give XDP programs different data.
            return HookChoice(Hook.TC_INGRESS, "no Ethernet header")
        if wish is not None:
            return HookChoice(wish, reason)
        for hook in (Hook.XDP, Hook.TC_INGRESS):
            point = self._points.get(HookKey.of(interface, hook))
            if point and point.waits:
                return HookChoice(hook, point.reason, auto=point.auto)
        if point := self._points.get(HookKey.of(interface, Hook.XDP)):
            if point.mode == "native":
                return HookChoice(Hook.XDP, "native XDP is in use already", auto=True)
            return HookChoice(Hook.TC_INGRESS, "only generic XDP is possible", auto=True)
        if why := self._refused.get(interface):
            return HookChoice(Hook.TC_INGRESS, why, auto=True)
        try:
            return ingress.choose(interface)
        except OSError as error:
            raise KernelError(f"{interface.name} is gone: {error.strerror}") from None

    def acquire(self, interface: Interface, hook: AnyHook) -> InterfaceHook:
        """Return a hook, not yet attached if it is new. The caller must `release` it."""
        with self.lock:
            key = HookKey.of(interface, hook)
            point = self._points.get(key)
            if point is None:
                choice = self._choices.get(interface, {}).get(hook)
                if isinstance(interface, InterfaceGroup) and isinstance(hook, Hook):
                    point = GroupHook(interface, hook, choice)
                else:
                    point = InterfaceHook(interface, hook, choice)
                self._points[key] = point
            point.users += 1
            return point

    def place(self, interface: Interface, where: HookKey) -> ProbeHook:
        """Return a hook as `acquire`, or the one behind the interface's monitor."""
        with self.lock:
            if not where.monitored:
                return self.acquire(interface, where.hook)
            point = self.monitored(interface)
            point.users += 1
            return point

    def offer(self, point: MonitoredHook) -> None:
        """Offer a place behind a monitor to programs, until `withdraw`."""
        with self.lock:
            self._monitored[point.interface] = point

    def withdraw(self, point: MonitoredHook) -> None:
        """End an offer; a later monitor keeps its own. The programs of the place stay."""
        with self.lock:
            if self._monitored.get(point.interface) is point:
                del self._monitored[point.interface]

    def monitored(self, interface: Interface) -> MonitoredHook:
        """Return the hook behind its monitor. Raises UsageError if it has no monitor."""
        with self.lock:
            if point := self._monitored.get(interface):
                return point
            raise UsageError(
                f"no monitor runs on {interface.name}, and so no application of it can",
                hint="give --monitor, or a policy",
            )

    def attach(self, point: ProbeHook) -> None:
        """Attach a hook unless it is attached already; if its interface is away, when it returns.

        Raises as bpf.attach.attachment.attach does, and XdpRefusedError if the operator left the
        choice open: `choose` then returns TC.
        """
        with self.lock:
            if not isinstance(point, InterfaceHook) or point.attachment is not None:
                return
            if point.interface.up is None:
                point.waits = True
                return
            try:
                self._attach(point)
            except ProbedeckError as error:
                if point.hook is not Hook.XDP or not point.auto:
                    raise
                self._refused[point.interface] = error.message
                raise XdpRefusedError(error.message, hint=error.hint) from None

    def rest(self, point: ProbeHook) -> None:
        """Detach a hook while its chain is empty; `attach` attaches it again."""
        with self.lock:
            if isinstance(point, InterfaceHook) and not len(point.chain):
                point.detach()

    def look(self) -> list[InterfaceHook]:
        """List the programs before ours on each hook; return the hooks whose list changed."""
        with self.lock:
            attached = [point for point in self._points.values() if point.attachment]
            own = {each for point in attached for each in point.own_programs()}
            return [point for point in attached if point.look(own)]

    def release(self, point: ProbeHook) -> None:
        """Release a hook; the last user's release detaches it."""
        with self.lock:
            point.users -= 1
            if isinstance(point, InterfaceHook) and not point.users:
                del self._points[HookKey.of(point.interface, point.hook)]
                point.close()

    def in_use(self) -> Sequence[InterfaceHook]:
        with self.lock:
            return tuple(self._points.values())
