"""The dispatcher of a hook: several probes on one hook, in order, each replaceable alone.

The attached program calls the first probe through a program array, and every probe calls the next
through its own one (`bpf.programs.program`). So a chain is a linked list of program
arrays: to add, remove or replace a probe is one atomic write into the array before it, and no
packet sees a chain that is half changed. Index 0, a constant, makes each call a direct jump.

The chain of several interfaces has a dispatcher for each. It marks the packet as counted by a bit
of `tc_index`, which stays with the packet on its way through the host: over bridges, routes and
tunnels, and into other network namespaces. In the control block it tells the probes the interface,
and whether the bit was set before (include/interfaces.h). A gate in the chain keeps marked packets
from the probes behind it, so each of them sees a packet once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from bpf.abi import AttachType, MapType, ProgType
from bpf.errors import KernelError, UsageError
from bpf.programs import grace
from bpf.programs.program import PACKET_TYPES, VERDICT_PASS, Instruction, pack, tail_call_stub
from bpf.syscall import (
    PRIVILEGES,
    MapSpec,
    ProgInfo,
    map_create,
    prog_array_clear,
    prog_array_set,
    prog_info,
    prog_load,
)

_TC_INDEX, _CB4 = 44, 64
"""Offsets in struct __sk_buff."""
_AGAIN_BIT, _RAW = 16, 1 << 17
"""As in include/interfaces.h."""
OF_DROPPED = 1
"""Place of the program that actions call for packets which they drop, as in act.c."""
MAX_PROBES = 32
"""The kernel allows 33 tail calls (MAX_TAIL_CALL_CNT); a user's program may want one for itself."""


class Stage:
    """A probe's place in a chain. Its programs pass packets on through the array `next_fd`."""

    def __init__(self, name: str = "") -> None:
        """Raises KernelError if the kernel refuses."""
        self.name = name
        self.next_fd = _program_array("probe_next")
        self.prog_fd = -1
        """Descriptor of the present program, which its owner keeps open; -1 outside a chain."""
        self.last = False
        """Whether probes that come later stand before it."""

    def close(self) -> None:
        """Close a stage that is in no chain; a chain closes its own stages."""
        os.close(self.next_fd)


