"""The hosts of a fleet on the Overview: their answers, and sentences about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from app.console.protocol import Console
from app.console.screens.events.columns import EVENTS
from app.console.screens.overview.trouble import Kind, Trouble, link_troubles
from app.console.screens.paths.hosts import TracedByHost
from app.console.tables.spec import columns
from bpf.quantities import duration
from probes.control_plane import ControlPlane
from probes.monitor.info import MonitorInfo
from probes.path.traced import Traced
from widgets.table.rows import Column
from widgets.tones import Tone

_Answer = tuple[tuple[Traced, ...], MonitorInfo | None]


class HostAnswers:
    """The traces of every chosen host, and the monitor of the current one, asked at once."""

    def __init__(self) -> None:
        self._last: Mapping[str, _Answer] = {}

    def fetch(self, console: Console) -> Callable[[], tuple[TracedByHost, MonitorInfo | None]]:
        """Return the call that asks. A host that is slow keeps its last answer."""
        name = console.hosts.current
        current = console.hosts.plane(name)

        def of(plane: ControlPlane) -> _Answer:
            return plane.traced(), plane.monitor() if plane is current else None

        def ask() -> tuple[TracedByHost, MonitorInfo | None]:
            self._last = found = console.hosts.ask(of, self._last)
            monitor = found[name][1] if name in found else None
            return {host: traced for host, (traced, _) in found.items()}, monitor

        return ask


def host_troubles(console: Console) -> Iterator[Trouble]:
    """Yield sentences for chosen hosts: slow link, missing, wrong clock, active policies.

    The screen itself has the policies of the host under the cursor.
    """
    yield from link_troubles(console.plane.late_by)
    missing = console.frame.missing
    if not console.hosts.several:
        return
    planes = console.hosts.planes
    for one in planes.states():
        if one.name in missing:
            why = f": {one.reason}" if one.reason else ""
            text = f"{one.name} is {one.state}, and all numbers lack it{why}"
            yield Trouble(Kind.ENDED, 1, text, Tone.BAD, "hosts", one.name)
            continue
        if one.name not in planes.chosen:
            continue
        if one.clock_is_off:
            side = "ahead of" if one.offset_s > 0 else "behind"
            off = duration(abs(one.offset_s))
            text = (
                f"The clock of {one.name} is {off} {side} the clock here; its times are corrected"
            )
            yield Trouble(
                Kind.WARNING, abs(one.offset_s), text, Tone.WARN, "hosts", one.name,
                events=(one.url, "clock"),
            )  # fmt: skip
        if one.active and one.name != planes.current:
            text = f"Active on {one.name}: {', '.join(one.active)}"
            row = one.name, one.active[0]
            yield Trouble(Kind.FIRES, len(one.active), text, Tone.WARN, "triggers", row)


def event_columns(console: Console) -> tuple[Column[Any], ...]:
    """Return the columns of events, with the host of each if several hosts are chosen."""
    title = {"title": "Events"}
    if not console.hosts.several:
        return columns(EVENTS, time=title)
    # A narrow block has room for the host and for a short text.
    return columns(EVENTS, time=title, node={"hidden": False}, text={"width": 20})
