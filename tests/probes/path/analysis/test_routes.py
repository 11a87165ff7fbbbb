"""S3.20: another router, several in turn, silence."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpf.arrays import Array
from probes.path.analysis.routes import ROUTE, RouteVerdict, differing, follow, is_silent

A, B = 11, 12


def verdicts(*polls: list[int]) -> list[tuple[RouteVerdict, int]]:
    """The findings of each poll with these answers of one hop, and the router then."""
    routes: Array = np.zeros(1, ROUTE)
    found = []
    sent = 0
    for responders in polls:
        times = np.arange(sent, sent + len(responders)) + 1
        sent += len(responders)
        routes, verdict = follow(routes, np.array(responders, "u8"), times, np.array([0]))
        found.append((RouteVerdict(int(verdict[0])), int(routes["current"][0])))
    return found


def test_a_change_is_sure_by_two_answers() -> None:
    assert verdicts([A] * 9, [A, A, B, B])[-1] == (RouteVerdict.CHANGED, B)
    assert verdicts([A] * 9, [A, A, B])[-1] == (RouteVerdict.SAME, A)


@given(st.lists(st.integers(0, 30), max_size=12), st.integers(9, 60), st.integers(3, 60))
def test_a_change_is_told_once_however_polls_cut_it(
    cuts: list[int], before: int, after: int
) -> None:
    answers = [A] * before + [B] * after
    limits = sorted({min(cut * 3, len(answers)) for cut in cuts} | {0, len(answers)})
    polls = [answers[a:b] for a, b in pairwise(limits)]
    found = [verdict for verdict, _ in verdicts(*polls)]
    assert found.count(RouteVerdict.CHANGED) == 1
    assert RouteVerdict.MIXED not in found
    # In the poll with its second answer at the latest.
    at = next(number for number, end in enumerate(limits[1:]) if end >= before + 2)
    assert RouteVerdict.CHANGED in found[: at + 1]


@given(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 40))
def test_balancing_never_looks_like_many_route_changes(seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    polls = [rng.choice([A, B], size).tolist() for _ in range(30)]
    found = [verdict for verdict, _ in verdicts(*polls)]
    # By chance, single answers may come from one router several times.
    assert found.count(RouteVerdict.CHANGED) <= (6 if size == 1 else 3)
    assert found.count(RouteVerdict.MIXED) <= 1


def test_flows_have_different_routers_only_at_the_same_time() -> None:
    second = 10**9
    routers = np.array([A, A, B, B])
    held = np.array([0, 2, 1, 9]) * second
    last = np.array([8, 7, 6, 12]) * second
    assert differing(routers, held, last, A).tolist() == [False, False, True, False]


@pytest.mark.parametrize(
    ("unanswered", "answered", "lost", "silent"),
    [
        (11, 500, 0, True),
        (9, 500, 0, False),
        (11, 0, 0, True),
        (40, 50, 450, False),  # one in ten is answered
        (200, 50, 450, True),
        (10_000, 0, 500, False),  # never was anything else
    ],
)
def test_silence_is_what_would_be_improbable_otherwise(
    unanswered: int, answered: float, lost: float, silent: bool
) -> None:
    numbers: list[Array] = [np.array([each]) for each in (unanswered, answered, lost)]
    assert is_silent(*numbers).tolist() == [silent]
