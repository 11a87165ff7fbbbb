"""When the finder is asked, and when packets pass a hop that probes do not pass."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from probes.path.active.finder import FinderAnswer
from probes.path.planning.extent import Frontier, HiddenHops
from probes.path.probing_plan import hops_of
from probes.path.slots import Destination

SECOND = 1_000_000_000
TO = Destination(bytes([10, 0, 0, 9]).ljust(16, b"\0"), 4)
NOTE = "NAT or firewall behind hop 2: packets pass, probes do not"


class Finder:
    """Notes the hops that it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, ...]] = []

    def ask(self, destination: Destination, hops: Iterable[int]) -> None:
        assert destination == TO
        self.asked.append(tuple(hops))

    def answers(self) -> list[FinderAnswer]:
        return []


class Run:
    """Polls four times a second; the destination is heard, and nothing answers behind hop 2."""

    def __init__(self, back: int = 5) -> None:
        self.finder = Finder()
        self.hidden = HiddenHops(TO, self.finder)
        self.frontier = Frontier(2, 0, back, 0, active=True)
        self.now = 100 * SECOND
        self.heard = True

    def run(self, seconds: float, **frontier: int | bool) -> None:
        self.frontier = replace(self.frontier, **frontier)  # type: ignore[arg-type]
        for _ in range(round(seconds * 4)):
            self.now += SECOND // 4
            if self.heard:
                self.frontier = replace(self.frontier, heard_ns=self.now)
            self.hidden.decide(self.frontier, self.now)


def test_a_path_that_is_as_long_as_the_way_back_is_not_asked() -> None:
    run = Run(back=2)
    run.run(60)
    assert run.finder.asked == []
    assert run.hidden.note == ""


def test_a_destination_that_answers_probes_is_not_asked() -> None:
    run = Run()
    run.run(60, end=3)
    assert run.finder.asked == []
    assert run.hidden.note == ""


def test_an_answer_of_the_destination_proves_no_hidden_router() -> None:
    """It answers one probe, of another flow, at hop 6, and none of those that reach it before."""
    run = Run()
    run.run(60, end=6)
    assert run.finder.asked[0] == (3, 4, 5, 6)
    assert run.hidden.note == ""
    for hop in (6, 5, 4, 3):
        run.hidden.answered(hop, True)
    run.run(60)
    assert run.hidden.note == ""


@pytest.mark.parametrize("back", [0, 5, 9])
def test_few_hops_are_asked_seldom(back: int) -> None:
    run = Run(back)
    run.run(1)
    assert run.finder.asked == []
    run.run(60)
    last = max(7, back + 1)
    assert run.finder.asked == [tuple(range(3, last + 1))] * 4
    assert run.hidden.asked == 4 * (last - 2)


def test_nothing_is_asked_while_the_application_is_silent() -> None:
    run = Run()
    run.run(60, active=False)
    assert run.finder.asked == []


def test_routers_are_nearer_than_the_destination() -> None:
    run = Run()
    run.run(2)
    for hop in (8, 7, 6):
        run.hidden.answered(hop, True)
    run.hidden.answered(4, False)
    assert run.hidden.end == 6
    assert hops_of(run.hidden.measured) == (4, 6)
    # They answer probes of another flow.
    run.run(1, length=5)
    assert run.hidden.measured == 0
    assert run.hidden.end == 6
    assert run.hidden.note == ""
    run.run(60)
    assert len(run.finder.asked) == 1


@pytest.mark.parametrize("length", [0, 1])
def test_a_path_behind_a_translation_is_known_at_once_and_measured_every_second(
    length: int,
) -> None:
    """Its first router may be silent."""
    run = Run(back=0)
    run.heard = False
    run.run(1.5, length=length)
    first = tuple(range(length + 1, length + 6))
    assert run.finder.asked == [first]
    for hop in first[1:]:
        run.hidden.answered(hop, False)
    run.run(0.25)
    assert run.finder.asked == [first, tuple(range(first[-1] + 1, first[-1] + 6))]
    run.hidden.answered(8, True)
    for hop in (7, 6):
        run.hidden.answered(hop, False)
    measured = tuple(range(first[1], 9))
    assert hops_of(run.hidden.measured) == measured
    run.run(6)
    # Silent ones are asked twice more: the first request may have been lost.
    assert run.finder.asked[2:] == [(first[0], *measured)] * 2 + [measured] * 4
    run.hidden.answered(6, True)  # The path has become shorter,
    run.run(1)
    assert run.finder.asked[-1] == measured[:-2]
    run.hidden.answered(6, False)  # and longer again.
    run.run(0.25)
    assert run.finder.asked[-1] == (7, 8, 9, 10, 11)


def test_a_shorter_path_is_another_one() -> None:
    run = Run()
    run.run(2)
    run.hidden.answered(6, True)
    run.run(1, length=1)
    assert (run.hidden.routers, run.hidden.end) == (0, 0)


def test_hidden_routers_are_noted_while_packets_pass() -> None:
    run = Run()
    run.run(1.5)
    run.hidden.answered(6, True)
    # The finder is asked twice more: the first answers may have been lost.
    run.run(2)
    assert run.finder.asked == [(3, 4, 5, 6, 7), (3, 4, 5, 6), (3, 4, 5, 6)]
    assert run.hidden.note == ""
    run.run(2)
    assert run.hidden.note == NOTE
    run.run(1, length=5)
    assert run.hidden.note == ""


def test_a_lost_answer_hides_no_router() -> None:
    run = Run()
    run.run(3)
    run.hidden.answered(6, True)
    run.run(1)
    run.hidden.answered(3, True)
    run.run(9)
    assert run.hidden.note == ""


def test_routers_that_answer_the_finder_are_not_hidden() -> None:
    """They are on the finder's way, and perhaps on no other one."""
    run = Run()
    run.run(2)
    run.hidden.answered(6, True)
    run.hidden.answered(4, False)
    run.hidden.answered(5, False)
    run.run(60)
    assert run.hidden.note == ""


@pytest.mark.parametrize(
    ("back", "end", "noted"), [(9, 0, False), (9, 3, False), (9, 4, False), (9, 5, True)]
)
def test_a_longer_way_back_proves_no_hidden_router(back: int, end: int, noted: bool) -> None:
    run = Run(back)
    run.run(2)
    if end:
        run.hidden.answered(end, True)
    run.run(20)
    assert run.hidden.note == (NOTE if noted else "")


@pytest.mark.parametrize("answer", [False, True], ids=["nothing", "the finder's answer"])
def test_a_black_hole_is_none(answer: bool) -> None:
    """The destination sends nothing, or only answers to the finder."""
    run = Run()
    run.heard = False
    for _ in range(240):
        asked = len(run.finder.asked)
        run.run(0.25)
        if answer and len(run.finder.asked) > asked:
            run.hidden.answered(6, True)
            run.run(0.25, heard_ns=run.now)
        assert run.hidden.note == ""
    assert len(run.finder.asked) > 1
