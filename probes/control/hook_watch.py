"""Attaches hooks, and follows their interfaces and the order of programs on them in a thread."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator

from bpf.attach import ingress, rtnetlink
from bpf.attach import interface as interfaces
from bpf.attach.attachment import Hook
from bpf.attach.group import InterfaceGroup
from bpf.attach.interface import Interface
from bpf.errors import ProbedeckError, UsageError, printable
from probes.hooks import Hooks
from probes.hooks.interface_hook import GroupHook, InterfaceHook
from probes.poller import Publish
from probes.snapshot import Event, HookStatus

PERIOD = 2.0
"""Seconds between two looks; one takes some 50 us."""


class HookWatch:
    """Attaches hooks, also to an interface that returns under its name, and publishes each change
    of an interface and of the programs before ours.

    Its thread looks every PERIOD seconds, and when an interface changes, in the network namespace
    where the first hook is.
    """

    def __init__(self, publish: Publish, *, by_link: bool) -> None:
        self.hooks = Hooks(self._attach, self.follow)
        self._publish = publish
        self._by_link = by_link
        self._stop_fd = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="hooks", daemon=True)

    def stop(self) -> None:
        if self._stop_fd >= 0:
            os.eventfd_write(self._stop_fd, 1)
            if self._thread.ident is not None:
                self._thread.join()
            os.close(self._stop_fd)
            self._stop_fd = -1

    def follow(self, *, changed: bool = True) -> None:
        """Renew the names and states of the interfaces, and attach the hooks that waited.

        `changed`: an interface of this namespace may have changed.
        """
        with self.hooks.lock:
            points: dict[Interface, list[InterfaceHook]] = {x: [] for x in self.hooks.interfaces}
            for point in self.hooks.in_use():
                points.get(point.interface, []).append(point)
            # Nobody asks about an interface without hooks.
            events = [
                e
                for each in points
                if changed or not isinstance(each, InterfaceGroup) or each.is_everywhere
                for e in self._follow(each, points[each])
                if points[each]
            ]
        for event in events:
            self._publish(event)

    def _run(self) -> None:
        ended = False
        while not ended:
            # The messages are only a sign, so a new socket costs less than reading them all.
            with rtnetlink.link_changes() as changes:
                poll = select.poll()
                for fd in (changes.fileno(), self._stop_fd):
                    poll.register(fd, select.POLLIN)
                self.follow()
                ready: dict[int, int] = {}
                while not ready:
                    for point in self.hooks.look():
                        self._publish(_order_changed(point.status))
                    ready = dict(poll.poll(PERIOD * 1000))
                    if not ready:
                        self.follow(changed=False)
                ended = self._stop_fd in ready

    def _follow(self, interface: Interface, points: list[InterfaceHook]) -> Iterator[Event]:
        """Follow an interface that goes, returns, goes down or up, or gets another name."""
        if isinstance(interface, InterfaceGroup):
            yield from _follow_group(interface, points)
            return
        was = interface.up
        if was is not None:
            name = printable(interface.name_now())
            if not name:
                was = interface.up = None
                for point in points:
                    point.detach(waits=True)
                yield _changed(interface, "went away, and its probes wait for its return")
            elif name != interface.name:
                interface.former.add(interface.name)
                interface.name, old = name, interface.name
                yield Event.now("info", name, f"the interface was renamed from {old}")
        if was is None:
            try:
                interface.index = interfaces.find(interface.name).index
            except UsageError:
                return
        interface.up = interface.is_up()
        if was is not interface.up:
            back, state = "back, and " * (was is None), "up" if interface.up else "down"
            yield _changed(interface, f"is {back}{state}")
        for point in points:
            if point.waits:
                yield from self._return(point)

    def _return(self, point: InterfaceHook) -> Iterator[Event]:
        """Attach a hook whose interface is back; it waits on if that fails."""
        try:
            if interfaces.find(point.interface.name).ethernet is not point.interface.ethernet:
                raise UsageError("it is of another kind now", hint="remove and add its probes")
            yield self._join(point)
        except ProbedeckError as error:
            if point.refusal != error.message:
                point.refusal = error.message
                yield _event("error", point.status, f"not attached again: {error}")

    def _attach(self, point: InterfaceHook) -> None:
        name = point.interface.name
        if point.hook is Hook.XDP and (cost := ingress.interruption(point.interface)):
            self._publish(Event.now("warning", name, cost))
        attached = self._join(point)
        if self._thread.ident is None:
            self._thread.start()
        self._publish(attached)

    def _join(self, point: InterfaceHook) -> Event:
        """Attach a hook; return the event about it."""
        point.attach(by_link=self._by_link)
        point.look({each for other in self.hooks.in_use() for each in other.own_programs()})
        return _attached(point.status)


def _follow_group(group: InterfaceGroup, points: list[InterfaceHook]) -> Iterator[Event]:
    """Follow the interfaces that join a group and leave it."""
    joined, left = group.renew()
    attached = [point for point in points if isinstance(point, GroupHook) and point.attachment]
    for member in left:
        for point in attached:
            point.leave(member)
    for member in joined:
        for point in attached:
            try:
                point.join(member)
            except ProbedeckError as error:
                name = member.interface.name
                yield Event.now("error", name, f"{point.hook.value}: not attached: {error}")
    for point in attached if joined or left else ():
        point.tell()
    for changed, verb in ((left, "left"), (joined, "joined")):
        for member in changed if attached else ():
            yield Event.now("info", member.interface.name, f"{verb} {group.name}")


def _changed(interface: Interface, what: str) -> Event:
    severity, phase = ("info", "end") if interface.up else ("warning", "begin")
    return Event.now(severity, interface.name, f"the interface {what}", "link", phase)


def _attached(status: HookStatus) -> Event:
    """Describe a hook that was attached now."""
    text = status.mode + (f" ({status.reason})" if status.reason else "")
    if status.before:
        return _event(_severity(status), status, f"{text}; {_first(status)}", "begin")
    return _event("info", status, text)


def _order_changed(status: HookStatus) -> Event:
    """Describe what changed about the programs before ours."""
    if status.mode == "removed":
        return _event("error", status, "another program removed ours, and probedeck counts nothing")
    if status.before:
        return _event(_severity(status), status, _first(status), "begin")
    return _event("info", status, "no other program runs first any more", "end")


def _severity(status: HookStatus) -> str:
    return "warning" if status.foreign else "info"


def _event(severity: str, status: HookStatus, text: str, phase: str = "") -> Event:
    subject = f"{status.hook} order" if phase else ""
    return Event.now(severity, status.interface, f"{status.hook}: {text}", subject, phase)


def _first(status: HookStatus) -> str:
    one = len(status.before) == 1
    runs, drop = ("runs", "it drops or redirects") if one else ("run", "they drop or redirect")
    return f"{' and '.join(status.before)} {runs} first: packets that {drop} are not counted"
