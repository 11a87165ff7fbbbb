"""Screen 1: trouble, traffic, worst hops, policies; each block leads to its screen."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import cast

from textual import on
from textual.containers import Container, Vertical
from textual.widget import Widget

from app.console.dialogs.program_info import LocalHooks
from app.console.live.overview_feed import FLOW, Pulse, Pulses
from app.console.own_probes import OwnProbesLine
from app.console.protocol import with_hint
from app.console.screen import PollingScreen
from app.console.screens import SCREENS
from app.console.screens.events.rows import event_rows
from app.console.screens.overview.blocks import (
    Busiest,
    HostAnswers,
    Links,
    LinkUse,
    PinnedMaps,
    event_columns,
    first_columns,
    full_links,
    host_troubles,
    link_items,
)
from app.console.screens.overview.blocks import key_of as group_key
from app.console.screens.overview.model import (
    BROAD,
    GROUPS,
    WIDE,
    WorstHops,
    allotted,
    block_columns,
    late,
    notable_policies,
    pressing,
    rates,
    span_of,
)
from app.console.screens.overview.now import calm, troubles
from app.console.screens.overview.rows import (
    NO_FLOWS,
    NOW,
    OTHERS,
    TRAFFIC,
    WAITING_PATHS,
    WORST_HOPS,
    notes,
    now_rows,
    traffic_columns,
    traffic_rows,
    worst_columns,
    worst_rows,
)
from app.console.screens.overview.trouble import Trouble, connection_troubles, output_troubles
from app.console.screens.paths.hop import LITTLE
from app.console.screens.paths.hosts import TracedByHost, path_views
from app.console.screens.triggers.columns import POLICIES
from app.console.screens.triggers.model import Triggers, as_of
from app.console.screens.triggers.rows import policy_columns, policy_rows, protocols, share_items
from app.console.tables.spec import columns
from app.events.folding import fold
from bpf.quantities import counted, duration
from probes.monitor.info import MonitorInfo
from probes.monitor.state import PROBE as MONITOR
from probes.reports import OutputStatus
from probes.snapshot import Event
from widgets.status import StatusStrip
from widgets.table.block import Block
from widgets.table.rows import Rows
from widgets.table.table import VirtualTable
from widgets.tones import Way

_Outputs = tuple[OutputStatus, ...]
_Looked = tuple[
    TracedByHost, MonitorInfo | None, dict[str, str] | None, _Outputs, int, tuple[LinkUse, ...]
]
"""Traced paths, the monitor, the failure of each probe by name (only if one is late), outputs, the
seconds by which the link is late, and the links of this host."""
_SHARES = {"conversations": 3, "hosts": 2}
"""Blocks that get more rows than others."""
_LINES = ((50, 4), (30, 2), (0, 1))
"""Least heights of the screen, and the lines of each direction of traffic."""
_ALL = 1 << 20
_SENTENCES = (3, 8)
"""Most sentences about trouble, on short and on tall screens."""
_LATER = 0.01
"""Seconds for the first paint, which another thread writes to the terminal."""
_BARS = (14, 40)
"""Cells of the protocols' bar, on narrow and on wide screens."""


class Board(Container):
    """The blocks below the strips."""

    def on_resize(self) -> None:
        self.call_after_refresh(cast(OverviewScreen, self.screen).show)


