"""The conversation that a filter means, and the tables of the last minute that concern it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from app.explain.model import ExplainedEnds
from app.outputs.filtering import flow_table
from app.outputs.owners.owner_join import with_owners
from bpf.arrays import Array, Row, Rows
from bpf.errors import ProbedeckError
from bpf.sockets.diag import TCP
from probes.drops.counted import DROPS_TABLE, Dropped, of_flow, summed
from probes.drops.counted import PROBE as DROPS
from probes.filter import parse
from probes.filter.hosts import address_text, protocol_name
from probes.flow.filter import OWNED_FLOWS
from probes.flow.grouping import GROUP, group
from probes.flow.records import FLOW, FlowDirection
from probes.flow.services import WITH_PORTS, service_name
from probes.path.records import HOP, HOPS_TABLE, PATH, PATHS_TABLE
from probes.snapshot import Loss, LossReason, Snapshot, add_losses
from probes.sockets import records
from probes.sockets.limits import PSH
from probes.sockets.records import OWNER, OWNERS_TABLE, PROBE, SOCKET, SOCKETS_TABLE

PAST_NS = 60_000_000_000
FRAGMENTATION_NEEDED = 3 * 256 + 4


@dataclass(frozen=True, slots=True)
class Silence:
    """A time without a packet of the conversation, from one window to another."""

    seconds: float
    asked: bool
    """Whether this host sent data right before it."""
    answered: bool
    """Whether a packet of the far end ended it."""


@dataclass(frozen=True, slots=True, eq=False)
class Material:
    """One conversation's rows."""

    conversation: Row[GROUP]
    """A row of dtype GROUP: its counts are of the last minute."""
    seconds: float
    """Of windows in the last minute."""
    sockets: Rows[SOCKET]
    """dtype SOCKET (m,), one a window at most, oldest first."""
    spans: Array
    """Seconds of these windows, (m,) f8."""
    interface: str = ""
    """That counts its last outgoing packets."""
    owner: Row[OWNER] | None = None
    """A row of dtype OWNER; None if it is unknown."""
    hops: Rows[HOP] = field(default_factory=lambda: np.empty(0, HOP))
    """dtype HOP (k,): path probes to the far end."""
    findings: Rows[PATH] = field(default_factory=lambda: np.empty(0, PATH))
    """dtype PATH (l,): findings about the path to the far end."""
    pauses: tuple[Silence, ...] = ()
    """Pauses of the conversation, oldest first; the last one may go on."""
    flags: int = 0
    """TCP flags of both directions."""
    flags_back: int = 0
    """Of the far end."""
    errors: Rows[FLOW] = field(default_factory=lambda: np.empty(0, FLOW))
    """dtype FLOW: ICMP errors that came to this host because a packet did not arrive."""
    losses: dict[LossReason, Loss] = field(default_factory=dict)
    """Packets that the tables of flows lack, of all flows."""
    lacks: str = ""
    """Why windows of flows lack some: packets of either direction may be missing. Empty: none."""
    uncounted_s: float = 0.0
    """Seconds since the last packet, if such windows came after it; else 0."""
    lacks_sockets: str = ""
    """Why windows lack sockets; empty if none do."""
    drops: tuple[Dropped, ...] | None = None
    """Packets of the conversation that the kernel dropped in the last minute, by reason; None:
    they were not counted."""


