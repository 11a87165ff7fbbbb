"""The level of each round-trip time series, and where it changes to another (S3.20).

Times are taken in blocks of half a second or more, and of a block only its quartiles and its
lowest tenth: no spike is among these. A block is outside of the level where its median is further
away than `threshold_ns`. Some blocks outside in succession, quiet in themselves and among
themselves, are another level: a route of another length has one at once. A queue has none: its
times move.
"""

from __future__ import annotations

import numpy as np

from probes.path.records import Array

FLOOR_NS = 1_000_000
"""What changes less is never told: hosts and routers under load are that slow themselves."""
MIN_ANSWERS = 3
"""Of a series in a block; with fewer it is left out of it."""

LEVEL = np.dtype(
    [
        ("base", "f8"),
        ("level", "f8"),
        ("noise", "f8"),
        ("median", "f8"),
        ("low", "f8"),
        ("spread", "f8"),
        ("run_low", "f8"),
        ("run_high", "f8"),
        ("since_ns", "i8"),
        ("blocks", "i4"),
        ("run", "i4"),
        ("quiet", "?"),
    ]
)
"""A series: `base` is the lowest tenth when nothing waits, `level` the usual median, `noise` the
usual distance of the quartiles; `median`, `low` and `spread` are the last block's; `run` is the
number of blocks outside in succession, negative below, `since_ns` when they began, `run_*` are the
limits of their medians; `blocks` 0: nothing is known. Times are ns."""

BLOCK = np.dtype(
    [("low", "f8"), ("first", "f8"), ("median", "f8"), ("third", "f8"), ("since_ns", "i8")]
)
"""A block of a series: lowest tenth, quartiles, when it began. ns."""

QUIET_BLOCKS = 4
"""In succession, to be sure of a level; the first of them may be half and half."""
_REROUTED_BLOCKS = 3
"""As many suffice after a route change, and need not be quiet."""
_FIRST_NOISE = 0.25
"""Of the lowest tenth: as much at most is taken for noise, where nothing else is known."""
_FOLLOW = 0.1
"""The share of a block in the usual values: some ten blocks' memory, as slow drift is no change."""
_FORGET = 1 / 1200
"""The same for a base that is too low: ten minutes of half-second blocks."""


def threshold_ns(level: Array, noise: Array) -> Array:
    """What difference of a median counts, f8: 1 ms, four times the noise, 10 % of the level."""
    result: Array = np.maximum(FLOOR_NS, np.maximum(4 * noise, 0.1 * level))
    return result


def follow(levels: Array, blocks: Array, queued: Array) -> Array:
    """The series (n,) of dtype LEVEL after one more BLOCK (n,) each; `queued` (n,) bool: a queue
    stands there, so that the base stays."""
    after = levels.copy()
    median, spread = blocks["median"], blocks["third"] - blocks["first"]
    after["median"], after["low"], after["spread"] = median, blocks["low"], spread
    first = levels["blocks"] == 0
    # A flow that fills a queue begins by doing so: most of its first block is of that.
    noise = np.minimum(spread, blocks["low"] * _FIRST_NOISE + FLOOR_NS / 10)
    level = np.minimum(median, blocks["low"] + 2 * noise)
    _put(after, first, base=blocks["low"], level=level, noise=noise)
    after["blocks"] = np.minimum(levels["blocks"], 1 << 30) + 1

    limit = threshold_ns(after["level"], after["noise"])
    away = median - after["level"]
    sign = np.where(np.abs(away) >= limit, np.sign(away), 0).astype("i4")
    goes_on = (sign != 0) & (np.sign(levels["run"]) == sign)
    after["run"] = np.where(goes_on, levels["run"] + sign, sign)
    _put(after, ~goes_on, since_ns=blocks["since_ns"], quiet=True)
    length = np.abs(after["run"])
    # The block in which it changed is of both levels: it says nothing of the new one.
    _put(after, length <= 2, run_low=median, run_high=median)
    after["run_low"] = np.minimum(after["run_low"], median)
    after["run_high"] = np.maximum(after["run_high"], median)
    still = spread <= np.maximum(2 * after["noise"], limit / 8)
    still &= after["run_high"] - after["run_low"] <= limit / 2
    after["quiet"] &= (length < 2) | still

    usual = (sign == 0) & ~first
    # A block at the edge of a change has a large spread, and a low tenth of what comes: neither
    # must hide the change.
    noise = np.minimum(spread, 2 * after["noise"] + limit / 16)
    under = np.where(blocks["low"] > after["base"] - limit, blocks["low"] - after["base"], 0)
    slowly = np.where(under < 0, 1.0, np.where(queued, 0.0, _FORGET))
    _put(
        after,
        usual,
        level=after["level"] + _FOLLOW * away,
        noise=after["noise"] + _FOLLOW * (noise - after["noise"]),
        base=after["base"] + slowly * under,
    )
    return after


def shifted(levels: Array, rerouted: Array) -> Array:
    """Which series (n,) have another level for sure; `rerouted`: the route changed just before."""
    length = np.abs(levels["run"])
    sure = (length >= QUIET_BLOCKS) & levels["quiet"] | (length >= _REROUTED_BLOCKS) & rerouted
    result: Array = sure & shifting(levels, rerouted)
    return result


def shifting(levels: Array, rerouted: Array) -> Array:
    """Which series (n,) may be about to: what rises there is no queue yet."""
    # What falls back to the base was a queue, and is over.
    limit = threshold_ns(levels["level"], levels["noise"])
    real = (levels["run"] > 0) | (levels["median"] < levels["base"] - limit)
    result: Array = (levels["run"] != 0) & (levels["quiet"] | rerouted) & real
    return result


def sinking(levels: Array) -> Array:
    """Which series (n,) have been below their level for long: it was too high, of a queue."""
    result: Array = levels["run"] <= -QUIET_BLOCKS
    return result


def settle(levels: Array, where: Array) -> Array:
    """The series (n,); those of `where` (n,) bool now have the last block as their level."""
    after = levels.copy()
    rises = where & (levels["run"] > 0)
    base = np.where(rises, levels["low"], np.minimum(levels["base"], levels["low"]))
    _put(after, where, base=base, level=levels["median"], noise=levels["spread"], run=0)
    return after


def new_shifts(levels: Array, sure: Array, maybe: Array) -> tuple[Array, Array]:
    """Where along each path levels shift: of series (flows, hops), `sure` and `maybe` bool.

    Returns what is to be told (bool) and the amounts (ns, f8), both (flows, hops). A hop that
    shifts by what an earlier hop shifts by is only behind it; so where any hop is sure, others
    that are about to shift are taken along.
    """
    moves = sure.any(axis=1, keepdims=True) & (sure | maybe)
    amounts = np.where(moves, levels["median"] - levels["level"], 0.0)
    hops = np.arange(levels.shape[1])
    known = np.where(levels["blocks"] > 0, hops, 0)
    at = np.maximum.accumulate(known, axis=1)
    earlier = np.zeros_like(at)
    earlier[:, 1:] = at[:, :-1]
    before = np.take_along_axis(amounts, earlier, axis=1)
    limit = threshold_ns(levels["level"], levels["noise"])
    return moves & (np.abs(amounts - before) >= limit), amounts


def _put(levels: Array, where: Array, **values: object) -> None:
    for name, value in values.items():
        levels[name] = np.where(where, value, levels[name])  # type: ignore[call-overload]
