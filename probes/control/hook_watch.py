"""Events about hooks, and the thread that checks the order of programs on them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from probes.snapshot import Event, HookStatus

PERIOD = 2.0
"""Seconds between two looks; one takes some 50 us."""


class HookWatch:
    """Calls `look` every PERIOD seconds, in the network namespace of the caller of `start`."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hooks", daemon=True)

    def start(self) -> None:
        """Start the thread, if it does not run yet."""
        if self._thread.ident is None:
            self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(PERIOD):
            self._look()


def attached(status: HookStatus) -> Event:
    """Describe a hook that was attached now."""
    text = status.mode + (f" ({status.reason})" if status.reason else "")
    if status.before:
        text += f"; {_first(status)}"
    return _event("warning" if status.before else "info", status, text)


def order_changed(status: HookStatus) -> Event:
    """Describe what changed about the programs before ours."""
    if status.mode == "removed":
        return _event("error", status, "another program removed ours, and probedeck counts nothing")
    if status.before:
        return _event("warning", status, _first(status))
    return _event("info", status, "no other program runs first any more")


def _event(severity: str, status: HookStatus, text: str) -> Event:
    return Event.now(severity, status.interface, f"{status.hook}: {text}")


def _first(status: HookStatus) -> str:
    one = len(status.before) == 1
    runs, drop = ("runs", "it drops or redirects") if one else ("run", "they drop or redirect")
    return f"{' and '.join(status.before)} {runs} first: packets that {drop} are not counted"
