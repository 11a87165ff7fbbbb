"""Slots written, answered, read and reused in any order: each probe has one row (S3.10)."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from bpf.arrays import Array
from probes.path.records import ProbeOutcome
from probes.path.slots import InFlight, SlotState
from tests.probes.path.kernel_slots import EXCEEDED, STARTS, TIMEOUT, V4, Kernel


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
