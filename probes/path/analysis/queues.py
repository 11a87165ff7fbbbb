"""At which hop a queue builds up, since when, and how much of it (S3.20)."""

from __future__ import annotations

import numpy as np

from probes.path.records import Array

QUEUE = np.dtype(
    [
        ("amount", "f8"),
        ("most", "f8"),
        ("since_ns", "i8"),
        ("below_ns", "i8"),
        ("blocks", "i4"),
        ("on", "?"),
    ]
)
"""A hop of a flow: `amount` of queue now and the `most` since it began, ns; `since_ns` when it
began, `below_ns` since when it is gone (0: it is not), `blocks` it has been there, in succession;
`on`: it was told."""

OVER_NS = 3_000_000_000
"""A queue that is gone for so long is over; one that only drains now and then is not."""
_MIN_BLOCKS = 2
_SHARE = 1 / 3
"""Of the delay that stands at a hop, what must begin there: a queue moves while one hop after
another is measured, so their times differ by a part of it."""


def amounts(excess_ns: Array, limit_ns: Array) -> Array:
    """How much queue there is at each hop, ns, f8 (flows, hops) of `excess_ns` (flows, hops): the
    extra delay above each hop's baseline, NaN where it is not known.

    A queue at a hop delays every probe to that hop and beyond. So what stands at a hop is the least
    of its own extra delay and that of all later hops; what a hop has beyond is its own slowness to
    answer. And what begins at a hop is what stands there and not at the one before, where that is
    at least `limit_ns` (flows, hops) and no small part of it. The last hop that answers has none
    behind it that could clear it.
    """
    known = ~np.isnan(excess_ns)
    least = np.fmin.accumulate(excess_ns[:, ::-1], axis=1)[:, ::-1]
    stands = np.where(known, np.maximum(least, 0.0), 0.0)
    before = np.zeros_like(stands)
    # It never decreases from hop to hop.
    before[:, 1:] = np.maximum.accumulate(stands, axis=1)[:, :-1]
    begins = np.where(known, stands - before, 0.0)
    result: Array = np.where((begins >= limit_ns) & (begins >= _SHARE * stands), begins, 0.0)
    return result


def decidable(excess_ns: Array, fresh: Array) -> Array:
    """Where it can be told, bool (flows, hops), whether a queue begins: where the hop and the last
    one known before it were both measured in this block (`fresh`). Else a hop whose turn came after
    the queue did would be taken for its place."""
    known = ~np.isnan(excess_ns)
    hops = np.where(known, np.arange(known.shape[1]), -1)
    before = np.full_like(hops, -1)
    before[:, 1:] = np.maximum.accumulate(hops, axis=1)[:, :-1]
    too = np.take_along_axis(fresh, np.maximum(before, 0), axis=1) | (before < 0)
    result: Array = known & fresh & too
    return result


def follow(queues: Array, amount: Array, wait: Array, since_ns: Array, now_ns: int) -> Array:
    """The hops (n,) of dtype QUEUE after one more block with `amount` (n,) of queue.

    A queue is `on` from its second block on, but not where `wait` (n,): the level may have shifted.
    It is off again once it was gone for OVER_NS. `since_ns` (n,) is when the block began.
    """
    after = queues.copy()
    here = amount > 0
    after["amount"] = amount
    begins = here & ~queues["on"] & (queues["blocks"] == 0)
    after["since_ns"] = np.where(begins, since_ns, queues["since_ns"])
    after["most"] = np.where(begins, amount, np.maximum(queues["most"], amount))
    after["blocks"] = np.where(here, np.minimum(queues["blocks"], 1 << 30) + 1, 0)
    fresh = np.where(queues["below_ns"] == 0, since_ns, queues["below_ns"])
    after["below_ns"] = np.where(here, 0, fresh)
    over = ~here & (now_ns - after["below_ns"] >= OVER_NS)
    starts = (after["blocks"] >= _MIN_BLOCKS) & ~wait
    after["on"] = (queues["on"] | starts) & ~over
    return after
