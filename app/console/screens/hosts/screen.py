"""Screen 7: the hosts of a fleet; m and Enter choose those that the other screens show."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from textual import on
from textual.widget import Widget

from app.console.protocol import Console
from app.console.screen import ConsoleScreen
from app.console.screens.hosts.columns import FLEET
from app.console.screens.hosts.dialogs import HostChanges
from app.console.tables.sorted_table import FewRows, SortedTable
from app.console.tables.spec import columns
from app.console.tasks import Task
from app.fleet.host_state import HostPhase, HostState
from app.fleet.plane import HostChoice
from app.tape.named_state import StateValues
from bpf.arrays import Array
from bpf.errors import UsageError
from bpf.quantities import BIT_RATES, COUNTS, bit_rate, counted, si
from probes.filter import Domain, Filter, RowTable, parse
from probes.filter.fields import Quantity, Texts
from probes.snapshot import lost_of
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
        self._rows: Array = np.zeros(0, HOST)
        """The shown hosts."""
        self._shown_at = 0.0
        self.parts = (HostChanges(self, lambda: self.hosts),)

    @property
    def hosts(self) -> HostChoice:
        planes = self.console.hosts.planes
        assert isinstance(planes, HostChoice)
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
                "policy": Texts("policies", "name of an active policy contains the text"),
                "version": Texts("version", "version of its probedeck contains the text"),
                **{n: Texts(f"label {n}", f"label {n} contains the text") for n in labels},
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
        return ((self.domain, table_of(self._rows)),)

    def on_mount(self) -> None:
        self.set_interval(_PERIOD_S, lambda: self._show_hosts() if self.is_current else None)
        labels = (f"{n}:{text}" for n, text in self.hosts.fleet.hosts[0].labels.items())
        self.filter_example = " ".join(("state:lost", *labels))

    # What is shown

    def show(self) -> None:
        # A window of any chosen host updates the screen. A replay shows its moment at once.
        is_due = time.monotonic() - self._shown_at >= _PERIOD_S or not len(self._rows)
        if is_due or self.console.time.replays:
            self._show_hosts()

    def _show_hosts(self) -> None:
        self._shown_at = time.monotonic()
        every = host_rows(self.hosts)
        rows = self._rows = every[self._filter.mask(table_of(every))] if self._filter else every
        self.query_one("#sums", StatusStrip).show(sum_items(rows["of"].tolist()))
        widest = max(map(len, rows["host"]), default=0)
        group = self.hosts.fleet.group
        self.table.columns = columns(
            FLEET,
            host={"width": max(8, min(24, widest))},
            group={"title": group.capitalize(), "hidden": not group},
        )
        self.table.fill(FewRows(FLEET, rows))
        self._show_about()
        chosen = f"{len(self.hosts.chosen)} of {counted(len(every), 'host')}"
        notes = [StatusItem(chosen, Tone.MUTED, 3, label="chosen")]
        if self._filter.text:
            notes.append(StatusItem(self._filter.text, Tone.ACCENT, 3, label="filter"))
        self.show_notes(*notes)

    def _show_about(self) -> None:
        state = self._under_cursor
        pieces = () if state is None else ((f" {about(state)}", Tone.MUTED),)
        self.query_one("#about", TonedLine).show(pieces)

    @property
    def _under_cursor(self) -> HostState | None:
        key = self.table.cursor_key
        return next((state for state in self._rows["of"] if state.name == key), None)

    def states(self) -> StateValues:
        state = self._under_cursor
        return first_states(self.console) | {
            "host.count": len(self._rows),
            "host.filter": self._filter.text,
            "host.selected": state.name if state is not None else None,
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
        if (state := self._under_cursor) is None:
            raise UsageError("there is no host here")
        return state.name

    def do_host_mark(self, name: str = "") -> None:
        name, chosen = self._target(name), self.hosts.chosen
        left = [one for one in chosen if one != name]
        self._choose(left if name in chosen else [*chosen, name])

    def do_host_only(self, name: str = "") -> None:
        turn = partial(self.app.call_later, self.console.turn_to, "overview", None)
        self._choose([self._target(name)], turn)

    def do_host_all(self) -> None:
        self._choose(self._rows["host"].tolist())

    def do_host_choose(self, text: str) -> None:
        every = host_rows(self.hosts)
        mask = parse(text, self.domain, self.console.settings.filters).mask(table_of(every))
        self._choose(every["host"][mask].tolist())

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
        "host.missing": len(console.time.frame.missing),
        "host.filter": "",
        **{f"host.state.{one.name}": str(one.state) for one in states},
        **{
            f"host.report.{one.host}": "done" if one.error is None else str(one.error)
            for one in hosts.reports
        },
    }


HOST = np.dtype(
    [
        *((name, "?") for name in ("chosen", "current", "is_known")),
        *((name, "f8") for name in ("since", "rate", "packet_rate", "offset", "offset_error")),
        *((name, "f8") for name in ("lag", "received")),
        *((name, "i8") for name in ("flows", "lost", "behind")),
        *((name, "O") for name in ("id", "host", "group", "state", "active", "labels")),
        *((name, "O") for name in ("interface", "version", "reason", "url", "of")),
    ]
)
"""A host, with its state `of`. `chosen` and `current` are of the screens and of Programs. Times are
seconds. `is_known` says whether its rates are of now."""


def table_of(rows: Array) -> RowTable:
    """Return hosts, dtype HOST (n,), for their filters."""

    def texts(values: Iterable[str]) -> Array:
        return np.array([*values, None], object)[:-1]

    def label(name: str) -> Array:
        return texts(labels.get(name, "") for labels in rows["labels"])

    names = {name for labels in rows["labels"] for name in labels}
    made = {f"label {name}": partial(label, name) for name in names}
    return RowTable(rows, {**made, "policies": lambda: texts(map(" ".join, rows["active"]))})


def host_rows(hosts: HostChoice) -> Array:
    """Return all hosts, dtype HOST: in the order of the file, or of the label that groups them."""
    chosen, group, states = frozenset(hosts.chosen), hosts.fleet.group, hosts.states()
    current = hosts.current if len(chosen) > 1 else ""
    rows, now_ns = np.zeros(len(states), HOST), time.time_ns()
    row: Any
    for row, one in zip(rows, states, strict=True):
        row["of"], row["id"], row["host"], row["url"] = one, one.name, one.name, one.url
        row["chosen"], row["current"] = one.name in chosen, one.name == current
        row["state"], row["is_known"] = str(one.state), one.state.counts
        row["since"] = (now_ns - one.since_utc_ns) / 1e9 if one.since_utc_ns else math.nan
        row["rate"], row["packet_rate"], row["flows"] = one.bits_s, one.packets_s, one.flows
        row["lost"] = lost_of(one.losses).packets
        row["behind"], row["lag"], row["received"] = one.behind, one.lag_s, one.received_s
        row["offset"], row["offset_error"] = one.offset_s, one.offset_error_s
        row["active"], row["labels"], row["group"] = (
            one.active,
            one.labels,
            one.labels.get(group, ""),
        )
        row["interface"], row["version"] = one.interface, one.version
        row["reason"] = one.reason
    return rows[np.argsort(rows["group"], kind="stable")] if group else rows


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
    lost = sum(lost_of(one.losses).packets for one in here)
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


def about(state: HostState) -> str:
    """Return a sentence about the host under the cursor."""
    parts = [f"{state.name} is {state.state}"]
    if state.reason:
        parts[0] += f": {state.reason}"
    if state.read_only:
        parts.append(f"read only: {state.read_only}")
    return ", ".join((*parts, state.url))
