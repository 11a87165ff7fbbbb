"""Routers that answer at the hops of a path, and flows that take the same way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from app.console.live.paths import SECOND_NS, PathView
from probes.filter.network import address_text
from probes.path.options import TracedFlow
from probes.path.records import Altered, Array

_TURNS_NS = 2 * SECOND_NS
"""Routers whose last answers to a probe series are closer than this take turns."""
_ADDRESS = 16
"""Bytes of an address."""
_Routers = Mapping[int, frozenset[bytes]]
"""Routers by hop."""


@dataclass(frozen=True, slots=True)
class Router:
    """A router that answers at a hop."""

    address: str
    share: float
    """Share of the hop's answers, over all flows to the destination."""
    last_ns: int
    labels: tuple[int, ...]
    """MPLS label stack entries (RFC 3032), outermost first."""
    tos: int
    """TOS or traffic class of the last answered probe when it was sent."""
    quoted_tos: int
    """The same when it came to the router."""
    altered: Altered
    """Other fields of that probe that were changed on the way."""


@dataclass(frozen=True, slots=True)
class Way:
    """Flows whose probes are answered by the same routers, as far as any router answers."""

    flows: tuple[TracedFlow, ...]
    """In the order of the list of flows."""
    branch: str = ""
    """The first router that tells it from another way, `hop 3 10.94.8.2`, or `no answer`."""
    is_known: bool = True
    """Whether any router answers."""


def ways_of(view: PathView, places: Mapping[TracedFlow, Array]) -> tuple[Way, ...]:
    """Return the ways to a destination, those with the first flows first.

    `places` has the places in `view.series` of each flow to the destination. Only the routers of
    the last answers count. A flow that some hops do not answer joins the first way that its other
    hops allow. Flows without an answer make one way.
    """
    alike: defaultdict[tuple[tuple[int, frozenset[bytes]], ...], list[TracedFlow]]
    alike = defaultdict(list)
    of = _routers_of(view, places)
    for flow in places:
        alike[tuple(sorted(of.get(flow, {}).items()))].append(flow)
    ways: list[tuple[dict[int, frozenset[bytes]], list[TracedFlow]]] = []
    for known, flows in sorted(alike.items(), key=lambda one: (-len(one[0]), -len(one[1]))):
        routers = dict(known)
        for way, members in ways:
            if bool(way) == bool(routers) and _fit(way, routers):
                members += flows
                for hop, found in routers.items():
                    way[hop] = way.get(hop, frozenset()) | found
                break
        else:
            ways.append((routers, list(flows)))
    order = {flow: number for number, flow in enumerate(places)}
    made = []
    for way, members in ways:
        others = [other for other, _ in ways if other is not way]
        members.sort(key=order.__getitem__)
        branch = _branch(way, others, _version(view, places)) if way or not others else "no answer"
        made.append(Way(tuple(members), branch, bool(way)))
    return tuple(sorted(made, key=lambda one: order[one.flows[0]]))


def routers_of(view: PathView, every: Array, own: Array) -> dict[int, tuple[Router, ...]]:
    """Return, by hop, the routers of a destination, whose series stand at places `every` (n,).

    Routers that take turns at `own` (m,), some of those places, come first.
    """
    series, known = view.series, view.responders
    belongs = np.zeros(len(series), "u1")
    belongs[every] = 1
    belongs[own] = 2
    at = np.searchsorted(series["id"], known["series"])
    kept = np.flatnonzero(belongs[at])
    rows, at = known[kept], at[kept]
    raw = rows["responder"].tobytes()
    hops: dict[int, dict[bytes, list[int]]] = {}
    for row, number in enumerate(series["hop"][at].tolist()):
        address = raw[row * _ADDRESS : (row + 1) * _ADDRESS]
        hops.setdefault(number, {}).setdefault(address, []).append(row)
    # Plain numbers are faster than arrays of few rows.
    answers, last_ns = rows["answers"].tolist(), rows["last_ns"].tolist()
    is_own = (belongs[at] == 2).tolist()
    version = int(series["version"][every[0]]) if len(every) else 0

    def at_hop(addresses: dict[bytes, list[int]]) -> tuple[Router, ...]:
        here = [row for found in addresses.values() for row in found]
        total = sum(answers[row] for row in here)
        newest = max((last_ns[row] for row in here if is_own[row]), default=0)
        routers: list[tuple[tuple[bool, int], Router]] = []
        for address, found in sorted(addresses.items()):
            turn = [row for row in found if is_own[row] and last_ns[row] > newest - _TURNS_NS]
            last = max(found, key=last_ns.__getitem__)
            labels = tuple(rows["labels"][last][: int(rows["label_count"][last])].tolist())
            share = sum(answers[row] for row in found) / total
            router = Router(
                address_text(address, version), share, last_ns[last], labels,
                int(rows["tos"][last]), int(rows["quoted_tos"][last]),
                Altered(int(rows["altered"][last])),
            )  # fmt: skip
            routers.append(((bool(turn), sum(answers[row] for row in turn)), router))
        return tuple(
            router for _, router in sorted(routers, key=lambda pair: pair[0], reverse=True)
        )

    return {number: at_hop(addresses) for number, addresses in hops.items()}


def _routers_of(
    view: PathView, places: Mapping[TracedFlow, Array]
) -> dict[TracedFlow, dict[int, frozenset[bytes]]]:
    """Return the routers that answer each flow now, by hop."""
    series, known = view.series, view.responders
    flow_of = np.full(len(series), -1)
    for number, at in enumerate(places.values()):
        flow_of[at] = number
    at = np.searchsorted(series["id"], known["series"])
    newest = np.zeros(len(series), "i8")
    np.maximum.at(newest, at, known["last_ns"])
    recent = (flow_of[at] >= 0) & (known["last_ns"] > newest[at] - _TURNS_NS)
    flows = list(places)
    found: defaultdict[TracedFlow, defaultdict[int, set[bytes]]]
    found = defaultdict(lambda: defaultdict(set))
    rows = zip(
        flow_of[at[recent]].tolist(), series["hop"][at[recent]].tolist(),
        known["responder"][recent], strict=True,
    )  # fmt: skip
    for number, hop, responder in rows:
        found[flows[number]][hop].add(responder.tobytes())
    return {
        flow: {hop: frozenset(routers) for hop, routers in hops.items()}
        for flow, hops in found.items()
    }


def _fit(way: _Routers, other: _Routers) -> bool:
    """Whether no hop contradicts: routers of equal-cost paths by packet take turns."""
    return all(way[hop] & routers for hop, routers in other.items() if hop in way)


def _branch(way: _Routers, others: Iterable[_Routers], version: int) -> str:
    apart = {
        hop
        for other in others
        for hop, routers in other.items()
        if hop in way and not way[hop] & routers
    }
    if not apart:
        return ""
    hop = min(apart)
    return f"hop {hop} {address_text(min(way[hop]), version)}"


def _version(view: PathView, places: Mapping[TracedFlow, Array]) -> int:
    first = next((at[0] for at in places.values() if len(at)), None)
    return 4 if first is None else int(view.series["version"][first])
