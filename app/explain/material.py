"""The tables of the last minute, as far as they concern one conversation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from app.explain.model import ExplainedEnds
from probes.drops.counted import DROPS_TABLE, Dropped, of_flow, summed
from probes.drops.counted import PROBE as DROPS
from probes.filter.network import address_text, protocol_name
from probes.flow.grouping import GROUP, group
from probes.flow.records import Array
from probes.flow.services import WITH_PORTS, service_name
from probes.path.records import HOP, HOPS_TABLE, PATH, PATHS_TABLE
from probes.snapshot import Loss, LossReason, Snapshot, add_losses
from probes.sockets.joined import sockets_of
from probes.sockets.records import OWNERS_TABLE, PROBE, SOCKET, SOCKETS_TABLE

PAST_NS = 60_000_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Material:
    """One conversation's rows."""

    conversation: Any
    """A row of dtype GROUP: its counts are of the last minute."""
    seconds: float
    """Of windows in the last minute."""
    sockets: Array
    """dtype SOCKET (m,), one a window at most, oldest first."""
    spans: Array
    """Seconds of these windows, (m,) f8."""
    owner: Any = None
    """A row of dtype OWNER; None if it is unknown."""
    hops: Array = field(default_factory=lambda: np.empty(0, HOP))
    """dtype HOP (k,): path probes to the far end."""
    findings: Array = field(default_factory=lambda: np.empty(0, PATH))
    """dtype PATH (l,): findings about the path to the far end."""
    losses: dict[LossReason, Loss] = field(default_factory=dict)
    """Packets that the tables of flows lack, of all flows."""
    drops: tuple[Dropped, ...] | None = None
    """Packets of the conversation that the kernel dropped in the last minute, by reason; None:
    they were not counted."""


def gather(conversation: Any, items: Iterable[Snapshot]) -> Material:
    """Collect the rows of a conversation from windows; windows older than a minute are left out.

    `conversation` is a row of dtype GROUP, of a grouping by conversations.
    """
    tables = sorted(items, key=lambda item: item.end_ns)
    flows = _recent(tables, "flow", "")
    windows = _recent(tables, PROBE, SOCKETS_TABLE)
    found = [(window, _row(window.rows, conversation)) for window in windows]
    known = [(window, row) for window, row in found if len(row)]
    sockets = np.concatenate([np.empty(0, SOCKET), *(row for _, row in known)])
    losses: dict[LossReason, Loss] = {}
    for window in flows:
        add_losses(losses, window.losses)
    return Material(
        conversation=_summed(conversation, flows),
        seconds=sum(window.seconds for window in flows),
        sockets=sockets,
        spans=np.array([window.seconds for window, _ in known], "f8"),
        owner=_owner(sockets, _recent(tables, PROBE, OWNERS_TABLE)),
        hops=_to(conversation, HOP, _recent(tables, "path", HOPS_TABLE)),
        findings=_to(conversation, PATH, _recent(tables, "path", PATHS_TABLE)),
        losses=losses,
        drops=_drops(conversation, _recent(tables, DROPS, DROPS_TABLE)),
    )


def far_end(conversation: Any) -> str:
    """Return the address of the far end as text."""
    return address_text(conversation["far"].tobytes(), int(conversation["version"]))


def ends_of(conversation: Any) -> ExplainedEnds:
    """Return the ends of a row of dtype GROUP."""
    version, protocol = int(conversation["version"]), int(conversation["protocol"])
    return ExplainedEnds(
        address_text(conversation["near"].tobytes(), version),
        int(conversation["near_port"]),
        far_end(conversation),
        int(conversation["far_port"]),
        protocol_name(protocol),
        service_name(protocol, int(conversation["service_port"])),
    )


def _recent(tables: Sequence[Snapshot], probe: str, metric: str) -> list[Snapshot]:
    """Return the tables of a metric in the last minute before the newest of all."""
    return [
        item
        for item in tables
        if item.probe == probe
        and item.metric == metric
        and item.end_ns > tables[-1].end_ns - PAST_NS
    ]


def _drops(conversation: Any, tables: Sequence[Snapshot]) -> tuple[Dropped, ...] | None:
    """Return the kernel's drops of a conversation, the largest first; None without tables."""
    if not tables:
        return None
    size = 4 if conversation["version"] == 4 else 16
    near, far = (conversation[end].tobytes()[:size] for end in ("near", "far"))
    ports = int(conversation["near_port"]), int(conversation["far_port"])
    return summed(each for table in tables for each in of_flow(table, near, far, ports))


def _row(sockets: Array, conversation: Any) -> Array:
    """Return the socket of a conversation, (1,) or (0,)."""
    at = sockets_of(np.array([conversation], GROUP), sockets)
    return sockets[at[at >= 0]]


def _summed(conversation: Any, flows: Sequence[Snapshot]) -> Any:
    """Return the conversation's row with its counts of all windows."""
    rows = [item.rows[_perhaps(item.rows, conversation)] for item in flows]
    if not rows:
        return conversation
    groups = group(np.concatenate(rows), "conversations").rows
    mine = groups[groups["id"] == conversation["id"]]
    return mine[0] if len(mine) else conversation


def _perhaps(flows: Array, conversation: Any) -> Array:
    """Leave out most flows (n,) of other conversations, faster than grouping does."""
    mine: Array = flows["protocol"] == conversation["protocol"]
    if int(conversation["protocol"]) in WITH_PORTS:
        ports = conversation["near_port"], conversation["far_port"]
        source, destination = flows["source_port"], flows["destination_port"]
        there = (source == ports[0]) & (destination == ports[1])
        mine &= there | (source == ports[1]) & (destination == ports[0])
    return mine


def _owner(sockets: Array, owners: Sequence[Snapshot]) -> Any:
    """Return the last known owner of a socket, None without one."""
    for number in dict.fromkeys(reversed(sockets["owner"].tolist())):
        for table in reversed(owners) if number else ():
            mine = table.rows[table.rows["number"] == number]
            if len(mine):
                return mine[0]
    return None


def _to(conversation: Any, dtype: np.dtype[Any], tables: Sequence[Snapshot]) -> Array:
    """Return the rows about the path to the far end."""
    found = [
        table.rows[
            (table.rows["destination"] == conversation["far"]).all(axis=1)
            & (table.rows["version"] == conversation["version"])
        ]
        for table in tables
    ]
    return np.concatenate([np.empty(0, dtype), *found])
