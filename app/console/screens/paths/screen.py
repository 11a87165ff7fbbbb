"""Screen 2: traced paths, the hops of one, and a detail of a hop."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import cast

import numpy as np
from textual import on
from textual.widget import Widget

from app.commands.path_filter import HOPS as HOP_FILTERS
from app.commands.path_filter import PATHS, parse
from app.console.dialogs.program_info import LocalHooks
from app.console.live.frames import Frame
from app.console.live.paths import PathView
from app.console.protocol import Console, with_hint
from app.console.screen import PollingScreen
from app.console.screens.paths.columns import DESTINATIONS, HOP_CHANGES, HOPS, UNTRACED
from app.console.screens.paths.detail import PathDetail
from app.console.screens.paths.hop import HOP, PathKey
from app.console.screens.paths.hosts import (
    PathHosts,
    TracedByHost,
    path_table,
    path_views,
    shown_hops,
)
from app.console.screens.paths.model import Paths
from app.console.screens.paths.path_list import PathList
from app.console.screens.paths.picture import picture
from app.console.screens.paths.rows import (
    end_note,
    hop_changes,
    hop_columns,
    hop_rows,
    host_text,
    idle_text,
    note_items,
    scale_of,
)
from app.console.screens.paths.trace_commands import TracingCommands
from app.console.screens.paths.untraced import untraced
from app.console.tables.sorted_table import OPEN, ItemRows, SortedTable
from app.tape.named_state import StateValues
from bpf import arrays
from probes.filter import Domain, Filter, RowTable
from widgets.status import StatusItem, TonedLine
from widgets.table.table import VirtualTable
from widgets.tones import Tone

_SOON_NS = 400_000_000
"""Hops are drawn at most this often, by the clock of windows: short windows change their last
digits more often than anybody reads."""
_NOTHING = (
    "nothing is traced",
    "Enter on a flow of screen 3 traces its path\nT traces a destination",
)
"""The text of a table without hops, and the hint behind it; so the next ones."""
_FILTERED = "nothing passes the filter; escape clears it", ""
_WAITING = "no router has answered yet", "probes go out with packets to the destination"
_IDLE = (
    "nothing has been sent to it since tracing began",
    "probes go out with its packets: if the flow has ended, T traces every flow to the destination",
)
_ENDED = "no packets any more", "probes go out with them; T traces every flow to a destination"


def _take(hosts: PathHosts, console: Console, frame: Frame, traced: TracedByHost) -> None:
    hosts.take(path_views(frame), traced, console.hosts.current)


def first_states(console: Console) -> StateValues:
    """Return the values of named states before the user has turned to the screen."""
    paths = PathHosts()
    _take(paths, console, console.time.frame, {})
    return _states(paths, None)


def _states(hosts: PathHosts, choice: PathKey | None) -> StateValues:
    values: StateValues = {"path.count": len({one.destination for one in hosts.choices})}
    paths = hosts.of(choice)
    if choice is None or not (choice.is_way or choice in paths.choices):
        return values
    hops, summary = paths.hops(choice, 1), paths.summary(choice)
    return values | {
        "path.destination": choice.destination,
        "path.hops": int((~hops["is_end"]).sum()),
        "path.answering": sum(map(bool, hops["routers"][~hops["is_end"]])),
        **{
            f"path.{name}": None if math.isnan(summary[name]) else float(summary[name])
            for name in ("rtt", "loss")
        },
        "path.samples": int(summary["samples"]),
    }


class PathsScreen(PollingScreen[TracedByHost]):
    """Paths above, the hops of the chosen one below."""

    AUTO_FOCUS = "#hops, #hop_changes"
    MAIN_TABLE = "hops"
    MODE = "paths"
    filter_example = "rtt>50ms dst:10.0.0.0/8 hop<=5"
    CSS = """
    PathsScreen #paths { max-height: 5; }
    PathsScreen.-tall #paths { max-height: 33%; }
    PathsScreen.-empty #paths, PathsScreen.-short.-detail #paths { display: none; }
    PathsScreen #untraced { display: none; }
    PathsScreen.-untraced #untraced { display: block; max-height: 5; }
    PathsScreen.-untraced.-tall #untraced { max-height: 33%; }
    PathsScreen.-alone #untraced { max-height: 100%; }
    PathsScreen.-short.-detail #untraced { display: none; }
    PathsScreen #way { display: none; margin: 0 1; }
    PathsScreen.-measured #way { display: block; }
    PathsScreen.-tall.-measured #hops, PathsScreen.-tall.-measured #hop_changes {
        max-height: 60%;
    }
    PathsScreen.-tall.-measured PathDetail { display: block; height: 1fr; }
    PathsScreen.-wide #about { min-width: 50; }
    PathsScreen.-wide .queued > #queues { display: block; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.detail = PathDetail()
        self._hosts, self._marked = PathHosts(), PathHosts()
        self.listing = PathList(self._hosts, self.show)
        tracing = TracingCommands(self, self._hosts, lambda: self.choice, self._poll)
        self.parts = (tracing, self.listing)
        self._traced: TracedByHost = {}
        self._hops: arrays.Rows[HOP] = np.empty(0, HOP)
        self._filter: Filter = Filter()
        self._of_hops = Filter()
        self._drawn: tuple[object, ...] = ()
        """State for which hops and the picture of the way were drawn; it changes each second."""
        self._drawn_ns = 0
        """End of the window that the hops show."""
        self._taken: PathView | None = None
        """The view of the last call of `show`."""

    def filtered(self) -> tuple[tuple[Domain, RowTable | None], ...]:
        paths = path_table(self._hosts)
        return (PATHS, paths), (HOP_FILTERS, None)

    def compose_body(self) -> list[Widget]:
        changes = SortedTable(HOP_CHANGES, empty="\n\n".join(_WAITING))
        changes.display = False
        return [
            self.listing,
            TonedLine(id="way"),
            SortedTable(UNTRACED),
            SortedTable(HOPS, empty="\n\n".join(_NOTHING)),
            changes,
            self.detail,
        ]

    @property
    def choice(self) -> PathKey | None:
        """The chosen path; None without a path."""
        return self.listing.choice

    @property
    def _paths(self) -> Paths:
        """The paths of the host of the chosen one."""
        return self._hosts.of(self.choice)

    @property
    def table(self) -> SortedTable:
        """The table of hops, or of their changes between two moments."""
        return next(t for t in self.tables if t.display and t.spec not in (DESTINATIONS, UNTRACED))

    # What is traced

    def fetch(self) -> Callable[[], TracedByHost]:
        return partial(self.console.hosts.ask, lambda plane: plane.traced(), self._traced)

    def apply(self, answer: TracedByHost) -> None:
        self._traced = answer

    def set_filter(self, text: str) -> None:
        self._filter, self._of_hops = parse(text, self.console.settings.filters)

    # What is shown

    def point_at(self, key: Hashable) -> None:
        """Turn to a path, and to the hop of a number; None: do not move the cursor."""
        path, number = cast("tuple[PathKey, int | None]", key)
        self.listing.want_path(path)
        self.show()
        if number is not None:
            self.table.want(number)
            self.set_focus(self.table)

    def keep(self) -> dict[str, str]:
        detail = OPEN if self.detail.is_open else ""
        return super().keep() | {"detail": detail}

    def restore(self, kept: Mapping[str, str]) -> None:
        super().restore(kept)
        self._open_detail(kept.get("detail") == OPEN)

    def states(self) -> StateValues:
        _take(self._hosts, self.console, self.console.time.frame, self._traced)
        return _states(self._hosts, self.choice)

    def show(self) -> None:
        _take(self._hosts, self.console, self.console.time.frame, self._traced)
        listing = self.listing
        listing.follow(self._filter, self.console.names)
        self.set_class(not listing.source.rows, "-empty")
        self._show_untraced()
        chosen = None if listing.display else self.choice
        notes = note_items(self._hosts, listing.passing, self._filter, chosen)
        trouble = StatusItem(self._trouble, Tone.BAD, priority=1)
        self.show_notes(*notes, *([trouble] if self._trouble else []))
        view, before = self._paths.view, self._taken
        self._taken = view
        same = self._drawn == self._state and view is not before and self.console.time.is_live
        if not (same and 0 < view.now_ns - self._drawn_ns < _SOON_NS):
            self._show_hops()

    def _show_untraced(self) -> None:
        """List the destinations without a trace, with the facts from their sockets and routes."""
        table, own = self.query_one("#untraced", SortedTable), self._hosts.choices
        local = isinstance(self.console.plane, LocalHooks)
        found = untraced(self.console.time.frame, {one.destination for one in own}, local=local)
        alone = bool(found) and not own
        self.set_class(bool(found), "-untraced")
        if alone != self.has_class("-alone"):
            self.set_class(alone, "-alone")
            self._show_hops()
            self.call_after_refresh(self.set_focus, table if alone else self.table)
        table.styles.height = "1fr" if alone else 1 + len(found)
        table.fill(ItemRows.of(UNTRACED, ((one.key, one) for one in found)))

    @on(VirtualTable.RowSelected, "#untraced")
    def _untraced_selected(self, event: VirtualTable.RowSelected) -> None:
        if not event.clicked:
            self.trace(cast("PathKey", event.key))

    @property
    def _state(self) -> tuple[object, ...]:
        """All that hops depend on, but for times and counts within a second."""
        cells = self.query_one("#hops", SortedTable).width_of("line")
        names = self.console.names.version
        return self.choice, self._paths.edition, names, self.size.width, cells, self._of_hops

    def _show_hops(self) -> None:
        tables = "hops", "hop_changes"
        self.turn_to(*(tables if self.console.time.marked is None else reversed(tables)))
        if self.choice is not None and self.console.time.marked is not None:
            self._show_changes(self.choice, self.console.time.marked)
            return
        choice, table = self.choice, self.query_one("#hops", SortedTable)
        if choice is None:
            self._hops = np.empty(0, HOP)
            table.columns = hop_columns((), 1.0, 0)
            table.empty = with_hint(self.console, *_FILTERED if self._hosts.choices else _NOTHING)
            table.fill(None)
            self._fit(table)
            return
        names, state = self.console.names, self._state
        cells = table.width_of("line")
        every = self._paths.hops(choice, cells)
        self._hops = hops = shown_hops(every, choice.destination, self._of_hops, names)
        hosts = [host_text(hop, names, choice) for hop in hops]
        table.columns = hop_columns(hosts, scale_of(hops), cells)
        if table.width_of("line") != cells:
            # The width of the hosts changed, and with it the time that a line shows.
            self._show_hops()
            return
        ended = self._paths.summary(choice)["ended"]
        running = self._paths.running(choice.destination)
        waiting = _WAITING
        if running is not None and not running.packets:
            frame = self.console.time.frame.of(choice.host) or self.console.time.frame
            waiting = idle_text(frame.flows, running) or _IDLE
        said = _FILTERED if len(every) else _ENDED if ended else waiting
        table.empty = with_hint(self.console, *said)
        listed = [(choice, host) for host in hosts]
        table.fill(hop_rows(hops, listed, end_note(self._paths, choice)))
        self._drawn_ns = self._paths.view.now_ns
        if self._drawn != state:
            self._drawn = state
            names_of = [host_text(hop, names, choice) for hop in every]
            way = self.query_one("#way", TonedLine)
            way.show(picture(every, names_of, self.size.width - 2))
        self._fit(table)

    def _show_changes(self, choice: PathKey, marked: Frame) -> None:
        _take(self._marked, self.console, marked, self._traced)
        self._hops = self._paths.hops(choice, 1)
        before, after = self._marked.of(choice).hops(choice, 1), self._hops
        if marked.at > self.console.time.frame.at:
            before, after = after, before
        self.table.fill(hop_changes(before, after, choice, self.console.names))
        self._fit(self.table)

    def _fit(self, table: SortedTable) -> None:
        """Leave the lines that the hops do not need to the detail, on a tall screen."""
        self.set_class(table.source.rows > 0, "-measured")
        always = self.has_class("-tall") and table.source.rows > 0
        table.styles.height = 1 + table.source.rows if always else "1fr"
        if self.has_class("-alone"):
            table.styles.height = 0
        self._show_detail()

    @on(VirtualTable.RowHighlighted, "#hops, #hop_changes")
    def _show_detail(self) -> None:
        if self.detail.display and self.choice is not None:
            hop = self.hop_under_cursor()
            names, time = self.console.names, self.console.time
            past = partial(time.past_paths, self.choice.host)
            self.detail.show(self._paths, self.choice, hop, names, time.span, past)

    def hop_under_cursor(self) -> arrays.Row[HOP] | None:
        number = self.table.cursor_key
        return next((hop for hop in self._hops if hop["hop"] == number), None)

    def on_resize(self) -> None:
        self.call_after_refresh(self._show_hops)

    # Moving about

    def do_path_detail(self) -> None:
        self.table.action_select()

    def close_detail(self) -> bool:
        was_open = self.detail.is_open
        self._open_detail(False)
        return was_open

    def do_path_names(self) -> None:
        self.console.names.enabled = not self.console.names.enabled
        self.show()

    def _open_detail(self, opened: bool) -> None:
        self.detail.set_class(opened, "open")
        self.set_class(opened, "-detail")
        self._show_detail()

    @on(VirtualTable.RowHighlighted, "#paths")
    def _path_highlighted(self, event: VirtualTable.RowHighlighted) -> None:
        if self.listing.turn_choice(event.key):
            self.show()

    @on(VirtualTable.RowSelected, "#paths")
    async def _path_selected(self) -> None:
        if self.listing.is_on_fold:
            await self.console.action_command("path.fold")
        else:
            self.set_focus(self.table)

    @on(VirtualTable.RowSelected, "#hops, #hop_changes")
    def _hop_selected(self) -> None:
        self._open_detail(True)