def gather(conversation: Row[GROUP], items: Iterable[Snapshot]) -> Material:
    """Collect the rows of a conversation from windows; windows older than a minute are left out.

    `conversation` is a row of dtype GROUP, of a grouping by conversations.
    """
    tables = sorted(items, key=lambda item: item.end_ns)
    flows = _recent(tables, "flow", "")
    windows = _recent(tables, PROBE, SOCKETS_TABLE)
    key = np.array([conversation], GROUP)
    at = [records.sockets_of(key, window.rows) for window in windows]
    found = [(one, one.rows[of[of >= 0]]) for one, of in zip(windows, at, strict=True)]
    known = [(window, row) for window, row in found if len(row)]
    mine = [(window, _rows_of(conversation, window)) for window in flows]
    both: Rows[FLOW] = np.concatenate([np.empty(0, FLOW), *(rows for _, rows in mine)])
    back = both["direction"] == FlowDirection.INGRESS
    sockets = np.concatenate([np.empty(0, SOCKET), *(row for _, row in known)])
    losses: dict[LossReason, Loss] = {}
    for window in flows:
        add_losses(losses, window.losses)
    return Material(
        conversation=_summed(conversation, both),
        seconds=sum(window.seconds for window in flows),
        sockets=sockets,
        spans=np.array([window.seconds for window, _ in known], "f8"),
        interface=b"".join(both["interface"][~back][-1:].tolist()).decode(errors="replace"),
        owner=_owner(sockets, _recent(tables, PROBE, OWNERS_TABLE)),
        hops=_to(conversation, HOP, _recent(tables, "path", HOPS_TABLE)),
        findings=_to(conversation, PATH, _recent(tables, "path", PATHS_TABLE)),
        errors=_errors(conversation, flows),
        pauses=tuple(_pauses(mine)),
        flags=int(np.bitwise_or.reduce(both["tcp_flags"])),
        flags_back=int(np.bitwise_or.reduce(both["tcp_flags"][back])),
        losses=losses,
        lacks=max((window.lacks for window in flows), default=""),
        uncounted_s=_uncounted_s(mine, int(both["last_ns"].max(initial=0))),
        lacks_sockets=max((window.lacks for window in windows), default=""),
        drops=_drops(conversation, _recent(tables, DROPS, DROPS_TABLE)),
    )


def far_end(conversation: Row[GROUP]) -> str:
    """Return the address of the far end as text."""
    return address_text(conversation["far"].tobytes(), int(conversation["version"]))


def ends_of(conversation: Row[GROUP]) -> ExplainedEnds:
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


def _drops(conversation: Row[GROUP], tables: Sequence[Snapshot]) -> tuple[Dropped, ...] | None:
    """Return the kernel's drops of a conversation, the largest first; None without tables."""
    if not tables:
        return None
    size = 4 if conversation["version"] == 4 else 16
    near, far = (conversation[end].tobytes()[:size] for end in ("near", "far"))
    ports = int(conversation["near_port"]), int(conversation["far_port"])
    return summed(each for table in tables for each in of_flow(table, near, far, ports))


def _summed(conversation: Row[GROUP], rows: Rows[FLOW]) -> Row[GROUP]:
    """Return the conversation's row with its counts of all windows, rows (n,) of dtype FLOW."""
    groups = group(rows, "conversations").rows
    mine = groups[groups["id"] == conversation["id"]]
    return mine[0] if len(mine) else conversation


def _rows_of(conversation: Row[GROUP], window: Snapshot) -> Rows[FLOW]:
    """Return both directions of a conversation, dtype FLOW (n,).

    Packets of two containers to each other all leave: those of the far end count as received.
    """
    rows = window.rows[_perhaps(window.rows, conversation)]
    ends, found = records.ends_of(np.array([conversation], GROUP)), records.ends_of(rows)
    far = (found == records.swapped(ends)).all(axis=1) & (rows["direction"] == FlowDirection.EGRESS)
    rows["direction"][far] = FlowDirection.INGRESS
    return rows[far | (found == ends).all(axis=1)]


def _pauses(flows: Sequence[tuple[Snapshot, Rows[FLOW]]]) -> Iterator[Silence]:
    """Yield the pauses between packets of different windows, and the one at the end.

    `flows` are windows and the conversation's rows in them. Windows that lack flows are in no
    pause.
    """
    until_ns, asked = 0, False
    for window, rows in flows:
        if not len(rows):
            if window.lacks:
                until_ns, asked = window.end_ns, False
            continue
        first, last = rows[rows["first_ns"].argmin()], rows[rows["last_ns"].argmax()]
        if until_ns and not window.lacks:
            answered = bool(first["direction"] == FlowDirection.INGRESS)
            yield Silence((int(first["first_ns"]) - until_ns) / 1e9, asked, answered)
        until_ns = int(last["last_ns"])
        leaves = rows["direction"] == FlowDirection.EGRESS
        # TCP sets PSH at the end of data.
        asked = bool((rows["tcp_flags"][leaves] & PSH).any())
        asked |= bool(last["protocol"] != TCP and last["direction"] == FlowDirection.EGRESS)
        if window.lacks:
            until_ns, asked = window.end_ns, False
    if until_ns:
        yield Silence((flows[-1][0].end_ns - until_ns) / 1e9, asked, False)


