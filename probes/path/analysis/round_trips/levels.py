"""The level of each round-trip time series, and its changes (S3.20).

Times are taken in blocks of at least half a second. Only the quartiles and the lowest tenth of a
block count, so spikes do not. A block is outside of the level if its median differs by more than
`threshold_ns`. Several successive blocks outside are a new level if they are quiet in themselves
and among each other: a route of another length has a level at once. Times in a queue keep moving.
"""

from __future__ import annotations

import numpy as np

from bpf.arrays import Array, Rows

FLOOR_NS = 1_000_000
"""Smaller changes are never reported: hosts and routers under load are that slow themselves."""
MIN_ANSWERS = 3
"""A series with fewer answers in a block is left out of it."""

LEVEL = np.dtype([
    ("base", "f8"), ("level", "f8"), ("noise", "f8"), ("median", "f8"), ("low", "f8"),
    ("spread", "f8"), ("run_low", "f8"), ("run_high", "f8"), ("since_ns", "i8"), ("blocks", "i4"),
    ("run", "i4"), ("restless", "i4"),
])  # fmt: skip
"""One series: `base` is the lowest tenth without queueing, `level` the usual median, `noise` the
usual distance of the quartiles; `median`, `low` and `spread` are the last block's; `run` is the
number of successive blocks outside of the level (negative: below it), `since_ns` when they began,
`run_*` the limits of their medians, `restless` how many of them were wide (_MOVING: their medians
differ); `blocks` 0: the series is empty. Times are ns."""

BLOCK = np.dtype(
    [("low", "f8"), ("first", "f8"), ("median", "f8"), ("third", "f8"), ("since_ns", "i8")]
)
"""A block of a series: lowest tenth, quartiles, when it began. ns."""

QUIET_BLOCKS = 4
"""Successive blocks that make a new level certain; the first may be of both levels."""
_RESTLESS = 1 / 4
"""Share of them that may be wide: busy hosts answer late now and then."""
_MOVING = 1 << 30
KNOWN_BLOCKS = 4
"""A level that is younger is not known well enough for a rise of it to be reported."""
_REROUTED_BLOCKS = 3
"""So many suffice after a route change, and need not be quiet."""
_FIRST_NOISE = 0.25
"""Without history at most this part of the lowest tenth counts as noise."""
_FOLLOW = 0.1
"""Weight of a block in the usual values: a memory of some ten blocks, so slow drift is no change.
"""
_FORGET = 1 / 1200
"""Weight of a block above a base that is too low: ten minutes of half-second blocks."""


def threshold_ns(level: Array, noise: Array) -> Array:
    """The difference of medians that counts, f8: 1 ms, 4 times the noise, or 10 % of the level."""
    result: Array = np.maximum(FLOOR_NS, np.maximum(4 * noise, 0.1 * level))
    return result


def follow(levels: Rows[LEVEL], blocks: Rows[BLOCK], queued: Array) -> Rows[LEVEL]:
    """Return the series (n,) of dtype LEVEL after one more BLOCK (n,) each. Where `queued` (n,)
    bool, the base does not rise."""
    after = levels.copy()
    median, spread = blocks["median"], blocks["third"] - blocks["first"]
    after["median"], after["low"], after["spread"] = median, blocks["low"], spread
    first = levels["blocks"] == 0
    # A flow that fills a queue does so from its first block on.
    noise = np.minimum(spread, blocks["low"] * _FIRST_NOISE + FLOOR_NS / 10)
    level = np.minimum(median, blocks["low"] + 2 * noise)
    _put(after, first, base=blocks["low"], level=level, noise=noise)
    after["blocks"] = np.minimum(levels["blocks"], 1 << 30) + 1

    limit = threshold_ns(after["level"], after["noise"])
    away = median - after["level"]
    sign = np.where(np.abs(away) >= limit, np.sign(away), 0).astype("i4")
    goes_on = (sign != 0) & (np.sign(levels["run"]) == sign)
    after["run"] = np.where(goes_on, levels["run"] + sign, sign)
    _put(after, ~goes_on, since_ns=blocks["since_ns"], restless=0)
    length = np.abs(after["run"])
    # The block in which the level changed has times of both levels.
    _put(after, length <= 2, run_low=median, run_high=median)
    after["run_low"] = np.minimum(after["run_low"], median)
    after["run_high"] = np.maximum(after["run_high"], median)
    moves = (length >= 2) & (after["run_high"] - after["run_low"] > limit / 2)
    wide = (length >= 2) & (spread > np.maximum(2 * after["noise"], limit / 4))
    after["restless"] = np.where(moves, _MOVING, after["restless"] + wide)

    usual = (sign == 0) & ~first
    # A block at the edge of a change has a large spread, and its low tenth may be of the new level:
    # neither may hide the change.
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


def shifted(levels: Rows[LEVEL], rerouted: Array) -> Array:
    """Which series (n,) certainly have a new level; `rerouted`: the route changed just before."""
    length = np.abs(levels["run"])
    sure = (length >= QUIET_BLOCKS) & _quiet(levels) | (length >= _REROUTED_BLOCKS) & rerouted
    return sure & shifting(levels, rerouted)


def shifting(levels: Rows[LEVEL], rerouted: Array) -> Array:
    """Which series (n,) may soon have a new level: their rise does not count as a queue yet."""
    # A fall back to the base is the end of a queue.
    limit = threshold_ns(levels["level"], levels["noise"])
    real = (levels["run"] > 0) | (levels["median"] < levels["base"] - limit)
    return (levels["run"] != 0) & (_quiet(levels) | rerouted) & real


def _quiet(levels: Rows[LEVEL]) -> Array:
    return levels["restless"] <= _RESTLESS * np.abs(levels["run"])


def sinking(levels: Rows[LEVEL]) -> Array:
    """Which series (n,) have been below their level for long: a queue had raised the level."""
    return levels["run"] <= -QUIET_BLOCKS


def settle(levels: Rows[LEVEL], where: Array) -> Array:
    """Return the series (n,) with the last block as the new level `where` (n,) bool."""
    after = levels.copy()
    rises = where & (levels["run"] > 0)
    base = np.where(rises, levels["low"], np.minimum(levels["base"], levels["low"]))
    _put(after, where, base=base, level=levels["median"], noise=levels["spread"], run=0)
    return after


def new_shifts(levels: Rows[LEVEL], sure: Array, maybe: Array) -> tuple[Array, Array]:
    """Where along each path levels shift, from series (flows, hops), `sure` and `maybe` bool.

    Returns the shifts to report (bool) and all amounts (ns, f8), both (flows, hops). A hop that
    shifts by as much as an earlier hop is only behind it. So if any hop is certain, hops that may
    soon shift count too.
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
