"""The conversation that a filter means: the one with the most bytes of those that pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.explain.material import ends_of
from app.outputs.filtering import flow_table
from app.outputs.owners.owner_join import with_owners
from bpf.errors import ProbedeckError
from probes.filter import parse
from probes.flow.filter import OWNED_FLOWS
from probes.flow.grouping import GROUP, group
from probes.flow.records import Array
from probes.snapshot import Snapshot

_PAST_NS = 10_000_000_000
"""Windows that take part in the choice."""
_MOST = 5
"""Conversations that are named if none passes."""


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """The conversation that passes, and those that pass instead."""

    conversation: Any
    """A row of dtype GROUP; None if no conversation passes."""
    passing: int
    """Conversations that pass."""
    others: Array
    """dtype GROUP: the largest conversations of all, if none passes."""


def nothing_passes(choice: Choice, text: str, error: type[ProbedeckError]) -> ProbedeckError:
    """Return the error about a filter that no conversation passes; its hint names others."""
    if not len(choice.others):
        return error("no packet passed in the last seconds", hint="send some, and ask again")
    others = ", ".join(str(ends_of(each)) for each in choice.others)
    problem = f"no conversation passes the filter {text!r}"
    return error(problem, hint=f"the largest ones of the last seconds: {others}")


def choose(items: Iterable[Snapshot], text: str) -> Choice:
    """Return the conversation with the most bytes among the flows that pass a filter.

    `items` are windows of the probes flow and sockets. Flows take their owners from tables of
    the same window. Raises TextError for a wrong filter.
    """
    condition = parse(text, OWNED_FLOWS)
    tables = sorted(items, key=lambda item: item.end_ns)
    flows = [item for item in tables if item.probe == "flow" and not item.metric]
    if flows:
        flows = [item for item in flows if item.end_ns > flows[-1].end_ns - _PAST_NS]
    kept = [
        window.rows[condition.mask(flow_table(with_owners(window, tables)))]
        if condition
        else window.rows
        for window in flows
    ]
    found = _conversations(kept)
    if len(found):
        return Choice(found[0], len(found), found[:0])
    return Choice(None, 0, _conversations([window.rows for window in flows])[:_MOST])


def _conversations(rows: Sequence[Array]) -> Array:
    """Return the conversations of flows, dtype GROUP, the largest first."""
    if not rows:
        return np.empty(0, GROUP)
    groups = group(np.concatenate(rows), "conversations").rows
    return groups.take(np.argsort(-(groups["in_bytes"] + groups["out_bytes"]).astype("i8")))
