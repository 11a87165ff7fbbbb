"""Routers that answer at the hops of a path."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from app.console.live.paths import SECOND_NS, PathView
from probes.filter.network import address_text
from probes.path.records import Altered, Array

_TURNS_NS = 2 * SECOND_NS
"""Routers whose last answers are closer than this take turns."""
_ADDRESS = 16
"""Bytes of an address."""


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
