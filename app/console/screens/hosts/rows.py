"""Rows, sentences and filters of screen 7."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from app.console.protocol import Console
from app.console.screens.hosts.columns import FLEET, HostLine
from app.console.tables.columns import columns, row
from app.fleet.host_state import HostPhase, HostState
from app.fleet.hosts import Fleet
from app.fleet.plane import ChosenHosts
from app.tape.named_state import StateValues
from bpf.quantities import BIT_RATES, COUNTS
from probes.filter import Domain
from probes.filter.fields import Quantity, Texts
from probes.filter.table import RowTable
from widgets.format import bit_rate, counted, si
from widgets.status import StatusItem
from widgets.table.rows import Column, Rows
from widgets.tones import Tone


def first_states(console: Console) -> StateValues:
    """Return the values of named states before the user has turned to the screen."""
    if (hosts := console.hosts.chosen) is None:
        return {}
    states = hosts.states()
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


def domain_of(fleet: Fleet) -> Domain:
    """Return the fields of filters of a fleet's hosts: their names, states, rates and labels."""
    labels = sorted({name for host in fleet.hosts for name in host.labels})
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


def host_columns(lines: Sequence[HostLine], group: str) -> tuple[Column[Any], ...]:
    """Return the columns; `group` is the label that groups the hosts."""
    widest = max((len(line.state.name) for line in lines), default=0)
    return columns(
        FLEET,
        host={"width": max(8, min(24, widest))},
        group={"title": group.capitalize(), "hidden": not group},
    )


def host_rows(lines: Iterable[HostLine]) -> Rows:
    """Return a row for each host, with its name as key."""
    return Rows.of(row(FLEET, line.state.name, line) for line in lines)


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


def filtered(lines: Sequence[HostLine], mask: Sequence[bool]) -> list[HostLine]:
    return [line for line, passes in zip(lines, mask, strict=True) if passes]