class Chain:
    """The probes of one hook, and the program to attach there. For use by several threads."""

    def __init__(
        self, prog_type: ProgType, attach_type: AttachType | None = None, *, gated: bool = False
    ) -> None:
        """Load the dispatcher. `gated`: for several interfaces, with `dispatcher` for each.

        Raises KernelError if the kernel refuses.
        """
        self._stages: list[Stage] = []
        self._prog_type = prog_type
        self._gate: Stage | None = None
        self._members_fd = -1
        """Array by which the dispatchers of interfaces call this chain's. A write into an array
        patches all programs that call through it: 3 ms with 200, at each swap."""
        self._preempted = prog_type not in PACKET_TYPES
        self._reserved = 0
        """Tail calls that the probes make beside those to the next probe."""
        self._lock = threading.Lock()
        self.head_fd = _program_array("chain_head", 1 + OF_DROPPED)
        """Array of the first probe and, at OF_DROPPED, of the program for dropped packets."""
        try:
            with _refusals():
                self.fd = prog_load(
                    pack(tail_call_stub(self.head_fd, VERDICT_PASS[prog_type])),
                    prog_type, "probedeck", attach_type=attach_type or 0,
                )  # fmt: skip
                """Descriptor of the dispatcher, to be attached."""
                if gated:
                    self._gate = Stage("gate")
                    gate = prog_load(pack(_gate(self._gate.next_fd)), prog_type, "gate")
                    self.append(self._gate, gate)
                    self._members_fd = _program_array("chain_members")
                    prog_array_set(self._members_fd, 0, self.fd)
                    self._reserved = 1
        except KernelError:
            os.close(self.head_fd)
            raise

    def __len__(self) -> int:
        """Return the number of probes."""
        return len(self._stages) - (self._gate is not None)

    def dispatcher(self, slot: int, bit: int, *, ethernet: bool) -> int:
        """Load a dispatcher for one of several interfaces; return its descriptor.

        `slot` is the interface's number, 1 to 65535, and `bit` the run's bit of `tc_index`.
        Raises KernelError if the kernel refuses.
        """
        code = [*_marking(slot, bit, ethernet=ethernet),
                *tail_call_stub(self._members_fd, VERDICT_PASS[self._prog_type])]  # fmt: skip
        with _refusals():
            return prog_load(pack(code), self._prog_type, "probedeck")

    def info(self) -> ProgInfo:
        """Identity and statistics of the dispatcher.

        The kernel counts time and runs of tail-called programs in the attached one, so these are
        of the whole chain.
        """
        return prog_info(self.fd)

    def append(self, stage: Stage, prog_fd: int) -> None:
        """Put a probe at the chain's end; it gets packets from the next one on. A stage that is
        `last` stays behind the others.

        Raises UsageError if the chain is full.
        """
        others = sum(not each.last for each in self._stages)
        self._insert(len(self._stages) if stage.last else others, stage, prog_fd)

    def before_gate(self, stage: Stage, prog_fd: int) -> None:
        """As `append`, for a probe that also gets packets that another interface counts."""
        if gate := self._gate:
            self._insert(self._stages.index(gate), stage, prog_fd)
        else:
            self.append(stage, prog_fd)

    def prepend(self, stage: Stage, prog_fd: int) -> None:
        """As `append`, at the chain's start: the others get only packets that it passes."""
        self._insert(0, stage, prog_fd)

    def reserve(self, calls: int) -> None:
        """Keep so many of the kernel's tail calls for a probe's own programs; negative: give back.

        Raises UsageError if fewer are left.
        """
        with self._lock:
            if calls > 0:
                self._refuse_too_many(calls)
            self._reserved += calls

    def replace(self, stage: Stage, prog_fd: int) -> None:
        """Swap a probe's program. The old one may still run until the grace period is over."""
        with self._lock:
            prog_array_set(self._entry(self._stages.index(stage)), 0, prog_fd)
            stage.prog_fd = prog_fd

    def remove(self, stage: Stage) -> grace.Grace:
        """Remove a probe; on return no CPU runs it any more. The stage may be inserted again."""
        with self._lock:
            at = self._stages.index(stage)
            if at + 1 < len(self._stages):
                prog_array_set(self._entry(at), 0, self._stages[at + 1].prog_fd)
            else:
                prog_array_clear(self._entry(at), 0)
            del self._stages[at]
            waited = grace.wait(preempted=self._preempted)
            prog_array_clear(stage.next_fd, 0)
            stage.prog_fd = -1
            return waited

    def close(self) -> None:
        os.close(self.fd)
        os.close(self.head_fd)
        if self._gate:
            os.close(self._gate.prog_fd)
            os.close(self._members_fd)
        for stage in self._stages:
            stage.close()
        self._stages.clear()

    def _insert(self, at: int, stage: Stage, prog_fd: int) -> None:
        with self._lock:
            self._refuse_too_many()
            stage.prog_fd = prog_fd
            if at < len(self._stages):
                prog_array_set(stage.next_fd, 0, self._stages[at].prog_fd)
            prog_array_set(self._entry(at), 0, prog_fd)
            self._stages.insert(at, stage)

    def _refuse_too_many(self, more: int = 1) -> None:
        if len(self._stages) + self._reserved + more > MAX_PROBES:
            applications = " and applications" if self._reserved else ""
            raise UsageError(
                f"a hook takes at most {MAX_PROBES} probes{applications}",
                hint="the kernel allows a packet 33 tail calls",
            )

    def _entry(self, at: int) -> int:
        """Return the array through which stage `at` is called."""
        return self._stages[at - 1].next_fd if at else self.head_fd


def _marking(slot: int, bit: int, *, ethernet: bool) -> list[Instruction]:
    """Set the bit of `tc_index`, and write cb[4]: the slot, _AGAIN if it was set, _RAW."""
    mark = 1 << bit
    return [
        (0x61, 0x12, _TC_INDEX, 0),  # w2 = ctx->tc_index
        (0xBF, 0x23, 0, 0),  # r3 = r2
        (0x57, 0x03, 0, mark),  # r3 &= mark
        (0x67, 0x03, 0, _AGAIN_BIT - bit),  # r3 <<= ...
        (0x47, 0x03, 0, slot | (0 if ethernet else _RAW)),  # r3 |= slot
        (0x63, 0x31, _CB4, 0),  # ctx->cb[4] = w3
        (0x47, 0x02, 0, mark),  # r2 |= mark
        (0x63, 0x21, _TC_INDEX, 0),  # ctx->tc_index = w2
    ]


def _gate(next_fd: int) -> list[Instruction]:
    """Tail-call the next probe, unless the packet was counted before."""
    call = tail_call_stub(next_fd, VERDICT_PASS[ProgType.SCHED_CLS])
    return [
        (0x61, 0x12, _CB4, 0),  # w2 = ctx->cb[4]
        (0x57, 0x02, 0, 1 << _AGAIN_BIT),  # r2 &= again
        (0x55, 0x02, len(call) - 2, 0),  # if r2 != 0 goto r0 = verdict
        *call,
    ]


def _program_array(name: str, entries: int = 1) -> int:
    with _refusals():
        return map_create(MapSpec(name, MapType.PROG_ARRAY, 4, 4, entries))


@contextmanager
def _refusals() -> Iterator[None]:
    """Turn the kernel's refusal into a KernelError."""
    try:
        yield
    except PermissionError:
        raise KernelError("not allowed to load packet programs", hint=PRIVILEGES) from None
    except OSError as error:
        raise KernelError(f"a chain of programs cannot be made: {error.strerror}") from None
