"""The dispatcher of a hook: several probes on one hook, in order, each replaceable alone.

The attached program calls the first probe through a program array, and every probe calls the next
through one of its own (`bpf.programs.program`). So a chain is a linked list of program
arrays: to add, remove or replace a probe is one atomic write into the array before it, and no
packet sees a chain that is half changed. Index 0, a constant, makes each call a direct jump.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from bpf.abi import AttachType, MapType, ProgType
from bpf.errors import KernelError, UsageError
from bpf.programs import grace
from bpf.programs.program import PACKET_TYPES, VERDICT_PASS, pack, tail_call_stub
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

    def close(self) -> None:
        """Close a stage that is in no chain; a chain closes its own stages."""
        os.close(self.next_fd)


class Chain:
    """The probes of one hook, and the program to attach there. For use by several threads."""

    def __init__(self, prog_type: ProgType, attach_type: AttachType | None = None) -> None:
        """Load the dispatcher. Raises KernelError if the kernel refuses."""
        self._stages: list[Stage] = []
        self._preempted = prog_type not in PACKET_TYPES
        self._reserved = 0
        """Tail calls that the probes make beside those to the next probe."""
        self._lock = threading.Lock()
        self._head_fd = _program_array("chain_head")
        try:
            with _refusals():
                self.fd = prog_load(
                    pack(tail_call_stub(self._head_fd, VERDICT_PASS[prog_type])),
                    prog_type, "probedeck", attach_type=attach_type or 0,
                )  # fmt: skip
                """Descriptor of the dispatcher, to be attached."""
        except KernelError:
            os.close(self._head_fd)
            raise

    def __len__(self) -> int:
        return len(self._stages)

    def info(self) -> ProgInfo:
        """Identity and statistics of the dispatcher.

        The kernel counts time and runs of tail-called programs in the attached one, so these are
        of the whole chain.
        """
        return prog_info(self.fd)

    def append(self, stage: Stage, prog_fd: int) -> None:
        """Put a probe at the chain's end; it gets packets from the next one on.

        Raises UsageError if the chain is full.
        """
        with self._lock:
            self._refuse_too_many()
            stage.prog_fd = prog_fd
            prog_array_set(self._entry(len(self._stages)), 0, prog_fd)
            self._stages.append(stage)

    def prepend(self, stage: Stage, prog_fd: int) -> None:
        """As `append`, at the chain's start: the others get only packets that it passes."""
        with self._lock:
            self._refuse_too_many()
            stage.prog_fd = prog_fd
            if self._stages:
                prog_array_set(stage.next_fd, 0, self._stages[0].prog_fd)
            prog_array_set(self._head_fd, 0, prog_fd)
            self._stages.insert(0, stage)

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
        os.close(self._head_fd)
        for stage in self._stages:
            stage.close()
        self._stages.clear()

    def _refuse_too_many(self, more: int = 1) -> None:
        if len(self._stages) + self._reserved + more > MAX_PROBES:
            applications = " and applications" if self._reserved else ""
            raise UsageError(
                f"a hook takes at most {MAX_PROBES} probes{applications}",
                hint="the kernel allows a packet 33 tail calls",
            )

    def _entry(self, at: int) -> int:
        """Return the array through which stage `at` is called."""
        return self._stages[at - 1].next_fd if at else self._head_fd


def _program_array(name: str) -> int:
    with _refusals():
        return map_create(MapSpec(name, MapType.PROG_ARRAY, 4, 4, 1))


@contextmanager
def _refusals() -> Iterator[None]:
    """Turn the kernel's refusal into a KernelError."""
    try:
        yield
    except PermissionError:
        raise KernelError("not allowed to load packet programs", hint=PRIVILEGES) from None
    except OSError as error:
        raise KernelError(f"a chain of programs cannot be made: {error.strerror}") from None
