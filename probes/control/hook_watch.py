"""Attaches hooks, and checks the order of programs on them in a thread."""

from __future__ import annotations

import threading

from bpf.attach import ingress
from bpf.attach.attachment import Hook
from probes.hooks import Hooks, InterfaceHook
from probes.poller import Publish
from probes.snapshot import Event, HookStatus

PERIOD = 2.0
"""Seconds between two looks; one takes some 50 us."""


class HookWatch:
    """Attaches hooks, and publishes an event when the programs before ours change.

    Its thread looks every PERIOD seconds, in the network namespace where the first hook is.
    """

    def __init__(self, publish: Publish, *, by_link: bool) -> None:
        self.hooks = Hooks(self._attach)
        self._publish = publish
        self._by_link = by_link
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hooks", daemon=True)

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(PERIOD):
            for point in self.hooks.look():
                self._publish(_order_changed(point.status))

    def _attach(self, point: InterfaceHook) -> None:
        name = point.interface.name
        if point.hook is Hook.XDP and (cost := ingress.interruption(point.interface)):
            self._publish(Event.now("warning", name, cost))
        point.attach(by_link=self._by_link)
        point.look({other.program_id for other in self.hooks.in_use()})
        if self._thread.ident is None:
            self._thread.start()
        self._publish(_attached(point.status))


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
