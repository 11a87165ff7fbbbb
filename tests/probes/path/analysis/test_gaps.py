"""Pauses of an application: told if they are certain, also among many flows."""

from __future__ import annotations

import numpy as np
import pytest

from bpf.arrays import Array
from probes.path.analysis.watch import Analysis
from probes.path.records import PATH, PathRowKind, ProbeOutcome
from tests.probes.path.analysis.simulated import (
    SECOND,
    START,
    Flow,
    at,
    of,
    path,
    polls,
    probes,
)


def gaps(rows: Array) -> Array:
    analysis = Analysis()
    found = [analysis.add(*poll) for poll in polls(rows)]
    return of(np.concatenate(found, dtype=PATH), PathRowKind.GAP)


def by_chance(flows: int, *, seconds: float = 60, rate: float = 40, seed: int = 3) -> Array:
    """Probes of 5 hops, each caused by the packet of one of many flows that came by."""
    rows = probes(Flow(path(5), end=seconds, rate=rate))
    rows["source_port"] = 40000 + np.random.default_rng(seed).integers(0, flows, len(rows))
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("flows", [10, 37, 100])
def test_a_flow_whose_turn_does_not_come_has_no_pause(flows: int) -> None:
    assert len(gaps(by_chance(flows))) == 0


def in_time(drift: float, *, flows: int = 37, seconds: int = 40) -> Array:
    """Probes of flows that send 50 times a second each, one shortly after the other. At 200 probes
    a second the meter meets the same flows for long, then others."""
    rng = np.random.default_rng(1)
    every = 0.02 * (1 + drift * rng.uniform(-1, 1, flows))
    packets = [(number + each / flows / 50 / gap) * gap
               for each, gap in enumerate(every) for number in range(seconds * 50)]  # fmt: skip
    owners = np.repeat(np.arange(flows), seconds * 50)
    due, turns = 0.0, []
    for packet in np.argsort(packets).tolist():
        if packets[packet] >= due:
            due = max(due + 0.005, packets[packet])
            turns.append(packet)
    rows = probes(Flow(path(5), end=len(turns) / 500 + 1))
    rows = rows[np.argsort(rows["sent_ns"])][: len(turns)]
    moved = START + (np.array(packets)[turns] * SECOND).astype("i8") - rows["sent_ns"]
    rows["sent_ns"] += moved
    rows["received_ns"] += moved
    rows["source_port"] = 40000 + owners[turns]
    return rows


@pytest.mark.parametrize("drift", [1e-4, 1e-3, 1e-2])
def test_flows_that_send_in_time_have_no_pauses(drift: float) -> None:
    rows = in_time(drift)
    longest = max(
        np.diff(np.sort(rows["sent_ns"][rows["source_port"] == port])).max(initial=0)
        for port in np.unique(rows["source_port"])
    )
    assert longest > 2 * SECOND
    assert len(gaps(rows)) == 0


@pytest.mark.parametrize("outcome", [ProbeOutcome.UNANSWERED, ProbeOutcome.BEYOND_PATH])
def test_an_unanswered_probe_before_a_pause_delays_it_until_the_timeout(
    outcome: ProbeOutcome,
) -> None:
    rows = probes(Flow(path(5), end=20, pause=(10, 12)))
    last = np.flatnonzero(rows["sent_ns"] < START + 10 * SECOND)
    last = last[rows["sent_ns"][last].argmax()]
    rows["outcome"][last], rows["received_ns"][last] = outcome, 0
    (gap,) = gaps(rows)
    assert gap["amount_ns"] == pytest.approx(2 * SECOND, abs=0.02 * SECOND)
    assert 13 <= at(gap) <= 16.5


def test_numbers_may_start_anywhere_and_wrap_around() -> None:
    rows = probes(Flow(path(5), end=20, pause=(10, 12)))
    middle = int(rows["sequence"][rows["sent_ns"] < START + 10 * SECOND].max())
    rows["sequence"] += np.uint32((1 << 32) - middle)
    (gap,) = gaps(rows)
    assert at(gap) <= 12.5