class OverviewScreen(PollingScreen[_Looked]):
    """Trouble and traffic above, other blocks in one to three columns: as many rows as fit."""

    AUTO_FOCUS = "#conversations"
    MODE = "overview"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (WIDE, "-wide"), (BROAD, "-broad")]
    CSS = """
    OverviewScreen #board { layout: vertical; height: 1fr; overflow: hidden; }
    OverviewScreen #mix { background: $surface; }
    OverviewScreen #columns, OverviewScreen #others { layout: vertical; height: auto; }
    OverviewScreen #columns Vertical { height: auto; }
    OverviewScreen.-wide #columns, OverviewScreen.-broad #columns { layout: horizontal; }
    OverviewScreen.-wide #left, OverviewScreen.-broad #left { width: 3fr; }
    OverviewScreen.-wide #others { width: 2fr; margin-left: 1; }
    OverviewScreen.-broad #others { width: 3fr; layout: horizontal; margin-left: 1; }
    OverviewScreen.-broad #right { margin-left: 1; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._traced: TracedByHost = {}
        self._outputs: tuple[OutputStatus, ...] = ()
        self._ended: dict[str, str] = {}
        """Reasons of ended probes, by name."""
        self._removed: dict[str, float] = {}
        """Arrival of the last window of each removed probe."""
        self._asked = HostAnswers()
        self._links, self._busy_links = Links(), tuple[LinkUse, ...]()
        self._hops, self._busiest = WorstHops(), Busiest()
        self._monitor: MonitorInfo | None = None
        self._triggers = Triggers()
        self.troubles: list[Trouble] = []

    def compose_body(self) -> list[Widget]:
        talks = Block(first_columns("conversations"), empty=NO_FLOWS, id="conversations")
        talks.passed_by = False
        talks.show_sort("rate", descending=True)
        return [
            Block(columns(NOW), id="now"),
            Board(
                Container(
                    Vertical(talks, id="left"),
                    Container(Vertical(id="middle"), Vertical(id="right"), id="others"),
                    id="columns",
                ),
                id="board",
            ),
        ]

    @property
    def _no_paths(self) -> str:
        key = self.console.key_of
        flow = f"Press {key('flow.open').capitalize()} on a flow ({key('view.flows')})"
        return self._none(
            "paths traced", f"{flow}, or {key('path.trace')} on Paths ({key('view.paths')})"
        )

    @property
    def _no_policies(self) -> str:
        key = self.console.key_of
        return self._none("policies", f"Press {key('view.triggers')}, then {key('trigger.add')}")

    def _none(self, what: str, hint: str) -> str:
        """Say that there are none, and where to add them unless the console is read-only."""
        return with_hint(self.console, f"No {what}", hint, " yet. ") + "."

    def on_mount(self) -> None:
        # There is nothing in the other blocks at first: they need not delay the first paint.
        self.call_after_refresh(self.set_timer, _LATER, self._complete_with_keys)

    async def _complete_with_keys(self) -> None:
        await self._complete()
        for block in self.query(Block):
            leads = next((info for info in SCREENS.values() if block.id in info.blocks), None)
            if leads is not None:
                block.key = self.console.key_of(f"view.{leads.name}")
                block.refresh()

    async def _complete(self) -> None:
        if not self.is_attached:
            return  # The console ends.
        policies = columns(POLICIES, policy={"title": "Policies"})
        traffic = Block(columns(TRAFFIC), id="traffic")
        strips = StatusStrip(id="mix"), OwnProbesLine(), PinnedMaps()
        await self.query_one("#board").mount(traffic, *strips, before=0)
        hops = Block(columns(WORST_HOPS)[:1], empty=self._no_paths, id="hops")
        await self.query_one("#left").mount(hops)
        hosts, services = (Block(first_columns(kind), id=kind) for kind in ("hosts", "services"))
        for one in (hosts, services):
            one.show_sort("rate", descending=True)
        await self.query_one("#middle").mount(hosts, services)
        await self.query_one("#right").mount(
            Block(policies[:1], empty=self._no_policies, id="policies"),
            Block(event_columns(self.console), id="events"),
        )
        self.show()

    def block(self, name: str) -> Block:
        """One of now, traffic, conversations, hosts, services, hops, policies and events."""
        return self.query_one(f"#{name}", Block)

    # What runs

    def fetch(self) -> Callable[[], _Looked]:
        plane, ask_hosts = self.console.plane, self._asked.fetch(self.console)
        # Of several hosts, the state and the events of each say more.
        one, frame = not self.console.hosts.several, self.console.time.frame
        missed = bool(self._late(self._pulses())) and one

        def ask() -> _Looked:
            # Only if a probe is late: listing probes is slow, and needs pydantic.
            known = {one.name: one.failure for one in plane.probes()} if missed else None
            outputs = plane.outputs.status() if one else ()
            links = self._links.look(frame) if isinstance(plane, LocalHooks) else ()
            return *ask_hosts(), known, outputs, round(plane.late_by), links

        return ask

    def apply(self, answer: _Looked) -> None:
        self._traced, self._monitor, known, self._outputs, _, self._busy_links = answer
        if known is None:
            return
        self._ended = {name: why for name, why in known.items() if why}
        for one in self._late(self.console.time.frame.pulses):
            if one.name not in known:
                self._removed[one.name] = one.came_at

    def _pulses(self) -> Pulses:
        pulses = self.console.time.frame.pulses
        here = {n: p for n, p in pulses.probes.items() if self._removed.get(n) != p.came_at}
        return replace(pulses, probes=here)

    def _late(self, pulses: Pulses) -> list[Pulse]:
        return late(pulses.probes.values(), self._now, self.console.plane)

    @property
    def _events(self) -> tuple[Event, ...]:
        """Events of the frame that the user has not muted."""
        return self.console.event_marks.unmuted(self.console.time.frame.events)

    @property
    def _now(self) -> float:
        """Moment of the view, by `time.monotonic()`."""
        frame = self.console.time.frame
        if self.console.time.paused:
            return frame.at
        # A slow link delays the frame, not the probes.
        return frame.at + time.monotonic() - self.console.time.state.last_at

    # What is shown

    def show(self) -> None:
        frame, pulses = self.console.time.frame, self._pulses()
        self._hops.take(path_views(frame), self._traced, self.console.hosts.current)
        self._triggers.view = frame.monitor
        info = self._monitor
        self._triggers.info = (
            as_of(info, frame.monitor) if info and self.console.time.paused else info
        )
        self._show_now(pulses)
        self.show_notes(*notes(frame, self._trouble), *link_items(self._busy_links))
        if not self.query("#events"):
            return
        self._busiest.take(frame.flows, frame.owners)
        heights = self._arrange(pulses)
        self._show_traffic(pulses)
        for kind in GROUPS:
            self._show_groups(kind, heights[kind] - 1)
        self._show_hops(heights["hops"] - 1)
        self._show_policies(heights["policies"] - 1)
        groups = fold(self._events)[: max(0, heights["events"] - 1)]
        self.block("events").show(event_rows(groups, (), self.console.event_marks))
        focused = self.focused
        if focused is None or not (focused.focusable and focused.display):
            self.set_focus(next((one for one in self.focus_chain if isinstance(one, Block)), None))

    def _arrange(self, pulses: Pulses) -> dict[str, int]:
        traffic, mix = self.block("traffic"), self.query_one("#mix")
        known = bool(len(pulses.traffic))
        traffic.display = mix.display = known
        above = 0
        if known:
            traffic.styles.height = 1 + self._lines * (2 if pulses.both_ways else 1)
            above = 2 + self._lines * (2 if pulses.both_ways else 1)
        own = self.query_one(OwnProbesLine)
        own.follow(self.console.time.frame.paths)
        above += own.display + self.query_one(PinnedMaps).lines
        shown = pulses.both_ways or not pulses.probes
        wanted = {kind: self._busiest.count(kind) if shown else 0 for kind in GROUPS} | {
            "hops": self._hops.notable + (0 < self._hops.notable < len(self._hops)),
            "policies": notable_policies(self._triggers),
            "events": len(fold(self._events)),
        }
        if shown and not self.console.time.frame.flows.rows.size:
            # Lines for the first flows.
            wanted["conversations"] = _ALL
        for name in ("hops", "policies"):
            wanted[name] = wanted[name] or int(self.block(name).needs_line)
        lines = self.query_one(Board).size.height - above
        heights: dict[str, int] = {}
        for column in block_columns(self.size.width, tall=self.has_class("-tall")):
            of = {name: wanted[name] for name in column if shown or name not in GROUPS}
            heights |= allotted(lines, of, _SHARES)
        for name in wanted:
            self.block(name).display = name in heights
            self.block(name).styles.height = heights.setdefault(name, 0)
        return heights

    @property
    def _lines(self) -> int:
        return next(lines for least, lines in _LINES if self.size.height >= least)

    def _show_groups(self, kind: str, most: int) -> None:
        block = self.block(kind)
        width = block.size.width
        if not block.display or not width:
            return
        block.columns = self._busiest.columns(kind, width)
        block.show(self._busiest.rows(kind, self.console.names, width, most))

    def _show_now(self, pulses: Pulses) -> None:
        block, frame, silent = self.block("now"), self.console.time.frame, self._late(pulses)
        ended = {one.name: self._ended[one.name] for one in silent if one.name in self._ended}
        others = (
            *connection_troubles(frame, self._hops.paths), *host_troubles(self.console),
            *output_troubles(self._outputs, frame.utc_ns), *full_links(self._busy_links),
        )  # fmt: skip
        self.troubles = troubles(
            pulses, silent, ended, self._now, frame.flows.left_out, self._hops.paths,
            self._triggers, self._events, frame.utc_ns, self.console.event_marks.is_acknowledged,
            others,
        )  # fmt: skip
        key_of = self.console.key_of
        screens = {name: f"{key_of(f'view.{name}')} {one.title}" for name, one in SCREENS.items()}
        rows = now_rows(self.troubles, calm(pulses), block.width_of("text"), screens)
        most = _SENTENCES[self.has_class("-tall")]
        block.styles.height = 1 + min(rows.rows, most)
        block.show(Rows(rows.content[:most]))

    def _show_traffic(self, pulses: Pulses) -> None:
        block, traffic = self.block("traffic"), pulses.traffic
        if not len(traffic):
            block.show(Rows())
            return
        cells = block.width_of("line")
        names: tuple[Way, ...] = ("in", "out") if pulses.both_ways else ("in",)
        ways = {name: rates(traffic, name, cells) for name in names}
        block.columns = traffic_columns(cells * span_of(traffic))
        old = any(one.name in (FLOW, MONITOR) for one in self._late(pulses))
        block.show(traffic_rows(ways, self._lines, old=old))
        self.query_one("#mix", StatusStrip).show(
            share_items(protocols(traffic[-1]), _BARS[not self.has_class("-narrow")])
        )

    def _show_hops(self, most: int) -> None:
        block, known = self.block("hops"), len(self._hops)
        notable = self._hops.notable
        calm = f"None of {counted(known, 'hop')} adds {duration(LITTLE)} or loses packets."
        none = calm if known else WAITING_PATHS if any(self._traced.values()) else self._no_paths
        block.empty = f"{counted(notable, 'hop')} of {known}" if notable else none
        others = known - notable
        most = min(most, notable)
        found = self._hops.hops(most, block.width_of("line"))
        if found[0]:
            block.columns = worst_columns(*found, self.console.names, block.width_of("line"))
            # A column of hosts that grew took cells from the time lines.
            found = self._hops.hops(most, block.width_of("line"))
        block.show(worst_rows(*found, self.console.names, others if most == notable else 0))

    def _show_policies(self, most: int) -> None:
        block, triggers = self.block("policies"), self._triggers
        infos = triggers.info.policies if triggers.info else ()
        block.empty = f"{len(infos)} of them" if infos else self._no_policies
        if infos:
            cells = block.width_of("line")
            policies = [one.policy for one in infos]
            name, *others = policy_columns(policies, triggers.span(cells), cells)
            block.columns = (replace(name, title="Policies"), *others)
        found = pressing(triggers, block.width_of("line"))
        block.show(policy_rows(found[: max(0, most)]))

    @on(Block.CursorLeft)
    def _passed(self, event: Block.CursorLeft) -> None:
        stops = [one for one in self.focus_chain if isinstance(one, Block)]
        at = stops.index(self.focused) + event.step if self.focused in stops else 0
        if 0 <= at < len(stops):
            stops[at].enter(event.step)

    def do_overview_open(self) -> None:
        focused = self.focused
        if isinstance(focused, Block):
            self._open(focused.id or "", focused.cursor_key)

    def _open(self, name: str, key: Hashable | None) -> None:
        if name == "now":
            found = next((one for one in self.troubles if one.key == key), None)
            if found is not None and found.command:
                self.app.call_later(self.console.action_command, found.command)
                return
            to = ("programs", None) if found is None else (found.screen, found.row)
            self.app.call_later(self.console.turn_to, *to)
            return
        mode = next(screen.name for screen in SCREENS.values() if name in screen.blocks)
        if name in GROUPS and isinstance(key, int):
            key = group_key(name, key)
        if name == "hops" and key == OTHERS:
            key = None
        if name == "traffic":
            key = None
            mode = mode if self._pulses().both_ways else "triggers"
        self.app.call_later(self.console.turn_to, mode, key)

    @on(VirtualTable.RowSelected)
    async def _selected(self) -> None:
        await self.console.action_command("overview.open")
