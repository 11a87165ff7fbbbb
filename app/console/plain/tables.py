"""Rows of frames as sentences: the busiest groups of flows, paths and policies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice

import numpy as np

from app.console.live.flows import LiveView
from app.console.screens.paths.model import Paths
from app.console.screens.triggers.columns import value_text
from app.console.screens.triggers.model import Triggers
from bpf.arrays import Row
from bpf.quantities import bit_rate, counted, duration, percent
from probes.filter.hosts import address_text
from probes.flow.grouping import GROUP, group
from probes.flow.records import FlowDirection
from probes.flow.services import service_name

ROWS = 10
"""Most rows of an answer."""


@dataclass(frozen=True, slots=True)
class LargestGroups:
    """Groups of flows, the busiest first."""

    count: int
    """Number of all groups."""
    lines: tuple[str, ...]
    """At most ROWS: name and rates."""


def busiest(view: LiveView, kind: str) -> LargestGroups:
    """Return the busiest groups of a kind: conversations, hosts or services."""
    found = group(view.rows, kind)
    rows, size = found.rows, len(found.rows)
    rates = view.rows["bit_rate"]
    is_in = view.rows["direction"] == FlowDirection.INGRESS
    came = np.bincount(found.of, rates * is_in, size)
    left = np.bincount(found.of, rates * ~is_in, size)
    # Names break ties, so that equal groups keep their order.
    order = np.lexsort((rows["id"], -(came + left)))[:ROWS]
    lines = (
        f"{_name(rows[at], kind)} {bit_rate(came[at] + left[at])}, "
        f"in {bit_rate(came[at])}, out {bit_rate(left[at])}"
        for at in order.tolist()
    )
    return LargestGroups(size, tuple(lines))


def _name(row: Row[GROUP], kind: str) -> str:
    service = service_name(int(row["protocol"]), int(row["service_port"]))
    if kind == "services":
        return service
    far = address_text(row["far"].tobytes(), int(row["version"]))
    return far if kind == "hosts" else f"{far} {service}"


def path_lines(paths: Paths) -> list[str]:
    """Return a line for each traced destination."""
    whole = (choice for choice in paths.choices if choice.flow is None)
    lines = []
    for choice in islice(whole, ROWS):
        one = paths.summary(choice)
        known = math.isfinite(one["hops"])
        parts = [counted(int(one["hops"]), "router") if known else "routers unknown"]
        if math.isfinite(one["rtt"]):
            parts.append(f"round trip {duration(one['rtt'])}")
        if math.isfinite(one["loss"]):
            parts.append(f"{percent(one['loss'])} lost")
        if one["queue"]:
            parts.append(f"{duration(one['queue'])} of queueing at hop {one['queue_hop']}")
        lines.append(f"{choice.destination}: {', '.join(parts)}")
    return lines


def policy_lines(triggers: Triggers) -> list[str]:
    """Return a line for each policy."""
    return [
        f"{one.name}: {one.info.state.name.lower()}, {value_text(one, 'value')} now, "
        f"fires if {one.info.policy.when}"
        for one in triggers.statuses(1)[:ROWS]
    ]
