"""The hop at which a queue builds up, its begin and its length in time (S3.20)."""

from __future__ import annotations

import numpy as np

from bpf.arrays import Array, Rows

QUEUE = np.dtype([
    ("amount", "f8"), ("most", "f8"), ("since_ns", "i8"), ("below_ns", "i8"), ("blocks", "i4"),
    ("on", "?"),
])  # fmt: skip
"""One hop of a flow: `amount` of queue now and the `most` since it began, ns; `since_ns` when the
queue began, `below_ns` when it vanished (0: it is there), `blocks` how many successive blocks had
it; `on`: it was reported."""

OVER_NS = 3_000_000_000
"""A queue that vanished so long ago is over; one that drains now and then is not."""
_LONG = 4
"""A queue of so many times the least amount is certain after two blocks ..."""
_FEW_BLOCKS, _BLOCKS = 2, 4
"""... and a shorter one after four: then it is no constant step."""
_SHARE = 1 / 3
"""A queue must add this part of the delay at its hop: it changes while hops are measured one after
another, so their times differ by a part of it."""


def amounts(excess_ns: Array, limit_ns: Array) -> Array:
    """Return the queue at each hop, ns, f8 (flows, hops). `excess_ns` (flows, hops) is each hop's
    delay above its baseline, NaN if unknown.

    A queue at a hop delays all probes to that hop and beyond. So the queues up to a hop add the
    least excess of this hop and all later ones; a larger excess of the hop itself is its slowness
    to answer. The hop's own queue is the difference to the hop before, if that is at least
    `limit_ns` (flows, hops) and no small part of the total. No later hop can clear the last one
    that answers.
    """
    known = ~np.isnan(excess_ns)
    least = np.fmin.accumulate(excess_ns[:, ::-1], axis=1)[:, ::-1]
    stands = np.where(known, np.maximum(least, 0.0), 0.0)
    before = np.zeros_like(stands)
    # The delay never decreases from hop to hop.
    before[:, 1:] = np.maximum.accumulate(stands, axis=1)[:, :-1]
    begins = np.where(known, stands - before, 0.0)
    result: Array = np.where((begins >= limit_ns) & (begins >= _SHARE * stands), begins, 0.0)
    return result


def before_hops(known: Array) -> Array:
    """The last hop before each that is `known`, (flows, hops); 0: none, this host."""
    hops = np.where(known, np.arange(known.shape[1]), 0)
    result = np.zeros_like(hops)
    result[:, 1:] = np.maximum.accumulate(hops, axis=1)[:, :-1]
    return result


def decidable(excess_ns: Array, fresh: Array) -> Array:
    """Whether the begin of a queue can be located, bool (flows, hops): the hop and the last known
    one before it were both measured in this block (`fresh`). Otherwise a hop that was measured
    after the queue began would seem to be its place."""
    known = ~np.isnan(excess_ns)
    before = before_hops(known)
    too = np.take_along_axis(fresh, before, axis=1) | (before == 0)
    return known & fresh & too


def certain(amount: Array, limit_ns: Array, queued: Array) -> Array:
    """How many successive blocks make a queue of `amount` certain, (flows, hops). Close behind a
    hop where one is found (`queued`, bool) its changes may look like another one."""
    before = np.zeros_like(queued)
    before[:, 1:] = np.logical_or.accumulate(queued | (amount > 0), axis=1)[:, :-1]
    soon = (amount >= _LONG * limit_ns) & ~before
    return np.where(soon, _FEW_BLOCKS, _BLOCKS)


def follow(
    queues: Rows[QUEUE], amount: Array, wait: Array, blocks: Array, since_ns: Array, now_ns: int
) -> Rows[QUEUE]:
    """Return the hops (n,) of dtype QUEUE after one more block with `amount` (n,) of queue.

    A queue is `on` after so many `blocks` (n,), except where `wait` (n,): the level may have
    shifted. It is off after OVER_NS without a queue. `since_ns` (n,) is when the block began.
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
    starts = (after["blocks"] >= blocks) & ~wait
    after["on"] = (queues["on"] | starts) & ~over
    return after
