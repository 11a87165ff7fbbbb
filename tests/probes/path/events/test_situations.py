"""Situations with a known truth, and neighbours that must stay quiet: every event of each."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from bpf.arrays import Array
from probes.path.analysis.watch import Analysis
from probes.path.events.folding import EventFolder
from probes.path.records import PathRowKind
from tests.probes.path.analysis.simulated import (
    Flow,
    Hop,
    Routers,
    Times,
    answering,
    idle,
    in_turn,
    of,
    path,
    polls,
    probes,
    raw,
    story,
    unanswered,
)

FLOW = "tcp 40000>5201"


def between(begin: float, end: float, other: int, usual: int) -> Routers:
    """Another router between two moments."""
    return lambda seconds, rng: np.where((seconds >= begin) & (seconds < end), other, usual)


def turns(pause: float, usual: int, other: int, begin: float = 10.1, end: float = 1e9) -> Routers:
    """From `begin` on, two routers each for `pause` seconds; the last one stays at `end`."""

    def routers(seconds: Array, rng: np.random.Generator) -> Array:
        turn = (np.minimum(seconds, end) - begin) // pause
        return np.where((seconds < begin) | (turn % 2 > 0), usual, other)

    return routers


def with_routers(changed: dict[int, Routers], count: int = 6) -> list[Hop]:
    """A path with other routers at some hops."""
    return [
        replace(hop, routers=changed.get(number, 0)) for number, hop in enumerate(path(count), 1)
    ]


def looping(begin: float = 10.1, end: float = 16.1, count: int = 2) -> list[Hop]:
    """From hop 3 on, packets go round `count` routers for some time: up to hop 20, all answer."""
    hops = []
    for number in range(1, 21):
        other = 3 + (number - 3) % count
        hop = Hop(idle(), between(begin, end, other, number) if number > 3 else 0)
        if number > 6:
            hop.times = unanswered(unanswered(hop.times, 0, begin), end)
        hops.append(hop)
    return hops


def half_silent_loop() -> list[Hop]:
    """A loop of two routers: one never answers, and the other one a third of the probes to it."""
    hops = looping()
    for number, hop in enumerate(hops[3:], 4):
        usual, seldom = hop.times, answering(hop.times, 0.3)
        if number % 2 == 0:
            hop.times = unanswered(hop.times, 0 if number == 4 else 10.1, 16.1)
        else:
            hop.times = partial(_in_loop, usual, seldom)
    return hops


def _in_loop(usual: Times, looping: Times, seconds: Array, rng: np.random.Generator) -> Array:
    now = (seconds >= 10.1) & (seconds < 16.1)
    return np.where(now, looping(seconds, rng), usual(seconds, rng))


def longer_branch(begin: float = 0.0) -> list[Hop]:
    """Each packet goes by one of two branches, one of them two routers longer, from `begin` on."""
    hops = path(8)
    for number, two in {3: (3, 30), 4: (4, 31), 5: (5, 3), 6: (6, 4), 7: (7, 5), 8: (8, 6)}.items():
        hops[number - 1].routers = in_turn(*two)
    return hops


def forwarding_ended() -> list[Hop]:
    """Router 3 sends on packets whose TTL has ended: router 4 answers at hops 3 and 4."""
    return with_routers({3: lambda seconds, rng: np.full(len(seconds), 4)})


def translated() -> list[Hop]:
    """An address translation puts its own address into the answers of all routers behind it."""
    return with_routers(
        {number: lambda seconds, rng: np.full(len(seconds), 3) for number in (4, 5, 6)}
    )


def refused() -> list[Hop]:
    """The last router answers for every later hop, but only for some of its probes."""

    def some(hop: int) -> Hop:
        def times(seconds: Array, rng: np.random.Generator) -> Array:
            often = np.arange(len(seconds)) % 4 == (0 if hop % 2 else 5)
            return np.where(often, 30e3, np.nan)

        return Hop(times, 6)

    return [*path(6), *(some(hop) for hop in range(7, 12))]


LOOP = "routing loop between 10.94.0.3 (hop 3) and 10.94.0.4 (hop 4)"
FLAP = "10.94.6.2: hop 3 {} between 10.94.0.3 and 10.94.0.33, every {}"

LOUD: dict[str, tuple[list[Hop], list[str]]] = {
    "loop": (
        looping(),
        [f"{LOOP}: packets of {FLOW} do not arrive", f"{LOOP} is over after"],
    ),
    "loop of three": (
        looping(count=3),
        ["routing loop of 3 routers between 10.94.0.3 (hop 3) and 10.94.0.5 (hop 5)", "is over"],
    ),
    "loop with a router that never answers": (
        half_silent_loop(),
        [
            "routing loop at 10.94.0.3 (hop 3), which answers again 2 hops later: packets of "
            f"{FLOW} do not arrive",
            "which answers again 2 hops later is over after",
        ],
    ),
    "flap": (
        with_routers({3: turns(2, 3, 33, end=33)}),
        [
            "another router, or another address",
            FLAP.format("flaps", "2.0 s") + f", for {FLOW}: 3 changes in 4.0 s",
            FLAP.format("flapped", "2.0 s")
            + f", for {FLOW}: 12 changes in 22.0 s, by 10.94.0.3 at last; the path has 6 hops now",
        ],
    ),
    "flap of two hops": (
        with_routers({3: turns(4, 3, 33, end=27), 4: turns(4, 4, 34, end=27)}),
        [
            "route changed at hops 3-4",
            "route changed at hops 3-4",
            FLAP.format("flaps", "4.0 s"),
            FLAP.format("flapped", "4.0 s") + f", for {FLOW}: 5 changes in 16.0 s, by 10.94.0.33",
        ],
    ),
    "there and back": (
        with_routers({3: between(10.1, 16.1, 33, 3), 4: between(10.1, 16.1, 34, 4)}),
        ["by 10.94.0.33, was 10.94.0.3", "by 10.94.0.3, was 10.94.0.33"],
    ),
}

QUIET: dict[str, list[Hop]] = {
    "balanced by packets": with_routers({3: in_turn(3, 33)}),
    "balanced by packets, one branch longer": longer_branch(),
    "TTL that ended is forwarded": forwarding_ended(),
    "all routers behind a translation": translated(),
    "the last router refuses some": refused(),
}


def told(hops: list[Hop], end: float) -> list[str]:
    return [text for _, text in story(Flow(hops, end=end, rate=20), seconds=end)]


@pytest.mark.parametrize("name", LOUD)
def test_each_event_of_a_situation_is_told_once(name: str) -> None:
    hops, expected = LOUD[name]
    texts = told(hops, 20 if "loop" in name else 42)
    if "loop" in name:
        # The change of the route before and after, without a length.
        routes = [text for text in texts if "route changed" in text]
        texts = [text for text in texts if text not in routes]
        assert len(routes) == 2
        assert not any("longer" in text or "shorter" in text for text in routes)
    assert len(texts) == len(expected), texts
    for text, words in zip(texts, expected, strict=True):
        assert words in text


@pytest.mark.parametrize("name", QUIET)
def test_neighbours_of_a_situation_are_quiet(name: str) -> None:
    texts = told(QUIET[name], end=15)
    assert not any("loop" in text or "flap" in text for text in texts), texts


def test_a_loop_is_told_within_a_second() -> None:
    ((at, _), *_) = (
        each for each in story(Flow(looping(), end=14, rate=20), seconds=14) if LOOP in each[1]
    )
    assert at <= 10.1 + 1


def test_the_end_of_tracing_tells_the_changes_of_a_flap() -> None:
    flow = Flow(with_routers({3: turns(2, 3, 33)}), end=34, rate=20)
    analysis, folder = Analysis(), EventFolder()
    texts: list[str] = []
    for rows, now_ns in polls(probes(flow), 33):
        texts += [event.text for event in folder.add(analysis.add(rows, now_ns), now_ns)]
    rows = analysis.forget(raw(flow.destination), now_ns)
    assert of(rows, PathRowKind.FLAP_OVER)["amount"].tolist() == [12]
    (last,) = folder.add(rows, now_ns, final=True)
    assert "12 changes in 22.0 s" in last.text
    assert sum("flaps between" in text for text in texts) == 1
