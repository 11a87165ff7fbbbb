"""Each probe has one row, whenever its slot is read, written, answered or reused (S3.10)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bpf.arrays import Array
from probes.path.records import HOP_COUNT, ProbeOutcome
from probes.path.slots import Destination, InFlight, SlotState, labels_of
from tests.probes.path.kernel_slots import TIMEOUT, V4, V6, Kernel, flight, outcomes


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


@pytest.mark.parametrize(("to", "reply"), [(V4, 0), (V6, 129)])
def test_an_echo_reply_answers(to: Destination, reply: int) -> None:
    """The destination's own: the probe came as far."""
    kernel, probes = flight(to=to)
    kernel.answer(kernel.send(protocol=1 if to is V4 else 58), kind=reply)
    assert probes.collect(kernel.now, TIMEOUT)["outcome"].tolist() == [ProbeOutcome.ANSWERED]


def test_a_skipped_number_is_no_probe() -> None:
    """Neither is it reported, nor does it wait, nor does it hide a probe that was overrun."""
    kernel, probes = flight(size=4)
    first = kernel.send()
    for _ in range(2):
        kernel.write(kernel.skip(), 0, SlotState.SKIPPED)
    last = kernel.send()
    kernel.answer(first)
    assert outcomes(probes.collect(kernel.now, TIMEOUT)) == [(first, ProbeOutcome.ANSWERED)]
    assert probes.pending == 1
    for _ in range(4):
        kernel.write(kernel.skip(), 0, SlotState.SKIPPED)
    rows = probes.collect(kernel.now, TIMEOUT)
    assert rows["outcome"].tolist() == [ProbeOutcome.OVERRUN]
    assert not len(probes.collect(kernel.now, TIMEOUT, final=True))
    assert last == 3


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
