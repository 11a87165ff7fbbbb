"""One change of a route is one event, also if some of its hops or its length are found late."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from bpf.arrays import Array
from probes.path.analysis.watch import Analysis
from probes.path.events.folding import EventFolder
from probes.path.records import HOP, ProbeOutcome
from tests.probes.path.analysis.simulated import (
    SECOND,
    START,
    TIMEOUT,
    Flow,
    Hop,
    Times,
    after,
    idle,
    path,
    plus,
    polls,
    probes,
    story,
    unanswered,
)

DESTINATION_ROUTER = 6 * 256 + 2
"""Number of the destination's own address."""


def slower(times: Times, begin: float, end: float, more_ms: float) -> Times:
    """Round-trip times that are longer between two moments."""

    def step(seconds: Array) -> Array:
        return np.where((seconds >= begin) & (seconds < end), more_ms * 1e6, 0.0)

    return plus(times, step, 0.02)


def meanwhile(number: int, other: int, begin: float, end: float) -> Callable[..., Array]:
    """Another router between two moments."""
    return lambda seconds, rng: np.where((seconds >= begin) & (seconds < end), other, number)


def there_and_back() -> list[Hop]:
    """Routers 3 to 5 are replaced by slower ones between seconds 10 and 16."""
    return [
        replace(
            hop,
            routers=meanwhile(number, 20 + number, 10.1, 16.1) if 3 <= number <= 5 else 0,
            times=slower(hop.times, 10.1, 16.1, 6) if number >= 3 else hop.times,
        )
        for number, hop in enumerate(path(), 1)
    ]


def texts(*flows: Flow) -> list[str]:
    return [text for _, text in story(*flows)]


def test_a_hop_that_answers_late_belongs_to_the_change() -> None:
    hops = there_and_back()
    hops[4] = replace(hops[4], times=unanswered(hops[4].times, 10, 12))
    assert texts(Flow(hops, end=24)) == [
        "10.94.6.2: route changed at hops 3-4 for tcp 40000>5201: "
        "by 10.94.0.23, was 10.94.0.3; +6.02 ms",
        "10.94.6.2: route changed at hops 3-5 for tcp 40000>5201: "
        "by 10.94.0.3, was 10.94.0.23; -6.02 ms",
    ]


def test_a_hop_that_changes_after_the_report_is_another_change() -> None:
    hops = path()
    hops[2] = replace(hops[2], routers=after(10.1, 3, 23))
    hops[3] = replace(hops[3], routers=after(10.1, 4, 24))
    hops[4] = replace(hops[4], routers=after(13.1, 5, 25))
    found = texts(Flow(hops, end=24))
    assert ["hops 3-4" in text for text in found] == [True, False]
    assert "10.94.0.25, was 10.94.0.5" in found[1]


def test_a_flow_of_unsteady_times_does_not_dilute_the_change() -> None:
    def more(times: Times, unsteady_ms: float) -> Times:
        def longer(seconds: Array, rng: np.random.Generator) -> Array:
            unsteady = rng.uniform(0, unsteady_ms * 1e6, len(seconds))
            return times(seconds, rng) + 13e6 + unsteady

        return longer

    flows = [
        Flow(
            [replace(hop, times=more(hop.times, ms)) for hop in there_and_back()],
            port,
            begin=at,
            end=24,
        )
        for port, ms, at in ((40000, 0, 3), (40001, 6, 0))
    ]
    found = [text for text in texts(*flows) if "route changed" in text]
    assert [text.rsplit("; ")[1] for text in found] == ["+6.02 ms", "-6.02 ms"]


def test_a_destination_that_answers_from_far_behind_gives_no_length() -> None:
    """One more router at hop 3; hop 7 answers half a second after hop 9."""
    ways = {3: (3, 30), 4: (4, 3), 5: (5, 4), 6: (DESTINATION_ROUTER, 5)}
    hops = [
        replace(hop, routers=after(10.1, *ways[number])) if number in ways else hop
        for number, hop in enumerate(path(), 1)
    ]
    behind = (Hop(unanswered(idle(), 0, first), DESTINATION_ROUTER) for first in (11.1, 20, 10.6))
    hops.extend(behind)
    lengths = [text for text in texts(Flow(hops, end=20)) if "longer" in text or "shorter" in text]
    assert len(lengths) == 1
    assert "one hop longer" in lengths[0]


def test_a_length_that_is_found_before_the_routers_belongs_to_their_change() -> None:
    """The report of the earlier change does not take it in."""
    back = 14.1
    ways = {3: (3, 30), 4: (4, 3), 5: (5, 4), 6: (6, 5)}
    hops = [
        replace(hop, routers=meanwhile(*ways[number], 10.1, back)) if number in ways else hop
        for number, hop in enumerate(path(), 1)
    ]
    # On the way back, the routers answer after the end of the path is known.
    hops[2:] = [replace(hop, times=unanswered(hop.times, back, back + 0.5)) for hop in hops[2:]]
    seventh = unanswered(unanswered(idle(), 0, 10.1), back)
    rows = probes(Flow([*hops, Hop(seventh, 6)], end=22))
    rows = rows[rows["outcome"] == ProbeOutcome.ANSWERED]
    analysis, folder = Analysis(timeout_ns=TIMEOUT), EventFolder()
    told = []
    for mine, now_ns in polls(rows, 22):
        shorter = np.empty(0, HOP)
        if now_ns == START + round((back + 0.4) * SECOND):
            shorter = rows[:1].copy()
            shorter["hop"], shorter["sent_ns"] = 6, START + round(back * SECOND)
        told += [event.text for event in folder.add(analysis.add(mine, now_ns, shorter), now_ns)]
    assert told == [
        "10.94.6.2: route changed at hops 3-6 for tcp 40000>5201: by 10.94.0.30, was 10.94.0.3",
        "10.94.6.2: route changed at hops 3-6 for tcp 40000>5201: "
        "by 10.94.0.3, was 10.94.0.30; one hop shorter",
    ]
