"""Screen 7: the hosts of a fleet; m and Enter choose those that the other screens show."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from textual import on
from textual.widget import Widget

from app.console.screen import ConsoleScreen
from app.console.screens.hosts.changes import HostChanges
from app.console.screens.hosts.columns import FLEET, HostLine
from app.console.screens.hosts.rows import (
    about,
    domain_of,
    filtered,
    first_states,
    host_columns,
    host_lines,
    host_rows,
    sum_items,
    table_of,
)
from app.console.tables.sorted_table import SortedTable
from app.console.tasks import Task
from app.fleet.plane import ChosenHosts
from app.tape.named_state import StateValues
from bpf.errors import UsageError
from probes.filter import Domain, Filter, RowTable, parse
from widgets.format import counted
from widgets.status import StatusItem, StatusStrip, TonedLine
from widgets.table.table import VirtualTable
from widgets.tones import Tone

_PERIOD_S = 1.0
"""Seconds between two looks at the hosts: a fleet may have a thousand."""
_FILTERED = "no host passes the filter; escape clears it"


class HostsScreen(ConsoleScreen):
    """Sums above, hosts below, and a line about the one under the cursor."""

    MODE = "hosts"
    CSS = """
    HostsScreen #sums, HostsScreen #about { background: $surface; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._filter = Filter()
        self._lines: list[HostLine] = []
        self._shown_at = 0.0
        self.parts = (HostChanges(self, lambda: self.hosts),)

    @property
    def hosts(self) -> ChosenHosts:
        assert self.console.hosts.chosen is not None
        return self.console.hosts.chosen

    @property
    def domain(self) -> Domain:
        return domain_of(self.hosts.fleet)

    def compose_body(self) -> list[Widget]:
        table = SortedTable(FLEET, empty=_FILTERED)
        return [StatusStrip(id="sums"), table, TonedLine(id="about")]

    @property
    def table(self) -> SortedTable:
        return self.query_one(SortedTable)

    def filtered(self) -> tuple[tuple[Domain, RowTable], ...]:
        return ((self.domain, table_of(self._lines)),)

    def on_mount(self) -> None:
        self.set_interval(_PERIOD_S, self._show_if_current)

    def _show_if_current(self) -> None:
        if self.is_current:
            self._show_hosts()

    def keep(self) -> dict[str, str]:
        return super().keep() | {"filter": self._filter.text}

    def restore(self, kept: Mapping[str, str]) -> None:
        with suppress(UsageError):
            self._filter = parse(kept.get("filter", ""), self.domain, self.console.settings.filters)
        super().restore(kept)

    # What is shown

    def show(self) -> None:
        # A window of any chosen host updates the screen.
        if time.monotonic() - self._shown_at >= _PERIOD_S or not self._lines:
            self._show_hosts()

    def _show_hosts(self) -> None:
        self._shown_at = time.monotonic()
        every = host_lines(self.hosts)
        mask = self._filter.mask(table_of(every)).tolist() if self._filter else [True] * len(every)
        self._lines = filtered(every, mask)
        self.query_one("#sums", StatusStrip).show(sum_items([line.state for line in self._lines]))
        self.table.columns = host_columns(self._lines, self.hosts.fleet.group)
        self.table.fill(host_rows(self._lines))
        self._show_about()
        chosen = f"{len(self.hosts.chosen)} of {counted(len(every), 'host')}"
        notes = [StatusItem(chosen, Tone.MUTED, 3, label="chosen")]
        if self._filter.text:
            notes.append(StatusItem(self._filter.text, Tone.ACCENT, 3, label="filter"))
        self.show_notes(*notes)

    def _show_about(self) -> None:
        line = self._under_cursor
        pieces = () if line is None else ((f" {about(line)}", Tone.MUTED),)
        self.query_one("#about", TonedLine).show(pieces)

    @property
    def _under_cursor(self) -> HostLine | None:
        key = self.table.cursor_key
        return next((line for line in self._lines if line.state.name == key), None)

    def states(self) -> StateValues:
        line = self._under_cursor
        return first_states(self.console) | {
            "host.count": len(self._lines),
            "host.filter": self._filter.text,
            "host.selected": line.state.name if line is not None else None,
        }

    def point_at(self, key: Hashable) -> None:
        self.table.want(key)
        self.set_focus(self.table)

    # The chosen hosts

    def _choose(self, names: Sequence[str], then: Callable[[], object] | None = None) -> None:
        if self.console.unsaved:
            text = f"edited and not saved: {', '.join(self.console.unsaved)}"
            raise UsageError(text, hint="save or revert it before other hosts are chosen")

        async def begin() -> None:
            await self.console.hosts.choose()
            self._show_hosts()
            if then is not None:
                then()

        def chosen(_: None) -> None:
            self.app.call_later(begin)

        what = names[0] if len(names) == 1 else counted(len(names), "host")
        self.run_in_worker(
            partial(self.hosts.choose, tuple(names)),
            chosen,
            self.console.complain,
            task=Task(f"choosing {what}"),
        )

    def _target(self, name: str = "") -> str:
        if name:
            return name
        if (line := self._under_cursor) is None:
            raise UsageError("there is no host here")
        return line.state.name

    def do_host_mark(self, name: str = "") -> None:
        name, chosen = self._target(name), self.hosts.chosen
        left = [one for one in chosen if one != name]
        self._choose(left if name in chosen else [*chosen, name])

    def do_host_only(self, name: str = "") -> None:
        turn = partial(self.app.call_later, self.console.turn_to, "overview", None)
        self._choose([self._target(name)], turn)

    def do_host_all(self) -> None:
        self._choose([line.state.name for line in self._lines])

    def do_host_choose(self, text: str) -> None:
        every = host_lines(self.hosts)
        mask = parse(text, self.domain, self.console.settings.filters).mask(table_of(every))
        self._choose([line.state.name for line in filtered(every, mask.tolist())])

    def do_host_programs(self, name: str = "") -> None:
        name = self._target(name)
        if name not in self.hosts.chosen:
            raise UsageError(f"{name} is not chosen", hint="m chooses it")
        self.hosts.cursor = name
        turn = partial(self.app.call_later, self.console.turn_to, "programs", None)
        self._choose(self.hosts.chosen, turn)

    # The table

    do_host_sort = ConsoleScreen.sort_rows
    do_host_reverse = ConsoleScreen.reverse_rows
    do_host_leave = ConsoleScreen.leave

    def do_host_filter(self, text: str | None = None) -> None:
        if text is None:
            labels = (f"{n}:{text}" for n, text in self.hosts.fleet.hosts[0].labels.items())
            example = " ".join(("state:lost", *labels))
            self.prompt.ask("host.filter", "Show only", example, self._filter.text)
            return
        self._filter = parse(text, self.domain, self.console.settings.filters)
        self._show_hosts()

    def clear_filter(self) -> bool:
        if was_set := bool(self._filter.text):
            self.do_host_filter("")
        return was_set

    @on(VirtualTable.RowSelected)
    async def _row_selected(self) -> None:
        await self.console.action_command("host.only")

    @on(VirtualTable.RowHighlighted)
    def _row_highlighted(self) -> None:
        self._show_about()
