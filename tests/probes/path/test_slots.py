"""Each probe has one row, whenever its slot is read, written, answered or reused (S3.10)."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from probes.path.records import HOP_COUNT, Array, ProbeOutcome
from probes.path.slots import SLOT, Destination, InFlight, SlotState, labels_of
from probes.path.targets import TARGET

V4 = Destination(bytes([192, 0, 2, 9]).ljust(16, b"\0"), 4)
V6 = Destination(bytes([0x20, 1, 0xD, 0xB8]).ljust(16, b"\7"), 6)
TIMEOUT = 1000
EXCEEDED, UNREACHABLE = 11, 3
STARTS = (0, 3, (1 << 16) - 5, (1 << 32) - 5, 1 << 40)
"""First sequence numbers, also some that exceed the fields of a packet or a row."""


class Kernel:
    """Writes of egress.c and ingress.c to the tables, step by step."""

    def __init__(self, size: int, start: int = 0) -> None:
        self.slots = np.zeros(size, SLOT)
        self.table = np.zeros(1, TARGET)
        self.table["sequence"] = start
        self.now = 10_000

    def count(self, hop: int) -> int:
        """Give a probe its number."""
        sequence = int(self.table["sequence"][0])
        self.table["sequence"] += 1
        self.table["sent"][0, hop] += 1
        return sequence

    def slot(self, sequence: int) -> Any:
        return self.slots[sequence % len(self.slots)]

    def begin(self, sequence: int) -> None:
        slot = self.slot(sequence)
        slot["state"] = SlotState.WRITING
        for name in ("hop", "sent_ns", "word"):
            slot[name] = 0xDD  # neither the old one's nor the new one's

    def write(
        self, sequence: int, hop: int, state: SlotState = SlotState.SENT, **fields: Any
    ) -> None:
        self.begin(sequence)
        slot = self.slot(sequence)
        slot["hop"], slot["sent_ns"], slot["protocol"] = hop, self.now, 17
        for name, value in fields.items():
            slot[name] = value
        slot["state"] = sequence << 8 | state

    def send(self, hop: int = 1, state: SlotState = SlotState.SENT, **fields: Any) -> int:
        sequence = self.count(hop)
        self.write(sequence, hop, state, **fields)
        return sequence

    def answer(self, sequence: int, kind: int = EXCEEDED, **fields: Any) -> bool:
        """Whether it was a probe's."""
        slot = self.slot(sequence)
        if slot["state"] != sequence << 8 | SlotState.SENT:
            return False
        slot["state"] = sequence << 8 | SlotState.ANSWERING
        slot["received_ns"], slot["icmp_type"] = self.now, kind
        for name, value in fields.items():
            slot[name] = value
        slot["state"] = sequence << 8 | SlotState.ANSWERED
        return True


