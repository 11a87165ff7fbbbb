"""Folded events: repeats, begins and ends, values, and their cost."""

from __future__ import annotations

import time

import pytest

from app.events.folding import EventGroup, cause_of, fold
from probes.snapshot import Event

SECOND = 1_000_000_000


def told(*events: Event) -> dict[str, EventGroup]:
    """Fold events that are given oldest first, one second apart; groups by their causes."""
    timed = [
        Event(n * SECOND, e.severity, e.source, e.text, e.subject, e.phase, e.value, e.unit)
        for n, e in enumerate(events, 1)
    ]
    return {group.key[1]: group for group in fold(tuple(reversed(timed)))}


def policy(phase: str, value: float | None = None, name: str = "burst") -> Event:
    severity = "warning" if phase == "begin" else "info"
    text = f"{name} {phase} {value}"
    return Event(0, severity, "monitor", text, f"policy {name}", phase, value, "kbit/s")


def test_repeats_that_differ_in_numbers_only_are_one_group() -> None:
    events = (Event(2, "info", "path", "1 rows"), Event(1, "info", "flow", "2 rows"))
    assert [group.source for group in fold(events)] == ["path", "flow"]
    group = fold(tuple(Event(n, "info", "flow", f"{n} rows in {n} s") for n in (9, 5, 2)))[0]
    assert (group.times, group.first_ns, group.last_ns) == (3, 2, 9)
    assert (group.newest.text, group.is_open, group.low) == ("9 rows in 9 s", False, None)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("window 12 lacks 1,300 packets (1.5 %)", "window # lacks # packets (# %)"),
        ("10.94.6.2: 3 answers", "10.94.6.2: # answers"),
        ("fd94::6:2 port 53", "fd94::6:2 port #"),
        ("eth0 and udp_packets 93 %", "eth0 and udp_packets # %"),
        ("CPU 7-8, tcp 40000>9", "CPU 7-8, tcp #>#"),
        ("at 08:10:51, 10.0.0.0/8", "at 08:10:51, 10.0.0.0/8"),
    ],
)
def test_numbers_are_no_cause_but_addresses_are(text: str, cause: str) -> None:
    assert cause_of(text) == cause


def test_a_begin_and_its_end_are_one_time_that_lasted() -> None:
    group = told(
        policy("begin", 1500.0), policy(""), policy("end"),
        policy("begin", 2200.0), policy("end"), policy(""), policy("begin", 1600.0),
    )["policy burst"]  # fmt: skip
    assert (group.times, group.is_open, group.range) == (3, True, "1500..2200 kbit/s")
    assert (group.begun_ns, group.longest_ns) == (7 * SECOND, 2 * SECOND)
    assert (group.low, group.high, group.unit) == (1500.0, 2200.0, "kbit/s")
    assert group.severity == "warning"
    assert len(group.events) == 7


def test_policies_are_apart_and_ends_without_begins_count() -> None:
    groups = told(policy("end"), policy("begin", 1.0, "scan"), policy("begin", 2.0), policy("end"))
    assert (groups["policy burst"].times, groups["policy burst"].is_open) == (2, False)
    assert groups["policy scan"].is_open
    # Two begins without an end between them count once.
    again = told(policy("begin", 1.0), policy("begin", 2.0), policy("end"))["policy burst"]
    assert (again.times, again.longest_ns) == (1, 2 * SECOND)


def test_another_unit_begins_another_range() -> None:
    events = policy("begin", 1500.0), Event(0, "info", "monitor", "", "policy burst", "", 3.0, "%")
    group = told(*events)["policy burst"]
    assert (group.low, group.high, group.unit) == (3.0, 3.0, "%")


def test_a_frames_events_are_folded_once_and_quickly() -> None:
    events = tuple(
        Event(n, "info", "path", f"10.94.6.{n % 9} hop 4: queue of {n} ms", f"s{n % 9}", "begin", n)
        for n in range(2000, 0, -1)
    )
    groups = fold(events)
    assert len(groups) == 9
    began = time.thread_time()
    assert fold(events) is groups
    assert time.thread_time() - began < 0.001
    assert fold(events[1:]) is not groups
