"""The present of a controller in lines, and the answers to typed lines."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from app import resolve
from app.console.live.state import Frame, LiveState
from app.console.plain.changes import FrameChanges, traffic_line
from app.console.plain.tables import busiest, path_lines, policy_lines
from app.console.screens.overview.model import late
from app.console.screens.overview.now import calm, troubles
from app.console.screens.overview.trouble import (
    Trouble,
    connection_troubles,
    link_troubles,
    output_troubles,
)
from app.console.screens.paths.model import Paths
from app.console.screens.triggers.model import Triggers
from bpf.errors import ProbedeckError, did_you_mean, printable
from probes.control_plane import ControlPlane
from probes.output_control import OutputStatus
from probes.path.traced import Traced
from probes.snapshot import Event

_GROUPS = ("conversations", "hosts", "services")
WORDS = ("now", *_GROUPS, "paths", "policies", "trace", "help", "q")
HELP = f"type {', '.join(WORDS[:6])}, trace ADDRESS, help, or q to quit (ctrl+d, too)"


class PlainSession:
    """Prints changes and answers; any thread may call a method."""

    def __init__(self, plane: ControlPlane, write: Callable[[str], None]) -> None:
        """`write` prints a line."""
        self.state = LiveState()
        self._plane = plane
        self._write = write
        self._changes = FrameChanges()
        self._paths, self._triggers = Paths(), Triggers()
        self._traced: tuple[Traced, ...] = ()
        self._outputs: tuple[OutputStatus, ...] = ()
        self._lock = threading.Lock()

    def tell(self) -> None:
        """Print what changed since the last call."""
        with self._lock:
            frame = self.state.frame()
            found = self._troubles(frame, ())
            for line in self._changes.lines(frame, found, time.monotonic()):
                self._write(printable(line))

    def answer(self, typed: str) -> bool:
        """Print the answer to a typed line. Returns False if the user quits."""
        word, _, rest = typed.strip().partition(" ")
        if word == "q":
            return False
        try:
            lines = self._trace(rest.strip()) if word == "trace" else self._answer(word)
        except ProbedeckError as error:
            lines = [str(error)]
        with self._lock:
            for line in lines:
                self._write(printable(line))
        return True

    def _answer(self, word: str) -> list[str]:
        frame = self.state.frame()
        if not word:
            return []
        if word == "help":
            return [HELP]
        if word in _GROUPS:
            found = busiest(frame.flows, word)
            return [f"{found.count} {word}, the busiest first", *found.lines]
        with self._lock:
            wrong = self._troubles(frame, frame.events)
            if word == "now":
                shown = [one.sentence(200) for one in wrong]
                return [*(shown[:10] or [calm(frame.pulses)]), traffic_line(frame)]
            if word == "paths":
                return path_lines(self._paths) or ["no path is traced: type trace ADDRESS"]
            if word == "policies":
                return policy_lines(self._triggers) or ["no policy runs"]
        return [f"{word!r} is no command: {did_you_mean(word, WORDS)}"]

    def _trace(self, name: str) -> list[str]:
        if not name:
            return ["trace needs an address: trace 192.0.2.1"]
        addresses = resolve.addresses(name)
        resolve.check_routes(addresses)
        for address in addresses:
            self._plane.trace(address)
        return [f"tracing {', '.join(addresses)} by its own traffic: type paths"]

    def _troubles(self, frame: Frame, events: tuple[Event, ...]) -> list[Trouble]:
        """Return what is wrong in a frame, with sentences about `events`."""
        with suppress(ProbedeckError):
            # A lost connection, which an event tells of: the last answers stay.
            self._traced, self._triggers.info = self._plane.traced(), self._plane.monitor()
            self._outputs = self._plane.outputs.status()
        self._paths.take(frame.paths, self._traced)
        self._triggers.view = frame.monitor
        now, pulses, ended = time.monotonic(), frame.pulses, {}
        silent = late(pulses.probes.values(), now, self._plane)
        if silent:
            with suppress(ProbedeckError):
                # Only if a probe is late: listing probes is slow, and needs pydantic.
                known = {one.name: one.failure for one in self._plane.probes()}
                ended = {name: why for name, why in known.items() if why}
                here = {name: one for name, one in pulses.probes.items() if name in known}
                pulses = replace(pulses, probes=here)
                silent = [one for one in silent if one.name in known]
        connections = connection_troubles(frame, self._paths)
        slow = link_troubles(self._plane.late_by)
        failing = output_troubles(self._outputs, frame.utc_ns)
        return troubles(
            pulses, silent, ended, now, frame.flows.left_out, self._paths, self._triggers, events,
            frame.utc_ns, others=(*connections, *slow, *failing),
        )  # fmt: skip
