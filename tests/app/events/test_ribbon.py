"""Events on a line of time."""

from __future__ import annotations

from app.events.folding import ribbon
from probes.snapshot import Event

SECOND = 10**9


def at(*seconds: float, severity: str = "info") -> tuple[Event, ...]:
    return tuple(Event(round(s * SECOND), severity, "x", "") for s in sorted(seconds, reverse=True))


def test_cells_are_round_and_hold_every_event() -> None:
    drawn = ribbon(at(1000, 1001.5, 1099), 1100 * SECOND, 40)
    assert drawn.seconds == 3
    assert drawn.begin_ns % (3 * SECOND) == 0
    assert sum(drawn.counts) == 3
    assert drawn.counts[-1] == 1


def test_a_cell_has_its_worst_severity_and_is_found_by_time() -> None:
    events = (*at(10.5, severity="warning"), *at(10.2), *at(3, severity="error"))
    drawn = ribbon(events, 12 * SECOND, 20)
    assert drawn.seconds == 1
    assert [n for n, one in enumerate(drawn.severities) if one >= 0] == [10, 17]
    assert [drawn.severities[n] for n in (10, 17)] == [2, 1]
    assert drawn.cells([10 * SECOND, 3 * SECOND, -50 * SECOND]) == {17, 10}


def test_nothing_is_an_empty_line_and_late_clocks_do_not_matter() -> None:
    assert sum(ribbon((), 0, 5).counts) == 0
    assert ribbon(at(100), 90 * SECOND, 5).counts[-1] == 1
