"""The present of a controller in lines: changes between frames, and answers to typed lines."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from app import resolve
from app.console.live.flows import LiveView
from app.console.live.frames import Frame
from app.console.live.state import LiveState
from app.console.screens.overview.model import late, rates
from app.console.screens.overview.now import calm, troubles
from app.console.screens.overview.trouble import (
    Trouble,
    connection_troubles,
    link_troubles,
    output_troubles,
)
from app.console.screens.paths.model import Paths
from app.console.screens.triggers.columns import value_text
from app.console.screens.triggers.model import Triggers
from app.events.folding import EventGroup, fold
from bpf.arrays import Row
from bpf.errors import ProbedeckError, did_you_mean, printable
from bpf.quantities import age, bit_rate, clock, counted, duration, percent
from probes.control_plane import ControlPlane
from probes.filter.hosts import address_text
from probes.flow.grouping import GROUP, group
from probes.flow.records import FlowDirection
from probes.flow.services import service_name
from probes.path.traced import Traced
from probes.reports import OutputStatus
from probes.snapshot import Event

_MOST = 5
"""Most lines of a kind at a time."""
_TRAFFIC_S = 10.0
_FACTOR = 2.0
"""A larger change of traffic, or of a group of events, gets a line at once."""
_LITTLE = 10_000.0
"""Bits per second; a change below it is no news."""
_SECONDS = 2
"""Cells of the rates."""


@dataclass(slots=True)
class FrameChanges:
    """Compares frames with the lines that it has returned before."""

    _troubles: dict[Hashable, tuple[str, float]] = field(default_factory=dict)
    """Text and time of the begin of each present trouble, by key."""
    _times: dict[tuple[str, str], int] = field(default_factory=dict)
    """Times of each group of events in its last line."""
    _open: set[tuple[str, str]] = field(default_factory=set)
    """Groups of events whose last line says that they go on."""
    _traffic: tuple[float, float, float] = (-math.inf, 0.0, 0.0)
    """Time, and rates in and out, of the last line of traffic."""

    def lines(self, frame: Frame, troubles: Sequence[Trouble], now: float) -> list[str]:
        """Return the lines for a frame; `now` is `time.monotonic()`.

        `troubles` are the frame's, without its events.
        """
        found = self._of_events(frame, {one.events for one in troubles})
        before, present = self._troubles, {one.key: one for one in troubles}
        began = [f"began: {one.timeless}" for key, one in present.items() if key not in before]
        over = [
            f"over after {age(now - since)}: {text}"
            for key, (text, since) in before.items()
            if key not in present
        ]
        # The text at the beginning names a trouble that is over.
        self._troubles = {key: before.get(key, (one.text, now)) for key, one in present.items()}
        few = (*_few(began, "troubles"), *_few(over, "troubles"))
        return [*few, *found, *self._of_traffic(frame, now)]

    def _of_events(self, frame: Frame, told: Collection[tuple[str, str]]) -> list[str]:
        lines = []
        for one in reversed(fold(frame.events)):
            before = self._times.get(one.key, 0)
            if before and one.key in self._open and not one.is_open:
                lines.append(f"over: {_of_event(one)}")
            elif one.times >= max(1, _FACTOR * before) and one.key not in told:
                lines.append(_of_event(one))
            else:
                continue
            self._times[one.key] = one.times
            (self._open.add if one.is_open else self._open.discard)(one.key)
        return _few(lines, "events")

    def _of_traffic(self, frame: Frame, now: float) -> list[str]:
        if not len(frame.pulses.traffic):
            return []
        came, left = (rates(frame.pulses.traffic, way, _SECONDS).bits for way in ("in", "out"))
        at, *before = self._traffic
        same = not (_differ(before[0], came) or _differ(before[1], left))
        if same and (now - at < _TRAFFIC_S or (came, left) == tuple(before)):
            return []
        self._traffic = now, came, left
        return [traffic_line(frame)]


def traffic_line(frame: Frame) -> str:
    """Return the present rates, and the busiest conversation."""
    pulses = frame.pulses
    if not len(pulses.traffic):
        return "no traffic measured yet"
    text = f"in {bit_rate(rates(pulses.traffic, 'in', _SECONDS).bits)}"
    if not pulses.both_ways:
        return text
    text += f", out {bit_rate(rates(pulses.traffic, 'out', _SECONDS).bits)}"
    top = busiest(frame.flows, "conversations")
    text += f", {counted(top.count, 'conversation')}"
    return f"{text}; most: {top.lines[0].split(',')[0]}" if top.lines else text


def _of_event(one: EventGroup) -> str:
    times = f", {one.times} times" if one.times > 1 else ""
    severity = "" if one.severity == "info" else f"{one.severity}: "
    return f"{clock(one.last_ns)} {severity}{one.source}: {one.newest.text}{times}"


def _few(lines: list[str], noun: str) -> list[str]:
    left_out = len(lines) - _MOST
    return [*lines[:_MOST], f"and {left_out} more {noun}: type now"] if left_out > 0 else lines


def _differ(before: float, now: float) -> bool:
    low, high = sorted((before, now))
    return high > _FACTOR * low and high - low > _LITTLE


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


ROWS = 10
"""Most rows of an answer."""


@dataclass(frozen=True, slots=True)
class LargestGroups:
    """Groups of flows, the busiest first."""

    count: int
    """Number of all groups."""
    lines: tuple[str, ...]
    """At most ROWS: name and rates."""


def busiest(view: LiveView, kind: str) -> LargestGroups:
    """Return the busiest groups of a kind: conversations, hosts or services."""
    found = group(view.rows, kind)
    rows, size = found.rows, len(found.rows)
    rates = view.rows["bit_rate"]
    is_in = view.rows["direction"] == FlowDirection.INGRESS
    came = np.bincount(found.of, rates * is_in, size)
    left = np.bincount(found.of, rates * ~is_in, size)
    # Names break ties, so that equal groups keep their order.
    order = np.lexsort((rows["id"], -(came + left)))[:ROWS]
    lines = (
        f"{_name(rows[at], kind)} {bit_rate(came[at] + left[at])}, "
        f"in {bit_rate(came[at])}, out {bit_rate(left[at])}"
        for at in order.tolist()
    )
    return LargestGroups(size, tuple(lines))


def _name(row: Row[GROUP], kind: str) -> str:
    service = service_name(int(row["protocol"]), int(row["service_port"]))
    if kind == "services":
        return service
    far = address_text(row["far"].tobytes(), int(row["version"]))
    return far if kind == "hosts" else f"{far} {service}"


def path_lines(paths: Paths) -> list[str]:
    """Return a line for each traced destination."""
    whole = (choice for choice in paths.choices if choice.flow is None)
    lines = []
    for choice in islice(whole, ROWS):
        one = paths.summary(choice)
        known = math.isfinite(one["hops"])
        parts = [counted(int(one["hops"]), "router") if known else "routers unknown"]
        if math.isfinite(one["rtt"]):
            parts.append(f"round trip {duration(one['rtt'])}")
        if math.isfinite(one["loss"]):
            parts.append(f"{percent(one['loss'])} lost")
        if one["queue"]:
            parts.append(f"{duration(one['queue'])} of queueing at hop {one['queue_hop']}")
        lines.append(f"{choice.destination}: {', '.join(parts)}")
    return lines


def policy_lines(triggers: Triggers) -> list[str]:
    """Return a line for each policy."""
    return [
        f"{one.name}: {one.info.state.name.lower()}, {value_text(one, 'value')} now, "
        f"fires if {one.info.policy.when}"
        for one in triggers.statuses(1)[:ROWS]
    ]