def _uncounted_s(flows: Sequence[tuple[Snapshot, Rows[FLOW]]], last_ns: int) -> float:
    """Return `uncounted_s` of Material; `last_ns` is the time of the last packet."""
    # A window may have one direction, and lack a reset or an answer.
    cut = [
        window.end_ns for window, rows in flows
        if window.lacks and len(np.unique(rows["direction"])) < len(FlowDirection)
    ]  # fmt: skip
    return max(0.0, (max(cut, default=0) - last_ns) / 1e9) if last_ns else 0.0


def _errors(conversation: Row[GROUP], flows: Sequence[Snapshot]) -> Array:
    """Return the rows of ICMP errors to the near end, without those about the size of packets."""
    rows = np.concatenate([np.empty(0, FLOW), *(window.rows for window in flows)])
    kind = rows["destination_port"]
    wanted = (rows["protocol"] == 1) & (kind >> 8 == 3) & (kind != FRAGMENTATION_NEEDED)
    wanted |= (rows["protocol"] == 58) & (kind >> 8 == 1)
    found: Array = rows[wanted & (rows["destination"] == conversation["near"]).all(axis=1)]
    return found


def _perhaps(flows: Rows[FLOW], conversation: Row[GROUP]) -> Array:
    """Leave out most flows (n,) of other conversations, faster than grouping does."""
    mine: Array = flows["protocol"] == conversation["protocol"]
    if int(conversation["protocol"]) in WITH_PORTS:
        ports = conversation["near_port"], conversation["far_port"]
        source, destination = flows["source_port"], flows["destination_port"]
        there = (source == ports[0]) & (destination == ports[1])
        mine &= there | (source == ports[1]) & (destination == ports[0])
    return mine


def _owner(sockets: Rows[SOCKET], owners: Sequence[Snapshot]) -> Any:
    """Return the last known owner of a socket, None without one."""
    for number in dict.fromkeys(reversed(sockets["owner"].tolist())):
        for table in reversed(owners) if number else ():
            mine = table.rows[table.rows["number"] == number]
            if len(mine):
                return mine[0]
    return None


def _to(conversation: Row[GROUP], dtype: np.dtype[Any], tables: Sequence[Snapshot]) -> Array:
    """Return the rows about the path to the far end."""
    found = [
        table.rows[
            (table.rows["destination"] == conversation["far"]).all(axis=1)
            & (table.rows["version"] == conversation["version"])
        ]
        for table in tables
    ]
    return np.concatenate([np.empty(0, dtype), *found])


_PAST_NS = 10_000_000_000
"""Windows that take part in the choice."""
_MOST = 5
"""Conversations that are named if none passes."""


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """The conversation that passes, and those that pass instead."""

    conversation: Row[GROUP] | None
    """A row of dtype GROUP; None if no conversation passes."""
    passing: int
    """Conversations that pass."""
    others: Rows[GROUP]
    """dtype GROUP: the largest conversations of all, if none passes."""
    is_cut: bool = False
    """Whether the CPU budget left conversations out."""


def nothing_passes(choice: Choice, text: str, error: type[ProbedeckError]) -> ProbedeckError:
    """Return the error about a filter that no conversation passes; its hint names others."""
    if not len(choice.others):
        return error("no packet passed in the last seconds", hint="send some, and ask again")
    problem = f"no conversation passes the filter {text!r}"
    if choice.is_cut:
        return error(problem, hint="the CPU budget leaves conversations out: --cpu off counts all")
    others = ", ".join(str(ends_of(each)) for each in choice.others)
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
    others = _conversations([window.rows for window in flows])[:_MOST]
    return Choice(None, 0, others, any(window.cut for window in flows))


def _conversations(rows: Sequence[Array]) -> Rows[GROUP]:
    """Return the conversations of flows, dtype GROUP, the largest first."""
    if not rows:
        return np.empty(0, GROUP)
    groups = group(np.concatenate(rows), "conversations").rows
    return groups.take(np.argsort(-(groups["in_bytes"] + groups["out_bytes"]).astype("i8")))
