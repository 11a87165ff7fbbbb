"""Which router answers at a hop: route changes, per-packet balancing, silence (S3.20)."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from probes.path.records import Array

ROUTE = np.dtype(
    [
        ("current", "u8"),
        ("latest", "u8"),
        ("run", "i8"),
        ("switches", "i8"),
        ("run_ns", "i8"),
        ("held_ns", "i8"),
        ("mixed", "?"),
    ]
)
"""A hop of a flow: the router on its way, and the one that answered last (address ids, 0: none);
the answers of that one in succession, the first of which was sent at `run_ns`; how often another
followed one lately; since when `current` is (by time of sending); `mixed`: several take turns."""

_RUN = 8
"""Answers of one router in succession, after which what was before no longer counts."""
_MIXED_RUN = 256
"""The same where packets are balanced: by chance so many in succession are not of one router."""
_MIXED_SWITCHES = 3
"""There, back, and there again: no route change does that within so few answers."""
_OVERLAP_NS = 200_000_000
"""For which two routers must have answered side by side."""
_MIN_UNANSWERED = 10
_MIN_SHARE_LOST = 0.25
"""No hop is taken to answer more of its probes: a few in succession are lost anywhere."""
_SURE = 14.0
"""-ln of how improbable it may be that a hop that answers as before did not answer these."""


class RouteVerdict(IntEnum):
    """What answers say of the router at a hop."""

    SAME = 0
    CHANGED = 1
    """The last one answering is the router now."""
    MIXED = 2
    """Several take turns: known from now on."""


def is_late(routes: Array, sent_ns: Array) -> Array:
    """Which answers (n,) to probes sent at `sent_ns`, with the ROUTE (n,) of each, are of before
    the last change: the old path may be the slower one."""
    result: Array = (sent_ns < routes["run_ns"]) & ~routes["mixed"]
    return result


def follow(routes: Array, responders: Array, sent_ns: Array, starts: Array) -> tuple[Array, Array]:
    """The hops (m,) of dtype ROUTE after more answers, and the RouteVerdict (m,) on each.

    Of `responders` (address ids) and `sent_ns`, each (n,), those of a hop begin at `starts` (m,),
    in order of sending. A change is sure by two answers in succession, or by a single one where
    there are no others; by three where the old router answered in between.
    """
    counts = np.diff(starts, append=len(responders))
    last = starts + counts - 1
    fresh = routes["current"] == 0
    before = np.concatenate((responders[:1], responders[:-1]))
    before[starts] = np.where(fresh, responders[starts], routes["latest"])
    switch = responders != before
    at = np.maximum.reduceat(np.where(switch, np.arange(len(switch)), -1), starts)
    switched = at >= 0

    after = routes.copy()
    latest = responders[last]
    after["latest"] = latest
    run = np.where(switched, last + 1 - at, routes["run"] + counts)
    after["run"] = run
    first = sent_ns[starts]
    after["run_ns"] = np.where(switched, sent_ns[at], np.where(fresh, first, routes["run_ns"]))
    after["current"] = np.where(fresh, responders[starts], routes["current"])
    after["held_ns"] = np.where(fresh, first, routes["held_ns"])
    switches = routes["switches"] + np.add.reduceat(switch.astype("i8"), starts)

    steady = run >= np.where(routes["mixed"], _MIXED_RUN, _RUN)
    mixes = ~routes["mixed"] & ~steady & (switches >= _MIXED_SWITCHES)
    clean = (switches == 1) & ((run >= 2) | (counts == 1))
    other = latest != after["current"]
    changes = ~routes["mixed"] & ~mixes & other & (clean | (run >= 3))
    becomes = changes | (steady & other)
    after["current"] = np.where(becomes, latest, after["current"])
    after["held_ns"] = np.where(becomes, after["run_ns"], after["held_ns"])
    after["mixed"] = mixes | (routes["mixed"] & ~steady)
    after["switches"] = np.where(steady, 0, switches)
    verdicts = np.where(
        mixes, RouteVerdict.MIXED, np.where(changes, RouteVerdict.CHANGED, RouteVerdict.SAME)
    )
    return after, verdicts


def differing(routers: Array, held_ns: Array, last_ns: Array, usual: int) -> Array:
    """Which flows (n,) another router than `usual` serves at a hop while `usual` serves others.

    `routers` are address ids, `usual` one of them, `held_ns` and `last_ns` when the first and the
    last probe was sent that it answered. Flows that followed one another, or that a route change
    caught one after the other, did not have two routers at a time.
    """
    normal = routers == usual
    begin: Array = np.maximum(held_ns, held_ns[normal].min())
    end: Array = np.minimum(last_ns, last_ns[normal].max())
    result: Array = ~normal & (end - begin >= _OVERLAP_NS)
    return result


def is_silent(unanswered: Array, answered: Array, lost: Array) -> Array:
    """Which hops (n,) no longer answer: `unanswered` probes in succession, where before that
    `answered` and `lost` (f8, with less weight the older they are) say how often it does."""
    share_lost = np.maximum(lost / np.maximum(answered + lost, 1e-9), _MIN_SHARE_LOST)
    improbable = -unanswered * np.log(np.minimum(share_lost, 1 - 1e-9))
    result: Array = (unanswered >= _MIN_UNANSWERED) & (improbable >= _SURE)
    return result
