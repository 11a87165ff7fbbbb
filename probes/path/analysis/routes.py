"""The router at a hop: route changes, per-packet balancing, silence (S3.20)."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from bpf.arrays import Array, Rows

ROUTE = np.dtype([
    ("current", "u8"), ("latest", "u8"), ("run", "i8"), ("switches", "i8"), ("run_ns", "i8"),
    ("held_ns", "i8"), ("last_ns", "i8"), ("left_ns", "i8"), ("mixed", "?"),
])  # fmt: skip
"""One hop of a flow: `current` is the router on the path, `latest` the one that answered last
(address ids, 0: none); `run` counts the successive answers of `latest`, the first of which was sent
at `run_ns`; `switches` counts recent changes from one router to another; `held_ns` is when
`current` began (by time of sending); `last_ns` is when the last answered probe was sent, and
`left_ns` the last one before the run; `mixed`: several routers take turns."""

_RUN = 8
"""After so many successive answers of one router, earlier routers no longer count."""
_MIXED_RUN = 256
"""The same for per-packet balancing, where long runs of one router occur by chance."""
_MIXED_SWITCHES = 3
"""There, back, and there again: a route change does not do that within so few answers."""
_OVERLAP_NS = 200_000_000
"""Two routers serve different flows if they answered side by side for so long."""
_MIN_UNANSWERED = 10
_MIN_SHARE_LOST = 0.25
"""No hop is assumed to answer a larger share: every path loses a few successive probes."""
_SURE = 14.0
"""-ln of the highest probability at which a hop that answers as before would have been silent."""


class RouteVerdict(IntEnum):
    """Result of new answers for the router at a hop."""

    SAME = 0
    CHANGED = 1
    """The router that answered last is the current one now."""
    MIXED = 2
    """Several routers take turns; reported once."""


def is_late(routes: Rows[ROUTE], sent_ns: Array) -> Array:
    """Which answers (n,) to probes sent at `sent_ns`, with the ROUTE (n,) of each, precede the last
    change: the old path may be slower."""
    return (sent_ns < routes["run_ns"]) & ~routes["mixed"]


def follow(
    routes: Rows[ROUTE], responders: Array, sent_ns: Array, starts: Array
) -> tuple[Array, Array]:
    """Return the hops (m,) of dtype ROUTE after more answers, and a RouteVerdict (m,) on each.

    `responders` (address ids) and `sent_ns`, both (n,), are in order of sending; the answers of
    each hop begin at `starts` (m,). A change is certain after two successive answers, after a
    single one without any other answers, or after three if the old router answered in between.
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
    left = np.where(at <= starts, routes["last_ns"], sent_ns[np.maximum(at, 1) - 1])
    after["left_ns"] = np.where(switched, left, routes["left_ns"])
    after["last_ns"] = sent_ns[last]
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
    """Which flows (n,) are served by another router than `usual` at a hop while `usual` serves
    others.

    `routers` are address ids, `usual` is one of them; `held_ns` and `last_ns` are when the first
    and the last answered probe was sent. Flows that followed one another, or that a route change
    caught one after another, did not have two routers at a time.
    """
    normal = routers == usual
    begin: Array = np.maximum(held_ns, held_ns[normal].min())
    end: Array = np.minimum(last_ns, last_ns[normal].max())
    return ~normal & (end - begin >= _OVERLAP_NS)


def is_silent(unanswered: Array, answered: Array, lost: Array) -> Array:
    """Which hops (n,) no longer answer: after `unanswered` successive losses of hops that before
    had `answered` and `lost` (f8, older outcomes with less weight)."""
    share_lost = np.maximum(lost / np.maximum(answered + lost, 1e-9), _MIN_SHARE_LOST)
    improbable = -unanswered * np.log(np.minimum(share_lost, 1 - 1e-9))
    return (unanswered >= _MIN_UNANSWERED) & (improbable >= _SURE)
