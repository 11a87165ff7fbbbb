"""S3.20: at which hop a queue builds up, since when, how much."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bpf.arrays import Array
from probes.path.analysis.round_trips.queues import amounts, certain

NAN = float("nan")
MS = 1_000_000.0


@pytest.mark.parametrize(
    ("excess", "queue"),
    [
        ([0, 0, 0, 160, 158, 161], {3: 158}),
        ([160, 158, 161, 159], {0: 158}),  # the host's own link
        ([0, 0, 0, 0, 0, 160], {5: 160}),
        ([0, 0, 40, 0, 0, 0], {}),  # slow to answer, that is all
        ([0, 0, 40, 160, 158, 161], {3: 158 - 40, 2: 40}),
        ([0, 0, 300, 160, 158, 161], {2: 158}),  # slow to answer, and a queue
        ([0, 30, 30, 90, 91, 90], {1: 30, 3: 60}),  # two queues
        ([0, 0, 0, 160, 190, 185], {3: 160}),  # it grows while they are measured one by one
        ([0, 0, 0, NAN, 160, 160], {4: 160}),  # the one before does not answer
        ([0, NAN, 0, 150, NAN, 150], {3: 150}),
        ([0, 0.9, 0.9, 0.9], {}),  # too little
        ([-3, -2, 0, 0], {}),
        ([NAN, NAN, NAN], {}),
    ],
)
def test_the_queue_is_where_the_delay_begins_to_stay(
    excess: list[float], queue: dict[int, float]
) -> None:
    found = amounts(np.array([excess]) * MS, np.full((1, len(excess)), MS))[0]
    assert {at: found[at] / MS for at in np.flatnonzero(found).tolist()} == queue


@given(
    excess=arrays("f8", (3, 9), elements=st.floats(-1e9, 1e9) | st.just(NAN)),
    limit=st.floats(1, 1e8),
)
def test_no_more_queue_is_told_than_there_is_delay(excess: Array, limit: float) -> None:
    found = amounts(excess, np.full(excess.shape, limit))
    assert not np.isnan(found).any()
    assert ((found == 0) | (found >= limit)).all()
    assert (found[np.isnan(excess)] == 0).all()
    for row, queue in zip(excess, found, strict=True):
        for hop in np.flatnonzero(queue).tolist():
            later = row[hop:][~np.isnan(row[hop:])]
            assert (later >= queue[: hop + 1].sum() - 1e-3).all()


def test_short_queues_and_queues_behind_others_take_more_blocks() -> None:
    amount, limit = np.array([[0.0, 3, 4, 90, 90]]) * MS, np.full((1, 5), MS)
    queued = np.zeros((1, 5), bool)
    assert certain(amount, limit, queued).tolist() == [[4, 4, 4, 4, 4]]
    amount[0, 1:3] = 0
    assert certain(amount, limit, queued).tolist() == [[4, 4, 4, 2, 4]]
    queued[0, 1] = True
    assert certain(amount, limit, queued).tolist() == [[4, 4, 4, 4, 4]]
