"""Frames become lines: only what changed since the lines before."""

from __future__ import annotations

from app.console.live.state import LiveState
from app.console.plain.session import FrameChanges
from app.console.screens.overview.trouble import Trouble
from probes.snapshot import Event
from widgets.tones import Tone

AT_NS = 1_700_000_000 * 10**9


def told(state: LiveState, changes: FrameChanges, *troubles: Trouble) -> list[str]:
    return changes.lines(state.frame(), troubles, 0.0)


def test_a_trouble_is_told_when_it_begins_and_when_it_is_over() -> None:
    state, changes = LiveState(), FrameChanges()
    clauses = "began 0 s ago", "on 3 flows"
    first = Trouble(1, 2.0, "12 % lost", Tone.WARN, "paths", "a", clauses, lasting=clauses[0])
    later = Trouble(1, 3.0, "14 % lost", Tone.WARN, "paths", "a")
    assert told(state, changes, first) == ["began: 12 % lost, on 3 flows"]
    assert told(state, changes, later) == []
    assert changes.lines(state.frame(), (), 4.0) == ["over after 4 s: 12 % lost"]
    assert told(state, changes) == []


def test_many_troubles_are_a_few_lines() -> None:
    many = [Trouble(1, 0.0, f"trouble {n}", Tone.WARN, "paths", n) for n in range(9)]
    lines = told(LiveState(), FrameChanges(), *many)
    assert len(lines) == 6
    assert lines[-1] == "and 4 more troubles: type now"


def test_events_of_one_cause_are_told_again_when_they_have_doubled() -> None:
    state, changes = LiveState(), FrameChanges()
    counts = []
    for number in range(1, 9):
        state.take(Event(AT_NS, "warning", "flow", f"{number} packets cut"))
        counts.append(len(told(state, changes)))
    assert counts == [1, 1, 0, 1, 0, 0, 0, 1]


def test_an_event_that_lasts_is_over_and_one_of_a_trouble_is_not_told() -> None:
    state, changes = LiveState(), FrameChanges()
    state.take(Event(AT_NS, "warning", "api", "no room", "room", "begin"))
    assert told(state, changes) == ["22:13:20 warning: api: no room"]
    state.take(Event(AT_NS, "info", "api", "room again", "room", "end"))
    assert told(state, changes) == ["over: 22:13:20 warning: api: room again"]
    state.take(Event(AT_NS, "warning", "path", "loss", "hop 3", "begin"))
    loss = Trouble(1, 2.0, "loss", Tone.WARN, "paths", "a", events=("path", "hop 3"))
    assert told(state, changes, loss) == ["began: loss"]
