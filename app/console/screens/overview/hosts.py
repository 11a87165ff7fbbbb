"""Sentences about the hosts of a fleet."""

from __future__ import annotations

from collections.abc import Iterator

from app.console.protocol import Console
from app.console.screens.events.columns import EVENTS
from app.console.screens.overview.trouble import Kind, Trouble
from app.console.tables.columns import columns
from widgets.format import duration
from widgets.table.columns import Column
from widgets.tones import Tone


def host_troubles(console: Console) -> Iterator[Trouble]:
    """Yield sentences for chosen hosts: missing, wrong clock, active policies.

    The screen itself has the policies of the host under the cursor.
    """
    hosts, missing = console.hosts.chosen, console.frame.missing
    if hosts is None or len(hosts.chosen) == 1:
        return
    for one in hosts.states():
        if one.name in missing:
            why = f": {one.reason}" if one.reason else ""
            text = f"{one.name} is {one.state}, and all numbers lack it{why}"
            yield Trouble(Kind.ENDED, 1, text, Tone.BAD, "hosts", one.name)
            continue
        if one.name not in hosts.chosen:
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
        if one.active and one.name != hosts.current:
            text = f"Active on {one.name}: {', '.join(one.active)}"
            row = one.name, one.active[0]
            yield Trouble(Kind.FIRES, len(one.active), text, Tone.WARN, "triggers", row)


def event_columns(console: Console) -> tuple[Column, ...]:
    """Return the columns of events, with the host of each if several hosts are chosen."""
    hosts, title = console.hosts.chosen, {"title": "Events"}
    if hosts is None or len(hosts.chosen) == 1:
        return columns(EVENTS, time=title)
    # A narrow block has room for the host and for a short text.
    return columns(EVENTS, time=title, node={"hidden": False}, text={"width": 20})
