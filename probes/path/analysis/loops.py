"""Routing loops: the same routers at several hops."""

from __future__ import annotations

from collections.abc import Sequence


def loop_of(routers: Sequence[int]) -> tuple[int, int]:
    """Return the first hop of a routing loop and its number of routers; (0, 0) without a loop.

    `routers`: a number of the router at each hop, 0 for a hop without an answer; index 0 is no hop.
    Packets go round: from the first hop on, each router answers again `number` hops later, at two
    hops at least. A router that forwards packets whose TTL ended answers at neighbouring hops: this
    is no loop.
    """
    known = {hop: router for hop, router in enumerate(routers) if router}
    for number in range(2, len(routers)):
        pairs = [(router, known.get(hop + number, 0)) for hop, router in known.items()]
        again = [hop for hop, (one, other) in zip(known, pairs, strict=True) if one == other]
        if len(again) < 2 or known.get(again[0] + 1) == known[again[0]]:
            continue
        if all(one == other for hop, (one, other) in zip(known, pairs, strict=True)
               if hop >= again[0] and other):  # fmt: skip
            return again[0], number
    return 0, 0
