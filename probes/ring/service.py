"""Keeps packets for policies and operators, and hands captures to their writer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bpf.errors import ProbedeckError, UsageError
from bpf.quantities import clock, counted
from probes.flow.filter import FlowFilter
from probes.monitor.actions.capture import MOST_SECONDS, USUAL_SECONDS
from probes.monitor.finding import Finding
from probes.ring.options import (
    BY_HAND,
    PROBE,
    CaptureLedger,
    KeptPacket,
    KeptSelection,
    RingOptions,
    RingStatus,
    Written,
)
from probes.ring.records import network_at
from probes.snapshot import Event

if TYPE_CHECKING:
    from bpf.arrays import Array
    from probes.ring.probe import RingProbe
    from probes.ring.records import Packets


@dataclass(frozen=True, slots=True, eq=False)
class Capture:
    """Packets that leave the ring for a file."""

    name: str
    """Of the selection."""
    filters: Sequence[str]
    packets: Packets
    ledger: CaptureLedger
    utc_ns: Callable[[int], int]
    """Converts CLOCK_MONOTONIC."""


class RingService:
    """The packet ring of this host's controller, as `RingControl` has it."""

    def __init__(
        self,
        changing: AbstractContextManager[object],
        start: Callable[[RingOptions], RingProbe],
        end: Callable[[], object],
        running: Callable[[], RingProbe | None],
        refuse_changes: Callable[[], None],
        publish: Callable[[Event], None],
    ) -> None:
        """`changing` is the controller's lock for changes. `start` starts the probe, or raises;
        `end` ends it; `running` returns the probe that runs. `refuse_changes` raises if the
        controller is read-only."""
        self._changing, self._start, self._end, self._running = changing, start, end, running
        self._refuse_changes, self._publish = refuse_changes, publish
        self._reading = threading.Lock()
        """Held while the ring is frozen, so that captures do not thaw one another's."""
        self.options = RingOptions()
        self.save: Callable[[Capture], str] | None = None
        """Writes a capture and returns its path; raises UsageError. The run sets it."""
        self._written = self._refused = 0

    def ring(self) -> RingStatus:
        probe = self._running()
        if probe is None:
            return RingStatus("", self.options.kept, 0, (), self._written, self._refused)
        found = []
        for name, kept in [*probe.selections.items()]:
            # KeyError: it ends at the moment.
            with suppress(KeyError):
                counts = probe.count(name)
                found.append(
                    KeptSelection(name, kept.filters, kept.since_utc_ns, *counts, kept.file)
                )
        return RingStatus(
            probe.interface.name, probe.options.kept, probe.capacity, found,
            self._written, self._refused,
        )  # fmt: skip

    def keep_packets(self, filter: str = "") -> RingStatus:  # noqa: A002
        self._refuse_changes()
        self.keep_for(BY_HAND, [filter] if filter.strip() else [])
        return self.ring()

    def release_packets(self) -> RingStatus:
        self._refuse_changes()
        self.drop(BY_HAND)
        return self.ring()

    def kept_packets(self, most: int = 100) -> list[KeptPacket]:
        probe = self._running()
        if probe is None:
            return []
        found = probe.newest(BY_HAND, most)
        names = found.flows["interface"].tolist()
        return [
            KeptPacket(
                probe.utc_ns(int(slot["time"])), name.decode(errors="replace"),
                bool(slot["outgoing"]), int(slot["length"]),
                slot["bytes"][: slot["captured"]].tobytes().hex(), network_at(slot),
                bool(slot["dropped"]),
            )
            for slot, name in zip(found.slots, names, strict=True)
        ]  # fmt: skip

    def write_packets(self, name: str = BY_HAND, seconds: float = USUAL_SECONDS) -> Written:
        self._refuse_changes()
        if not 0 < seconds <= MOST_SECONDS:
            raise UsageError(f"{seconds:g} s is not between 0 and {MOST_SECONDS:g}")
        return self._write(name, seconds)

    def keep_for(self, name: str, filters: Sequence[str]) -> None:
        """Keep packets under a name, also if the controller is read-only. Raises ProbedeckError."""
        with self._changing:
            try:
                probe = self._running() or self._start(self.options)
                probe.keep(name, filters)
            finally:
                self._end_unused()

    def drop(self, name: str) -> None:
        """Keep the packets of a selection no longer; an unknown one changes nothing."""
        with self._changing:
            if probe := self._running():
                probe.drop(name)
                self._end_unused()

    def freeze(self) -> None:
        """Stop writing to the ring until the next capture. Takes no lock."""
        if probe := self._running():
            probe.freeze()

    def write_for(self, policy: str, seconds: float, culprit: Finding | None) -> None:
        """Write the capture of a policy, in a thread of its own; events tell the result.

        With a `culprit`, the capture has its packets only.
        """

        def passing(packets: Packets) -> Array:
            found: Array = FlowFilter.parse(culprit.filter if culprit else "").mask(packets.flows)
            return found

        def write() -> None:
            try:
                self._write(policy, seconds, passing if culprit and culprit.filter else None)
            except ProbedeckError as error:
                text = f"no capture of policy {policy}: {error}"
                self._publish(Event.now("error", PROBE, text, f"capture {policy}"))

        threading.Thread(target=write, name=f"capture {policy}", daemon=True).start()

    def _write(
        self, name: str, seconds: float, passing: Callable[[Packets], Array] | None = None
    ) -> Written:
        if self.save is None:
            raise UsageError("this run writes no captures")
        with self._reading:
            if (probe := self._running()) is None:
                raise UsageError("the ring keeps no packets", hint="choose their flows before")
            try:
                kept = probe.selections.get(name)
                packets, ledger = probe.read(name, seconds, passing)
            finally:
                probe.thaw()
            assert kept
            try:
                file = self.save(Capture(name, kept.filters, packets, ledger, probe.utc_ns))
            except UsageError:
                self._refused += 1
                raise
            kept.file = file
            self._written += 1
        self._publish(Event.now("info", PROBE, said(file, ledger), f"capture {name}"))
        return Written(file, ledger)

    def _end_unused(self) -> None:
        probe = self._running()
        if probe and not probe.selections:
            self._end()


def said(file: str, ledger: CaptureLedger) -> str:
    """Return a capture and its ledger in a sentence."""
    lacks = {
        "overwritten before": ledger.overwritten,
        "came while the ring was frozen": ledger.paused,
        "could not be read": ledger.unread,
    }
    missing = [f"{number} {words}" for words, number in lacks.items() if number]
    parts = [
        f"{counted(ledger.written, 'packet')} of {ledger.selected} in {file}",
        f"{ledger.others} of other flows are left out" if ledger.others else "",
        f"actions dropped {ledger.dropped} of them" if ledger.dropped else "",
        f"{' and '.join(missing)}; whole from {clock(ledger.whole_utc_ns, milliseconds=True)}"
        if missing
        else "none is missing",
    ]
    return ": ".join(filter(None, (parts[0], ", ".join(filter(None, parts[1:])))))
