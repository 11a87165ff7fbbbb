"""Screen 7: the hosts of a fleet; m and Enter choose those that the other screens show."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import compress

import numpy as np
from textual import on
from textual.widget import Widget

from app.console.protocol import Console
from app.console.screen import ConsoleScreen
from app.console.screens.hosts.columns import FLEET, HostLine
from app.console.screens.hosts.dialogs import HostChanges
from app.console.tables.array_rows import item_rows
from app.console.tables.sorted_table import SortedTable
from app.console.tables.spec import columns
from app.console.tasks import Task
from app.fleet.host_state import HostPhase, HostState
from app.fleet.plane import ChosenHosts
from app.tape.named_state import StateValues
from bpf.errors import UsageError
from bpf.quantities import BIT_RATES, COUNTS, bit_rate, counted, si
from probes.filter import Domain, Filter, RowTable, parse
from probes.filter.fields import Quantity, Texts
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
        self._filter: Filter = Filter()
        self._lines: list[HostLine] = []
        self._shown_at = 0.0
        self.parts = (HostChanges(self, lambda: self.hosts),)

    @property
    def hosts(self) -> ChosenHosts:
        planes = self.console.hosts.planes
        assert isinstance(planes, ChosenHosts)
        return planes

    @property
    def domain(self) -> Domain:
        """The fields of filters: names, states, rates and labels of the hosts."""
        labels = sorted({name for host in self.hosts.fleet.hosts for name in host.labels})
        return Domain(
            "hosts",
            {
                "host": Texts("host", "name of the host contains the text"),
                "state": Texts("state", "state of the host", tuple(HostPhase)),
                "rate": Quantity("rate", "bits per second", BIT_RATES),
                "lost": Quantity("lost", "packets that its windows lack", COUNTS),
                "policy": Texts("policy", "name of an active policy contains the text"),
                "version": Texts("version", "version of its probedeck contains the text"),
                **{name: Texts(name, f"label {name} contains the text") for name in labels},
            },
            (),
            "host",
        )

    def compose_body(self) -> list[Widget]:
        table = SortedTable(FLEET, empty=_FILTERED)
        return [StatusStrip(id="sums"), table, TonedLine(id="about")]

    @property
    def table(self) -> SortedTable:
        return self.query_one(SortedTable)

    def filtered(self) -> tuple[tuple[Domain, RowTable], ...]:
        return ((self.domain, table_of(self._lines)),)

    def on_mount(self) -> None:
        self.set_interval(_PERIOD_S, lambda: self._show_hosts() if self.is_current else None)
        labels = (f"{n}:{text}" for n, text in self.hosts.fleet.hosts[0].labels.items())
        self.filter_example = " ".join(("state:lost", *labels))

    # What is shown

    def show(self) -> None:
        # A window of any chosen host updates the screen.
        if time.monotonic() - self._shown_at >= _PERIOD_S or not self._lines:
            self._show_hosts()

    def _show_hosts(self) -> None:
        self._shown_at = time.monotonic()
        every = host_lines(self.hosts)
        mask = self._filter.mask(table_of(every)).tolist() if self._filter else [True] * len(every)
        self._lines = list(compress(every, mask))
        self.query_one("#sums", StatusStrip).show(sum_items([line.state for line in self._lines]))
        widest = max((len(line.state.name) for line in self._lines), default=0)
        group = self.hosts.fleet.group
        self.table.columns = columns(
            FLEET,
            host={"width": max(8, min(24, widest))},
            group={"title": group.capitalize(), "hidden": not group},
        )
        self.table.fill(item_rows(FLEET, ((line.state.name, line) for line in self._lines)))
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
            await self.console.choose_hosts()
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
        self._choose([line.state.name for line in compress(every, mask)])

    def do_host_programs(self, name: str = "") -> None:
        name = self._target(name)
        if name not in self.hosts.chosen:
            raise UsageError(f"{name} is not chosen", hint="m chooses it")
        self.hosts.cursor = name
        turn = partial(self.app.call_later, self.console.turn_to, "programs", None)
        self._choose(self.hosts.chosen, turn)

    # The table

    def set_filter(self, text: str) -> None:
        self._filter = parse(text, self.domain, self.console.settings.filters)
        self._shown_at = -math.inf

    @on(VirtualTable.RowSelected)
    async def _row_selected(self) -> None:
        await self.console.action_command("host.only")

    @on(VirtualTable.RowHighlighted)
    def _row_highlighted(self) -> None:
        self._show_about()


def first_states(console: Console) -> StateValues:
    """Return the values of named states before the user has turned to the screen."""
    if not (states := (hosts := console.hosts.planes).states()):
        return {}
    return {
        "host.total": len(states),
        "host.count": len(states),
        "host.up": sum(one.state.counts for one in states),
        "host.chosen": " ".join(hosts.chosen),
        "host.missing": len(console.frame.missing),
        "host.filter": "",
        **{f"host.state.{one.name}": str(one.state) for one in states},
        **{
            f"host.report.{one.host}": "done" if one.error is None else str(one.error)
            for one in hosts.reports
        },
    }


def table_of(lines: Sequence[HostLine]) -> RowTable:
    """Return hosts as rows for their filters."""
    labels = sorted({name for line in lines for name in line.state.labels})
    texts = {
        "host": [line.state.name for line in lines],
        "state": [str(line.state.state) for line in lines],
        "policy": [" ".join(line.state.active) for line in lines],
        "version": [line.state.version for line in lines],
        **{name: [line.state.labels.get(name, "") for line in lines] for name in labels},
    }
    names = [*texts, "rate", "lost"]
    rows = np.zeros(len(lines), [(n, "O" if n in texts else "f8") for n in names])
    for name, values in texts.items():
        rows[name] = values
    rows["rate"] = [line.state.bits_s for line in lines]
    rows["lost"] = [line.lost for line in lines]
    return RowTable(rows)


def host_lines(hosts: ChosenHosts) -> list[HostLine]:
    """Return a line for each host: in the order of the file, or of the label that groups them."""
    chosen, group = frozenset(hosts.chosen), hosts.fleet.group
    current = hosts.current if len(chosen) > 1 else ""
    lines = [
        HostLine(one, one.name in chosen, one.name == current, one.labels.get(group, ""))
        for one in hosts.states()
    ]
    return sorted(lines, key=lambda line: line.group) if group else lines


def sum_items(states: Sequence[HostState]) -> list[StatusItem]:
    """Return the number of hosts by state, and the sums of those whose numbers count."""
    counts = Counter(one.state for one in states)
    tones = {HostPhase.UP: Tone.GOOD, HostPhase.SLOW: Tone.WARN, HostPhase.CONNECTING: Tone.MUTED}
    items = [
        StatusItem(f"{counts[phase]} {phase}", tones.get(phase, Tone.BAD))
        for phase in HostPhase
        if counts[phase]
    ]
    here = [one for one in states if one.state.counts]
    lost = sum(loss.packets for one in here for why, loss in one.losses.items() if why.is_loss)
    items += [
        StatusItem(bit_rate(sum(one.bits_s for one in here)), label="in all"),
        StatusItem(si(sum(one.packets_s for one in here)), Tone.MUTED, 2, label="pkt/s"),
        StatusItem(si(lost), Tone.BAD if lost else Tone.GOOD, 1, label="lost"),
    ]
    if without := len(states) - len(here):
        text = lacking(without, len(states))
        items.insert(0, StatusItem(text, Tone.BAD if counts[HostPhase.LOST] else Tone.WARN))
    return items


def lacking(missing: int, total: int) -> str:
    """`2 of 103 hosts are missing: numbers lack them`."""
    are = "is missing: numbers lack it" if missing == 1 else "are missing: numbers lack them"
    return f"{missing} of {counted(total, 'host')} {are}"


def about(line: HostLine) -> str:
    """Return a sentence about the host under the cursor."""
    state = line.state
    parts = [f"{state.name} is {state.state}"]
    if state.reason:
        parts[0] += f": {state.reason}"
    if state.read_only:
        parts.append(f"read only: {state.read_only}")
    return ", ".join((*parts, state.url))
