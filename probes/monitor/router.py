"""User space's side of the router: its applications, and the policies that select packets (S2.9).

Offers applications the interface of a hook's chain. Packets reach an application only while an
active policy runs it: activation is one store to memory that the programs read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bpf.attach.chain import Stage
from bpf.compiler import Compiled
from bpf.errors import UsageError
from bpf.programs import grace
from bpf.syscall import map_update, prog_array_clear, prog_array_set
from probes.builtin import ProbeMaps
from probes.filter.conjunction import Conjunction
from probes.monitor.programs import APPLICATIONS, CONTROL
from probes.monitor.selection import Selections, place_of
from probes.monitor.state import MAX_POLICIES
from probes.program.metrics import open_map


@dataclass(frozen=True, slots=True)
class _Placed:
    """A policy as the kernel has it."""

    selection: int
    applications: tuple[str, ...]
    before: int
    """The kernel's count for the selection before this policy, less the count of an older policy of
    the same name."""


class PolicyRouter:
    """Applications and policies in the kernel's tables. Thread-safe."""

    def __init__(
        self, compiled: Compiled, shared: ProbeMaps, reserve: Callable[[int], None]
    ) -> None:
        """`reserve` reserves tail calls of the hook for applications, or frees them (S2.15)."""
        self._reserve = reserve
        self._fds = shared.fds
        self._maps = {
            name: open_map(compiled.maps[name], shared.fds[name])
            for name in ("controls", "given", "chosen")
        }
        self._control = self._maps["controls"].view().view(CONTROL)[0]
        self.selections = Selections(compiled.maps, shared.fds)
        self._lock = threading.RLock()
        self._stages: list[Stage | None] = [None] * APPLICATIONS
        self._given = np.zeros(APPLICATIONS, "u8")
        """The kernel's count for each slot before its application came."""
        self._policies: dict[str, _Placed] = {}
        self._active: frozenset[str] = frozenset()
        self._held = False
        self._finish_fd = -1

    def receive(self, key: bytes) -> None:
        """Take datagrams with this flow key for telemetry."""
        map_update(self._fds["receivers"], key, b"\1")

    def set_exit(self, finish_fd: int) -> None:
        """Continue with program `finish_fd` after the last application."""
        with self._lock:
            self._finish_fd = finish_fd
            for stage in filter(None, self._stages):
                prog_array_set(stage.next_fd, 0, finish_fd)

    def append(self, stage: Stage, prog_fd: int) -> None:
        """Give an application a slot, by its stage's name. Raises UsageError if all are taken."""
        with self._lock:
            if None not in self._stages:
                raise UsageError(f"the monitor takes at most {APPLICATIONS} applications")
            self._reserve(1)
            slot = self._stages.index(None)
            prog_array_set(stage.next_fd, 0, self._finish_fd)
            prog_array_set(self._fds["applications"], slot, prog_fd)
            stage.prog_fd = prog_fd
            self._given[slot] = self._counts("given")[slot]
            self._stages[slot] = stage
            self._write_policies()

    def replace(self, stage: Stage, prog_fd: int) -> None:
        """Swap an application's program. The old one may run until the grace period ends."""
        with self._lock:
            prog_array_set(self._fds["applications"], self._stages.index(stage), prog_fd)
            stage.prog_fd = prog_fd

    def remove(self, stage: Stage) -> grace.Grace:
        """Remove an application; on return no CPU runs it."""
        with self._lock:
            slot = self._stages.index(stage)
            self._stages[slot] = None
            self._write_policies()
            waited = grace.wait()
            prog_array_clear(self._fds["applications"], slot)
            prog_array_clear(stage.next_fd, 0)
            stage.prog_fd = -1
            self._reserve(-1)
            return waited

    def set_policy(
        self, name: str, applications: Sequence[str], select: Sequence[Conjunction]
    ) -> None:
        """Add a policy for packets that are in one of `select`, or replace the one of this name;
        every packet meets the old or the new one in full. Raises UsageError if it does not fit, and
        then changes nothing."""
        with self._lock:
            old = self._policies.get(name)
            if len(self._policies) >= MAX_POLICIES and not old:
                raise UsageError(f"there can be at most {MAX_POLICIES} policies")
            selection = self.selections.add_all(select)
            before = self._chosen(selection)
            placed = _Placed(selection, tuple(applications), before)
            self._policies[name] = placed
            self._write_policies()
            if old:
                so_far = self._forget(old)
                self._policies[name] = replace(placed, before=before - so_far)

    def remove_policy(self, name: str) -> None:
        with self._lock:
            old = self._policies.pop(name)
            self._write_policies()
            self._forget(old)

    def activate(self, names: Collection[str]) -> None:
        """Run the applications of exactly these policies."""
        with self._lock:
            self._active = frozenset(names)
            self._write_active()

    def hold(self, held: bool) -> None:
        """Give applications no packets, whatever policies are active, or give them again."""
        with self._lock:
            self._held = held
            self._write_active()

    def selected(self) -> Mapping[str, int]:
        """Packets that each policy selected while active, since it was set."""
        with self._lock:
            counts = self._counts("chosen")
            return {
                name: int(counts[place_of(placed.selection)]) - placed.before
                for name, placed in self._policies.items()
            }

    def given(self) -> Mapping[str, int]:
        """Packets or records that each application got since it was loaded."""
        with self._lock:
            counts = self._counts("given") - self._given
            return {
                stage.name: int(count)
                for stage, count in zip(self._stages, counts, strict=True)
                if stage
            }

    def running(self) -> frozenset[str]:
        """Applications that packets may reach now."""
        return frozenset() if self._held else self.wanted()

    def wanted(self) -> frozenset[str]:
        """Applications that active policies run, held or not."""
        with self._lock:
            here = {stage.name for stage in self._stages if stage}
            wanted = (p.applications for n, p in self._policies.items() if n in self._active)
            return frozenset(here.intersection(name for names in wanted for name in names))

    def close(self) -> None:
        del self._control
        self.selections.close()
        for owned in self._maps.values():
            owned.close()

    def _forget(self, old: _Placed) -> int:
        """Remove a policy's selection. Returns the number of packets that it selected."""
        self.selections.remove(old.selection)
        self._control["applications"][place_of(old.selection)] = 0
        return self._chosen(old.selection) - old.before

    def _chosen(self, selection: int) -> int:
        return int(self._counts("chosen")[place_of(selection)])

    def _write_policies(self) -> None:
        """Write the loaded applications of each policy, and the active policies."""
        bits = {stage.name: 1 << slot for slot, stage in enumerate(self._stages) if stage}
        for placed in self._policies.values():
            runs = sum(bits.get(name, 0) for name in placed.applications)
            self._control["applications"][place_of(placed.selection)] = runs
        self._write_active()

    def _write_active(self) -> None:
        """Write the active selections in one store; those without loaded applications cost
        nothing."""
        active = 0
        for name, placed in self._policies.items():
            if name in self._active and self._control["applications"][place_of(placed.selection)]:
                active |= 1 << placed.selection
        self.selections.activate(0 if self._held else active)

    def _counts(self, name: str) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        """Sums over all CPUs."""
        counts: np.ndarray[tuple[int], np.dtype[np.uint64]]
        counts = self._maps[name].read().values.sum(axis=1, dtype="u8")
        return counts
