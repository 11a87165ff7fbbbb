"""Blocks of the Overview: links, busiest conversations and hosts, pinned maps, hosts of a fleet."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from app.commands.flow_view import Grouping
from app.console.host_names import Names
from app.console.live.flows import LiveView
from app.console.live.frames import Frame
from app.console.live.maps import MapHistory, MapView
from app.console.live.owners import NO_OWNERS, OwnerView
from app.console.protocol import Console
from app.console.screen import ConsoleScreen
from app.console.screens.events.columns import EVENTS
from app.console.screens.flows.group_columns import CONVERSATIONS, HOSTS, SERVICES, shown_columns
from app.console.screens.flows.rows import GroupedFlows, ShownFlows, live_table
from app.console.screens.flows.screen import shown_rows
from app.console.screens.flows.selection import GroupKey
from app.console.screens.overview.trouble import Kind, Trouble, link_troubles
from app.console.screens.paths.hosts import TracedByHost
from app.console.screens.programs.columns import MAPS
from app.console.tables.spec import columns
from bpf.arrays import Array
from bpf.attach.rtnetlink import backlog, lately
from bpf.errors import ProbedeckError
from bpf.features import link_speed
from bpf.quantities import bit_rate, byte_size, duration, percent
from probes.control_plane import ControlPlane
from probes.flow.grouping import group
from probes.monitor.info import MonitorInfo
from probes.path.traced import Traced
from probes.reports import MapReadings
from probes.snapshot import Peak
from widgets.status import StatusItem
from widgets.table.block import Block
from widgets.table.rows import Column, Rows, RowSource
from widgets.tones import Tone

_MOST = 4
"""Most links to read: the busiest ones."""
_LOOKS = 3
"""Looks, a second apart, that must all find packets waiting: a burst fills a queue, too."""
_FULL = 0.95
_BETWEEN = 8 * 24
"""Bits of a frame on Ethernet that no program sees: preamble, checksum, and the gap behind it."""


@dataclass(frozen=True, slots=True)
class LinkUse:
    """One direction of an interface."""

    name: str
    way: str
    bits: float
    """Bits per second of the last window."""
    share: float = math.nan
    """Of the speed, with the gaps between frames; NaN if the speed is unknown."""
    speed: int = 0
    """Bits per second; 0: unknown."""
    queue: str = ""
    """Kind of the queueing discipline in which packets wait; empty if none does."""
    waiting: int = 0
    """Bytes in it."""
    looks: int = 0
    """Consecutive looks that found some."""
    peak: Peak | None = None
    """None if it is unknown."""

    @property
    def is_full(self) -> bool:
        return self.looks >= _LOOKS or self.share >= _FULL

    @property
    def text(self) -> str:
        """`out 932 Mbit/s, 95.1 % of 1.00 Gbit/s, peak 985 Mbit/s in 8.00 ms`."""
        of = f", {percent(min(self.share, 1.0))} of {bit_rate(self.speed)}" if self.speed else ""
        text = f"{self.way} {bit_rate(self.bits)}{of}"
        one = self.peak
        return f"{text}, peak {bit_rate(one.bits)} in {duration(one.ns / 1e9)}" if one else text


class Links:
    """Looks at the busiest links of this host, once a second."""

    def __init__(self) -> None:
        self._looks: dict[str, int] = {}

    def look(self, frame: Frame) -> tuple[LinkUse, ...]:
        """Return the busiest links, the fullest first. The kernel may need some time."""
        links = sorted(_rates(frame), key=lambda each: -each[0].bits)[:_MOST]
        found = [self._link(*each, frame.flows.now_ns) for each in links]
        return tuple(sorted(found, key=lambda one: (one.is_full, one.share, one.bits))[::-1])

    def _link(self, one: LinkUse, gaps: float, now_ns: int) -> LinkUse:
        name, speed = one.name, lately(link_speed, one.name, now_ns)
        share = (one.bits + gaps) / speed if speed else math.nan
        queue, waiting = "", 0
        if one.way == "out":
            with suppress(OSError):
                queue, waiting = backlog(socket.if_nametoindex(name))
            self._looks[name] = self._looks.get(name, 0) + 1 if waiting else 0
        looks = self._looks.get(name, 0) if waiting else 0
        return replace(one, share=share, speed=speed, queue=queue, waiting=waiting, looks=looks)


def _rates(frame: Frame) -> Iterator[tuple[LinkUse, float]]:
    """Yield each direction of an interface that was busy, and the bits per second of its gaps."""
    table, traffic = frame.pulses.links, frame.pulses.flows[-1:]
    rows: Array = table.rows if table is not None else traffic
    seconds = table.seconds if table is not None else float(traffic["seconds"].sum())
    item = table or frame.last
    peaks = {(each.interface, each.direction): each for each in item.peaks} if item else {}
    for row in rows:
        name = (
            row["interface"].decode() if table is not None else frame.last and frame.last.interface
        )
        for way, direction in (("in", "ingress"), ("out", "egress")):
            parts = (way, f"repeated_{way}") if table is not None else (way,)
            size, packets = (
                sum(int(row[f"{part}_{of}"]) for part in parts) for of in ("bytes", "packets")
            )
            if size and name:
                peak = peaks.get((name, direction))
                link = LinkUse(name, way, 8 * size / seconds, peak=peak)
                yield link, packets * _BETWEEN / seconds


def full_links(links: Sequence[LinkUse]) -> Iterator[Trouble]:
    """Yield a sentence for each link that is full."""
    for one in links:
        if one.is_full:
            queue = f", {byte_size(one.waiting)} wait in its {one.queue}" if one.looks else ""
            text = f"Link {one.name} is full: {one.text}{queue}"
            about = "link", one.name, one.way
            yield Trouble(Kind.STRAIN, one.bits, text, Tone.WARN, "flows", None, (), about)


def link_items(links: Sequence[LinkUse]) -> list[StatusItem]:
    """Return the item about the fullest link; without a known speed about the busiest."""
    return [
        StatusItem(one.text, Tone.WARN if one.is_full else Tone.MUTED, 4, label=one.name)
        for one in links[:1]
    ]


SPECS = {spec.name: spec for spec in (CONVERSATIONS, HOSTS, SERVICES)}
_TITLES = {"conversations": "Conversations", "hosts": "Hosts", "services": "Services"}
_NAMES = {"conversations": "service", "hosts": "host", "services": "service"}
"""First column of each block: its title is the name of the block."""
_LEFT_OUT = ("idle", "protocol")
"""Columns that take the room of names: the busiest are not idle, and a service has one protocol."""
_NAME_CELLS = 13
"""Least width of that column, for the name."""
_NARROW = 78
_NARROW_CELLS = {"remote": 16, "process": 8}
"""Widths of columns in a narrower block: they leave room for the process."""


class Busiest:
    """Groups of all flows of a view, the busiest first."""

    def __init__(self) -> None:
        self._of: tuple[LiveView, OwnerView] | None = None
        self._grouped: dict[str, GroupedFlows] = {}
        self._rows: dict[tuple[str, int, int, object], ShownFlows] = {}

    def take(self, view: LiveView, owners: OwnerView = NO_OWNERS) -> None:
        """Group the flows of a view, unless view and owners are the last ones."""
        if self._of == (view, owners):
            return
        table, places = live_table(view, owners=owners), np.arange(len(view.rows))
        self._of = view, owners
        conversations = group(view.rows, "conversations", salts=view.salts)
        self._grouped = {
            kind: GroupedFlows(view, places, Grouping(kind), table, conversations) for kind in SPECS
        }
        self._rows = {}

    def count(self, kind: str) -> int:
        """Return the number of groups of a kind."""
        return len(self._grouped[kind].rows)

    def rows(self, kind: str, names: Names, width: int, most: int) -> ShownFlows:
        """Return the groups of a kind with the `most` highest rates, for a block of `width`
        cells."""
        asked = kind, width, most, names.version
        if asked not in self._rows:
            rows = shown_rows(self._grouped[kind], names, width)
            place = rows.spec.names.index("rate")
            first = np.arange(max(0, min(most, rows.rows)))
            self._rows[asked] = rows.ordered(place, descending=True).at(first)
        return self._rows[asked]

    def columns(self, kind: str, width: int) -> tuple[Column[Any], ...]:
        """Return the columns of a block of `width` cells."""
        found = titled(kind, shown_columns(self._grouped[kind], width, traced=False))
        cells = _NARROW_CELLS if width < _NARROW else {}
        return tuple(replace(one, width=cells.get(one.id, one.width)) for one in found)


def first_columns(kind: str) -> tuple[Column[Any], ...]:
    """Return the columns of a block before there are flows."""
    return titled(kind, columns(SPECS[kind]))


def titled(kind: str, found: tuple[Column[Any], ...]) -> tuple[Column[Any], ...]:
    """Return columns with the name of the block as the title of the first."""
    return tuple(
        replace(one, title=_TITLES[kind], width=max(one.width, _NAME_CELLS))
        if one.id == _NAMES[kind]
        else replace(one, hidden=one.hidden or one.id in _LEFT_OUT)
        for one in found
    )


def key_of(kind: str, identity: int) -> GroupKey:
    """Return the key of a group, for the screen that has it."""
    return GroupKey(Grouping(kind), identity)


_PERIOD = 1.0
"""Seconds between two readings."""
_ENTRIES = 5
"""Entries of a pinned map."""
_LINES = 12
"""Most lines of the block."""
_CELLS = 24
"""Cells of the pictures."""
_PAST = "maps are live: they show the present only"


class PinnedMaps(Block):
    """The pinned maps with their largest entries; hidden without a pin."""

    def __init__(self) -> None:
        super().__init__(
            columns(MAPS, map={"title": "Pinned"}, picture={"width": _CELLS}), id="pinned"
        )
        self.display = False
        self._history = MapHistory()
        self._reading = False

    @property
    def lines(self) -> int:
        """Lines of the block; 0 if it is hidden."""
        return min(_LINES, 1 + self.source.rows) if self.display else 0

    def on_mount(self) -> None:
        self.set_interval(_PERIOD, self._read)

    def _read(self) -> None:
        """Read the probes of the pinned maps in a worker, while the screen is in front."""
        screen = self.screen
        assert isinstance(screen, ConsoleScreen)
        console = screen.console
        pins = console.pins.maps
        self.display = bool(pins)
        if not console.time.is_live:
            self.empty = _PAST
            self._fill(Rows())
        elif pins and screen.is_current and not self._reading:
            self._reading = True
            plane = console.plane

            def ask() -> tuple[MapReadings, ...]:
                running = {info.name for info in plane.probes()}
                names = dict.fromkeys(pin[0] for pin in pins)
                return tuple(plane.maps(name) for name in names if name in running)

            screen.run_in_worker(ask, self._taken, self._failed, asked=False)

    def _taken(self, readings: tuple[MapReadings, ...]) -> None:
        # Imported here: the first paint needs no numpy.
        from app.console.screens.programs.maps import map_rows

        self._reading = False
        screen = self.screen
        assert isinstance(screen, ConsoleScreen)
        views = [view for each in readings for view in self._history.take(each)]
        pins = screen.console.pins.maps
        if screen.console.time.is_live:
            self.empty = "no such map runs"
            pinned = [
                _largest(one)
                for one in views
                if (one.probe, one.reading.side, one.reading.name) in pins
            ]
            self._fill(map_rows(pinned, cells=_CELLS))

    def _failed(self, error: ProbedeckError) -> None:
        self._reading = False
        self.empty = str(error)
        self._fill(Rows())

    def _fill(self, rows: RowSource) -> None:
        self.show(rows)
        self.styles.height = self.lines


def _largest(view: MapView) -> MapView:
    """Return the view with its largest entries, in their order, and with its probe's name."""
    largest = sorted(view.entries, key=lambda each: -each.number)[:_ENTRIES]
    entries = tuple(each for each in view.entries if each in largest)
    reading = replace(view.reading, name=f"{view.probe} {view.reading.name}")
    return replace(view, reading=reading, entries=entries)


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
    missing = console.time.frame.missing
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
