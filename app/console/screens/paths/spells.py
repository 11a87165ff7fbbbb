"""Spells: queues and losses at hops of paths, each from its begin to its end."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

import numpy as np

from app.console.live.paths import PathView
from bpf.arrays import Array, Row
from probes.path.events.words import address_of
from probes.path.records import FLOW_KEY, PATH, PathRowKind

_OVER = {
    PathRowKind.QUEUE: PathRowKind.QUEUE_OVER,
    PathRowKind.LOSS: PathRowKind.LOSS_OVER,
}
"""The finding that ends each kind of spell."""
_KEY = [name for name, *_ in FLOW_KEY]


@dataclass(slots=True)
class Spell:
    """A queue or a loss in front of one hop, for all flows to a destination that have it at the
    same time. Times are CLOCK_MONOTONIC."""

    destination: str
    hop: int
    router: str
    """Address of the router at `hop`."""
    began_ns: int
    ended_ns: int = 0
    """0 while it goes on."""
    worst: float = 0.0
    """The longest delay in seconds, or the highest share of lost packets."""
    now: float = 0.0
    """The same at the moment of the view; 0 after the end."""
    flows: set[bytes] = field(default_factory=set, repr=False)
    """Keys of the flows that still have it."""

    def seconds(self, now_ns: int) -> float:
        """Return its duration until its end, or else until `now_ns`."""
        return max(0, (self.ended_ns or now_ns) - self.began_ns) / 1e9


def spells(view: PathView, kind: PathRowKind, ended: Array) -> list[Spell]:
    """Return the queues or losses (`kind`: QUEUE or LOSS) of all paths, newest first.

    `ended` (n,) masks the series without probes: nothing goes on there. The view keeps only the
    last findings, so older spells are missing.
    """
    found: list[Spell] = []
    current: dict[tuple[bytes, int], Spell] = {}
    rows = view.changes
    for row in rows[np.isin(rows["kind"], (kind, _OVER[kind]))]:
        place = _place(row)
        # A loss is of the whole path, and its end may name another flow.
        flow = b"".join(row[name].tobytes() for name in _KEY) if kind is PathRowKind.QUEUE else b""
        spell = current.get(place)
        if row["kind"] == kind:
            if spell is None or not spell.flows:
                spell = current[place] = _begun(row)
                found.append(spell)
            spell.flows.add(flow)
        elif spell is None or flow not in spell.flows:
            continue
        else:
            spell.flows.discard(flow)
            spell.ended_ns = int(row["at_ns"])
        spell.worst = max(spell.worst, _size(row))
    for spell in current.values():
        if spell.flows:
            _go_on(spell, view, ended, kind)
    return sorted(found, key=lambda one: one.began_ns, reverse=True)


def _begun(row: Row[PATH]) -> Spell:
    destination, router = address_of(row, "destination"), address_of(row, "responder")
    return Spell(destination, int(row["hop"]), router, int(row["since_ns"] or row["at_ns"]))


def _size(row: Row[PATH]) -> float:
    if row["amount_ns"]:
        return float(row["amount_ns"]) / 1e9
    ended = int(row["lost"]) + int(row["answered"])
    return int(row["lost"]) / ended if ended else 0.0


def _place(row: Row[PATH]) -> tuple[bytes, int]:
    return row["destination"].tobytes() + row["version"].tobytes(), int(row["hop"])


def _go_on(spell: Spell, view: PathView, ended: Array, kind: PathRowKind) -> None:
    """Say how bad a spell without an end is now, or end it with its flows."""
    packed = ipaddress.ip_address(spell.destination).packed.ljust(16, b"\0")
    series = view.series[~ended & (view.series["hop"] == spell.hop)]
    here = series[(series["destination"] == np.frombuffer(packed, "u1")).all(axis=1)]
    queue = float(here["queue_ns"].max(initial=0)) / 1e9
    if queue > 0 or (kind is PathRowKind.LOSS and len(here)):
        spell.ended_ns, spell.now = 0, queue or spell.worst
        spell.worst = max(spell.worst, spell.now)
    else:
        spell.ended_ns = spell.ended_ns or spell.began_ns