class AnyOrder(RuleBasedStateMachine):
    """Writes, answers and reads in any order, on several CPUs, against a list of probes."""

    @initialize(size=st.sampled_from((4, 8, 32)), start=st.sampled_from(STARTS))
    def start(self, size: int, start: int) -> None:
        self.kernel = Kernel(size, start)
        for sequence in range(max(0, start - size), start):
            self.kernel.write(sequence, 7)  # of a destination before
        self.kernel.table["sent"][0, 7] = start % 1000
        self.flight = InFlight(V4, self.kernel.slots, self.kernel.table)
        self.hops: dict[int, int] = {}
        self.state: dict[int, SlotState] = {}
        """Of probes as their slot has them; those that were overwritten are in no slot."""
        self.sent_at: dict[int, int] = {}
        self.half: set[int] = set()
        """Counted, and not written to the end."""
        self.told: dict[int, ProbeOutcome] = {}
        self.seen: set[int] = set()
        """Numbers that were given when it was last read."""
        self.overrun: Counter[int] = Counter()

    @rule(
        hop=st.integers(1, 5),
        state=st.sampled_from((SlotState.SENT, SlotState.SENT, SlotState.DROPPED)),
    )
    def send(self, hop: int, state: SlotState) -> None:
        sequence = self.kernel.count(hop)
        self.hops[sequence] = hop
        if self._free(sequence):
            self._write(sequence, state)
        else:
            self.half.add(sequence)

    @rule(hop=st.integers(1, 5), begin=st.booleans())
    def start_to_send(self, hop: int, begin: bool) -> None:
        sequence = self.kernel.count(hop)
        self.hops[sequence] = hop
        if begin and self._free(sequence):
            self.kernel.begin(sequence)
            self._overwrite(sequence)
        self.half.add(sequence)

    @precondition(lambda self: self.half)
    @rule(choice=st.randoms(use_true_random=False))
    def finish_sending(self, choice: Any) -> None:
        sequence = choice.choice(sorted(self.half))
        self.half.remove(sequence)
        place = sequence % len(self.kernel.slots)
        if any(other % len(self.kernel.slots) == place for other in self.half | set(self.state)
               if other > sequence):  # fmt: skip
            return  # a probe a whole round later has its place: no CPU is so slow
        self._write(sequence, SlotState.SENT)

    @precondition(lambda self: SlotState.SENT in self.state.values())
    @rule(choice=st.randoms(use_true_random=False), whole=st.booleans())
    def answer(self, choice: Any, whole: bool) -> None:
        """Also late, after its row said lost."""
        sequence = choice.choice([s for s, at in self.state.items() if at is SlotState.SENT])
        if whole:
            assert self.kernel.answer(sequence)
            self.state[sequence] = SlotState.ANSWERED
        else:
            slot = self.kernel.slot(sequence)
            slot["state"] = sequence << 8 | SlotState.ANSWERING
            self.state[sequence] = SlotState.ANSWERING

    @precondition(lambda self: SlotState.ANSWERING in self.state.values())
    @rule()
    def finish_answering(self) -> None:
        sequence = next(s for s, at in self.state.items() if at is SlotState.ANSWERING)
        slot = self.kernel.slot(sequence)
        slot["icmp_type"] = EXCEEDED
        slot["state"] = sequence << 8 | SlotState.ANSWERED
        self.state[sequence] = SlotState.ANSWERED

    @rule(ns=st.sampled_from((1, TIMEOUT // 2, TIMEOUT + 1)))
    def wait(self, ns: int) -> None:
        self.kernel.now += ns

    @rule()
    def read(self) -> None:
        self._read(final=False)

    @invariant()
    def no_more_is_overrun_than_was_overwritten(self) -> None:
        assert not self.overrun - self._lost() if hasattr(self, "hops") else True

    def teardown(self) -> None:
        if not hasattr(self, "hops"):
            return
        for sequence in sorted(self.half):
            if self._free(sequence) and sequence % 3:  # and some never come to be written
                self._write(sequence, SlotState.SENT)
                self.half.discard(sequence)
        self._read(final=True)
        assert self.flight.pending == 0
        assert self.overrun == self._lost()
        by_hop = Counter(self.hops[sequence] for sequence in self.told) + self.overrun
        assert by_hop == Counter(self.hops.values())

    def _free(self, sequence: int) -> bool:
        """Whether no other CPU is half way through its slot, and none a round later was there."""
        size = len(self.kernel.slots)
        others = self.half - {sequence} | {s for s in self.state if s > sequence}
        return not any(other % size == sequence % size for other in others)

    def _write(self, sequence: int, state: SlotState) -> None:
        self.kernel.write(sequence, self.hops[sequence], state)
        self._overwrite(sequence)
        self.state[sequence], self.sent_at[sequence] = state, self.kernel.now

    def _overwrite(self, sequence: int) -> None:
        size = len(self.kernel.slots)
        for other in [s for s in self.state if s % size == sequence % size and s < sequence]:
            del self.state[other]

    def _read(self, final: bool) -> None:
        head, size = int(self.kernel.table["sequence"][0]), len(self.kernel.slots)
        for sequence in set(self.hops) - self.seen:
            if sequence < head - size:
                self.state.pop(sequence, None)  # given up, even if the next one is not there yet
        self.seen = set(self.hops)
        due = {}
        for sequence in set(self.state) - set(self.told):
            state = self.state[sequence]
            if state is SlotState.ANSWERED:
                due[sequence] = ProbeOutcome.ANSWERED
            elif state is SlotState.DROPPED:
                due[sequence] = ProbeOutcome.DROPPED
            elif state is SlotState.SENT and self.sent_at[sequence] < self.kernel.now - TIMEOUT:
                due[sequence] = ProbeOutcome.UNANSWERED
            elif final:
                due[sequence] = ProbeOutcome.IN_FLIGHT
        self._take(self.flight.collect(self.kernel.now, TIMEOUT, final=final), due)

    def _lost(self) -> Counter[int]:
        """By hop, probes that are in no slot and were not told."""
        gone = set(self.hops) - set(self.told) - set(self.state)
        return Counter(self.hops[sequence] for sequence in gone)

    def _take(self, rows: Array, due: dict[int, ProbeOutcome]) -> None:
        overrun = rows["outcome"] == ProbeOutcome.OVERRUN
        self.overrun += Counter(rows["hop"][overrun].tolist())
        low = {sequence & 0xFFFFFFFF: sequence for sequence in self.hops}
        told = {}
        for row in rows[~overrun]:
            sequence = low[int(row["sequence"])]
            assert sequence not in told
            told[sequence] = ProbeOutcome(row["outcome"])
            assert row["hop"] == self.hops[sequence]
            assert row["sent_ns"] == self.sent_at[sequence]
        assert told == due
        assert not set(told) & set(self.told)
        self.told |= told


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


def flight(size: int = 8, start: int = 0, to: Destination = V4) -> tuple[Kernel, InFlight]:
    kernel = Kernel(size, start)
    return kernel, InFlight(to, kernel.slots, kernel.table)


def outcomes(rows: Array) -> list[tuple[int, ProbeOutcome]]:
    return [(int(row["sequence"]), ProbeOutcome(row["outcome"])) for row in rows]


def test_an_answer_that_comes_too_late_changes_nothing() -> None:
    kernel, probes = flight()
    sequence = kernel.send()
    kernel.now += TIMEOUT
    assert not len(probes.collect(kernel.now, TIMEOUT))
    assert probes.pending == 1
    rows = probes.collect(kernel.now + 1, TIMEOUT)
    assert outcomes(rows) == [(sequence, ProbeOutcome.UNANSWERED)]
    assert rows["received_ns"].tolist() == [0]
    assert kernel.answer(sequence)
    assert not len(probes.collect(kernel.now + 2, TIMEOUT, final=True))


def test_probes_of_before_are_not_told() -> None:
    kernel = Kernel(8)
    for _ in range(11):
        kernel.answer(kernel.send(hop=3))
    probes = InFlight(V4, kernel.slots, kernel.table)
    assert not len(probes.collect(kernel.now, TIMEOUT))
    later = kernel.send(hop=3, state=SlotState.DROPPED)
    assert outcomes(probes.collect(kernel.now, TIMEOUT)) == [(later, ProbeOutcome.DROPPED)]


def test_what_was_overrun_is_told_by_hop() -> None:
    kernel, probes = flight(size=4)
    for hop in (1, 1, 1, 2, 5, 5, 5, 5, 5):
        kernel.send(hop)
    rows = probes.collect(kernel.now, TIMEOUT)
    assert Counter(rows["hop"].tolist()) == {1: 3, 2: 1, 5: 1}
    assert set(rows["outcome"].tolist()) == {ProbeOutcome.OVERRUN}
    assert set(rows["sent_ns"].tolist()) == {kernel.now}
    assert probes.pending == 4
    rows = probes.collect(kernel.now, TIMEOUT, final=True)
    assert Counter(rows["outcome"].tolist()) == {ProbeOutcome.IN_FLIGHT: 4}


def test_sequence_numbers_go_on_where_packets_and_rows_have_no_more_room() -> None:
    for start in STARTS:
        kernel, probes = flight(size=8, start=start)
        told = 0
        for _ in range(4):
            for _ in range(5):
                kernel.answer(kernel.send())
            rows = probes.collect(kernel.now, TIMEOUT)
            expected = [(start + told + n) & 0xFFFFFFFF for n in range(5)]
            assert rows["sequence"].tolist() == expected
            assert set(rows["outcome"].tolist()) == {ProbeOutcome.ANSWERED}
            told += 5


class Racing:
    """Slots that change while they are read: after each of the reads, something happens."""

    def __init__(self, slots: Array, *happens: Callable[[], object]) -> None:
        self._slots, self._happens = slots, list(happens)

    def __len__(self) -> int:
        return len(self._slots)

    def __getitem__(self, name: str) -> Racing:
        part = Racing(self._slots[name])
        part._happens = self._happens
        return part

    def take(self, places: Array) -> Array:
        found: Array = self._slots.take(places)
        if self._happens:
            self._happens.pop(0)()
        return found


def racing(kernel: Kernel, *happens: Callable[[], object]) -> InFlight:
    slots: Any = Racing(kernel.slots, *happens)
    return InFlight(V4, slots, kernel.table)


@pytest.mark.parametrize("at", [0, 1])
def test_a_slot_that_is_written_while_it_is_read_is_read_again_later(at: int) -> None:
    """By the answer, or by the probe a whole round later."""
    nothing = [lambda: None] * at
    kernel = Kernel(4)
    first = 0
    probes = racing(kernel, *nothing, lambda: kernel.answer(first))
    assert first == kernel.send(hop=2)
    assert not len(probes.collect(kernel.now, TIMEOUT))
    assert outcomes(probes.collect(kernel.now, TIMEOUT)) == [(first, ProbeOutcome.ANSWERED)]

    kernel = Kernel(4)

    def go_round() -> None:
        for _ in range(4):
            kernel.send(hop=3, state=SlotState.DROPPED)

    probes = racing(kernel, *nothing, go_round)
    kernel.answer(kernel.send(hop=2))
    assert not len(probes.collect(kernel.now, TIMEOUT))
    rows = probes.collect(kernel.now, TIMEOUT)
    assert rows["outcome"].tolist() == [ProbeOutcome.DROPPED] * 4 + [ProbeOutcome.OVERRUN]
    assert rows["hop"].tolist() == [3] * 4 + [2]


def test_a_row_has_what_was_sent_and_what_came_back() -> None:
    """S3.11."""
    kernel, probes = flight(to=V6)
    source = np.arange(16, dtype="u1")
    ports: dict[str, Any] = {"source_port": 40000, "destination_port": 443}
    kernel.now = 20_000
    sequence = kernel.send(4, source=source, packet_bytes=65_000, **ports)
    kernel.now = 20_500
    responder = np.arange(50, 66, dtype="u1")
    quoted = {"quoted_ttl": 1, "quoted_tos": 8}
    kernel.answer(sequence, kind=3, icmp_code=0, responder=responder, ttl=60, **quoted)
    (row,) = probes.collect(kernel.now, TIMEOUT)
    assert bytes(row["destination"]) == V6.address
    assert bytes(row["source"]) == bytes(source)
    assert bytes(row["responder"]) == bytes(responder)
    assert (row["source_port"], row["destination_port"], row["protocol"]) == (40000, 443, 17)
    assert (row["version"], row["hop"], row["packet_bytes"]) == (6, 4, 65_000)
    assert (row["sent_ns"], row["received_ns"]) == (20_000, 20_500)
    assert (row["ttl"], row["icmp_type"], row["icmp_code"]) == (60, 3, 0)
    assert (row["quoted_ttl"], row["quoted_tos"]) == (1, 8)
    assert row["outcome"] == ProbeOutcome.ANSWERED  # ICMPv6 type 3


@pytest.mark.parametrize(("to", "exceeded", "echo"), [(V4, 11, 8 << 8), (V6, 3, 128 << 8)])
def test_of_an_echo_the_type_is_told_and_what_is_not_exceeded_is_unreachable(
    to: Destination, exceeded: int, echo: int
) -> None:
    kernel, probes = flight(to=to)
    number: dict[str, Any] = {
        "source_port": 77,
        "destination_port": 5,
    }  # identifier and sequence number
    first = kernel.send(protocol=1 if to is V4 else 58, **number)
    second = kernel.send(protocol=6, **number)
    kernel.answer(first, kind=exceeded)
    kernel.answer(second, kind=1 if to is V6 else 3)
    rows = probes.collect(kernel.now, TIMEOUT)
    assert rows["source_port"].tolist() == [77, 77]
    assert rows["destination_port"].tolist() == [echo, 5]
    assert rows["outcome"].tolist() == [ProbeOutcome.ANSWERED, ProbeOutcome.UNREACHABLE]


def test_what_an_unanswered_probe_s_slot_held_before_is_not_told() -> None:
    kernel, probes = flight(size=4)
    answer = {"ttl": 9, "icmp_type": 3, "responder": 1, "extension_size": 12}
    for _ in range(4):
        kernel.answer(kernel.send(), **answer)
    probes.collect(kernel.now, TIMEOUT)
    kernel.send()
    (row,) = probes.collect(kernel.now + TIMEOUT + 1, TIMEOUT)
    assert row["outcome"] == ProbeOutcome.UNANSWERED
    for name in ("ttl", "icmp_type", "received_ns", "label_count"):
        assert row[name] == 0
    assert not row["responder"].any()


def extension(*labels: int, version: int = 2, number: int = 1, kind: int = 1) -> bytes:
    """An ICMP extension with one object (RFC 4884, RFC 4950)."""
    entries = b"".join(struct.pack(">I", label) for label in labels)
    return struct.pack(">BBHHBB", version << 4, 0, 0, 4 + len(entries), number, kind) + entries


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (extension(0x12345FF), [0x12345FF]),
        (extension(1, 2, 3, 4), [1, 2, 3, 4]),
        (extension(1, 2, 3, 4, 5, 6), [1, 2, 3, 4]),
        (extension(), []),
        (extension(7, 8, 9)[:16], [7, 8]),  # what comes after is not at hand
        (extension(7)[:8], []),
        (extension(7)[:11], []),
        (extension(7, version=1), []),
        (extension(7, number=2), []),
        (extension(7, kind=2), []),
        (b"", []),
        (b"\x20\0\0\0\0\0\1\1" + bytes(8), []),  # an object without a length
        (b"\x20\0\0\0\xff\xff\1\1" + bytes(3) + b"\5", [5]),  # one that is not whole
        (bytes(32), []),
    ],
)
def test_label_stacks(data: bytes, expected: list[int]) -> None:
    """Bytes beyond `size` belong to an earlier answer."""
    left_over = np.full(32, 0xAB, "u1")
    left_over[: len(data)] = np.frombuffer(data[:32], "u1")
    labels, counts = labels_of(left_over[None], np.array([min(len(data), 32)], "u1"))
    assert counts.tolist() == [len(expected)]
    assert labels.tolist() == [expected + [0] * (4 - len(expected))]


def test_labels_are_of_the_probe_that_was_answered_with_them() -> None:
    kernel, probes = flight()
    stacks = [(1,), (), (2, 3), (4, 5, 6, 7)]
    for stack in stacks:
        data = extension(*stack)
        padded = np.frombuffer(data.ljust(32, b"\1"), "u1")
        kernel.answer(kernel.send(), extension=padded, extension_size=len(data))
    kernel.send()
    rows = probes.collect(kernel.now, TIMEOUT, final=True)
    assert rows["label_count"].tolist() == [1, 0, 2, 4, 0]
    assert [tuple(row["labels"][: row["label_count"]]) for row in rows[:4]] == stacks


def test_a_hop_that_the_kernel_cannot_have_written_breaks_nothing() -> None:
    """An edited source may write anything."""
    kernel, probes = flight()
    kernel.answer(kernel.send(HOP_COUNT - 1))
    kernel.slots["hop"] = 200
    assert len(probes.collect(kernel.now, TIMEOUT)) >= 1
