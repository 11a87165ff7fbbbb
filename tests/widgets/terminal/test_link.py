"""Output on simulated links of different speed: portions and intervals."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from widgets.terminal.link import FIRST, UNLIMITED, LinkEstimator

STEP = 0.016
UPDATE = 1500
"""Bytes of an update of the screen."""


@dataclass
class Terminal:
    """A terminal at the end of a link; both begin at time 0."""

    rate: float
    """Bytes per second."""
    delay: float
    """Of a round trip, in seconds."""
    link: LinkEstimator = field(default_factory=LinkEstimator)
    now: float = 0.0
    answers: bool = True
    _free_at: float = 0.0
    _due: list[float] = field(default_factory=list)
    queued: float = 0.0
    """The longest that a byte had to wait for those before it, once the link is known."""

    def send(self, count: int, *, more: bool = False) -> None:
        if self._due == [] or self.now > 3:
            self.queued = max(self.queued, self._free_at - self.now)
        self._free_at = max(self.now, self._free_at) + count / self.rate
        self.link.sent("?", count, self.now, more=more)
        if self.answers:
            self._due.append(self._free_at + self.delay)

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += STEP
            while self._due and self._due[0] <= self.now:
                self._due.pop(0)
                self.link.answered("?", self.now)

    def begin(self) -> None:
        self.send(100)
        self.wait(0.15)

    def show(self, count: int) -> float:
        """Send so many bytes as the link allows it; seconds until the last one is drawn."""
        began = self.now
        self.link.expect_update()
        while count:
            room = min(count, self.link.room(self.now))
            if room:
                count -= room
                self.send(room, more=bool(count))
            self.wait(STEP)
        return self._free_at + self.delay - began

    def key(self, count: int = 80) -> float:
        """Seconds from a key to its answer on the screen."""
        began = self.now
        while not self.link.room(self.now):
            self.wait(STEP)
        self.send(count)
        return self._free_at + self.delay - began

    def run(self, seconds: float, usual: float = 0.25) -> int:
        """Update the screen as often as the link allows it; how often that was."""
        end, updates = self.now + seconds, 0
        while self.now < end:
            self.show(UPDATE)
            updates += 1
            while self.link.updating:
                self.wait(STEP)
            self.wait(max(usual, self.link.pause))
        return updates


def test_on_a_fast_link_nothing_is_put_off() -> None:
    terminal = Terminal(1e7, 0.001)
    terminal.begin()
    assert terminal.link.room(terminal.now) == UNLIMITED
    assert terminal.run(5.0) >= 15
    assert terminal.link.pause == 0


@pytest.mark.parametrize("delay", [0.3, 0.6, 1.2])
def test_a_link_that_is_far_but_wide_is_no_slow_one(delay: float) -> None:
    terminal = Terminal(1e6, delay)
    terminal.begin()
    terminal.run(5.0 + 10 * delay)
    assert terminal.link.pause == 0
    assert not terminal.link.slow
    assert terminal.key() < delay + 0.05
    assert terminal.link.room(terminal.now) > UPDATE


def test_a_slow_link_is_drawn_on_seldom_and_answers_keys() -> None:
    terminal = Terminal(960, 0.02)
    terminal.begin()
    terminal.run(10.0)
    assert 3 <= terminal.link.pause <= 5
    assert terminal.link.slow
    assert terminal.queued < 0.7
    # In the midst of an update, too.
    for _ in range(5):
        terminal.link.expect_update()
        terminal.send(terminal.link.room(terminal.now), more=True)
        assert terminal.key() < 1.0
        terminal.wait(5.0)


def test_a_link_that_gets_fast_again_is_drawn_on_as_usual() -> None:
    terminal = Terminal(960, 0.02)
    terminal.begin()
    terminal.run(10.0)
    terminal.rate = 1e7
    terminal.run(30.0)
    assert terminal.link.pause == 0
    assert not terminal.link.slow
    assert terminal.link.room(terminal.now) > UPDATE


def test_one_that_gets_slow_is_noticed() -> None:
    terminal = Terminal(1e7, 0.02)
    terminal.begin()
    terminal.run(3.0)
    terminal.rate = 960
    terminal.run(20.0)
    assert terminal.link.pause >= 3
    assert terminal.link.room(terminal.now) < 800


def test_a_key_does_not_make_a_slow_link_a_fast_one() -> None:
    terminal = Terminal(960, 0.02)
    terminal.begin()
    terminal.run(10.0)
    before = terminal.link.pause
    for _ in range(10):
        terminal.key(20)
        terminal.wait(0.5)
    assert terminal.link.pause == before


def test_before_anything_is_known_a_little_goes_out() -> None:
    terminal = Terminal(960, 0.02)
    terminal.send(100)
    assert 0 < terminal.link.room(0.05) <= FIRST


@pytest.mark.parametrize("delay", [0.02, 0.3])
def test_a_terminal_that_never_answers_is_written_to_as_it_takes_it(delay: float) -> None:
    terminal = Terminal(1e7, delay, answers=False)
    terminal.begin()
    terminal.wait(1.6)
    assert terminal.link.room(terminal.now) == UNLIMITED
    assert not terminal.link.pending


def test_an_answer_that_is_lost_is_not_waited_for_for_ever() -> None:
    terminal = Terminal(960, 0.02)
    terminal.begin()
    terminal.answers = False
    terminal.send(terminal.link.room(terminal.now))
    assert terminal.link.room(terminal.now) == 0
    terminal.wait(6.0)
    assert terminal.link.room(terminal.now) > 0


def test_an_answer_to_another_question_is_none() -> None:
    link = LinkEstimator()
    link.sent("a", 100, 0.0)
    link.answered("b", 0.1)
    assert link.pending
    link.sent("b", 100, 0.1)
    link.answered("b", 0.2)
    assert not link.pending, "what was before has come, too"
