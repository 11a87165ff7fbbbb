"""The output `record:DIR`: everything that a run publishes, and its state, as a recording."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from operator import methodcaller
from typing import Any

from app import VERSION
from app.api.models import ControllerStatus, PathObject, adapter, status_of
from app.exporters.exporter import DeliveryError, words_of
from app.exporters.host import ExportHost
from app.exporters.ledger import Gap
from app.exporters.record_options import RecordOptions, kept
from app.files import expand
from app.outputs.table_output import locked_directory
from app.outputs.view import is_table
from app.recording.frames import FrameKind
from app.recording.tiers import Tier, largest
from app.recording.writer import SegmentWriter, remove_old
from bpf.errors import ProbedeckError, UsageError
from probes.control_plane import ControlPlane, RemoteCalls
from probes.snapshot import Event, Item, Loss, LossReason, Snapshot, add_losses

STATE_S = 10.0
"""Seconds between two looks at the controller's state, and between two syncs."""
_CLEAN_S = 60.0
"""Seconds between two removals of old segments."""
_READS = (RemoteCalls.probes, RemoteCalls.traced, RemoteCalls.monitor)
"""The operations whose answers are recorded."""


def _part(kind: Any, ask: Callable[[ControlPlane], Any]) -> Callable[[ControlPlane], bytes]:
    return lambda plane: adapter(kind).dump_json(ask(plane))


STATE_PARTS: Mapping[str, Callable[[ControlPlane], bytes]] = {
    "status": _part(ControllerStatus, lambda plane: replace(status_of(plane, VERSION), utc_ns=0)),
    "path_options": _part(PathObject, lambda plane: plane.path_options),
    **{each.name: _part(each.answer, methodcaller(each.name)) for each in _READS},
}
"""The parts of the state, each the JSON of an answer. The number of a part in a frame is its place
here, from 1; part 0 are the losses since the start of the run."""


class RunRecorder:
    """Appends items to the segments of a directory. A row is a record, and so is an event."""

    def __init__(self, host: ExportHost) -> None:
        options = host.config.options
        assert isinstance(options, RecordOptions)
        self._directory = expand(host.config.path)
        self._keep = kept(options.keep)
        self._plane = host.plane
        self._locked: int | None = None
        self._name, self._ledger = host.config.name, host.ledger
        self._gaps: list[Gap] = []
        """Gaps that are not recorded yet."""
        run = secrets.token_hex(4)
        self._full = SegmentWriter(self._directory, "full", self._begun, run)
        self._sums = {
            name: (Tier(seconds), SegmentWriter(self._directory, name, lambda _: None, run))
            for name, seconds in (("10s", 10), ("1m", 60))
        }
        self._losses: dict[LossReason, Loss] = {}
        self._state: dict[int, bytes] = {}
        """The parts as they were recorded last in the segment."""
        self._probes: set[str] = set()
        """User probes whose windows have come."""
        self._looked_s = self._cleaned_s = -_CLEAN_S
        self._utc_ns = 0
        """Time of the last item."""

    def records(self, item: Item) -> int:
        return max(1, len(item.rows)) if isinstance(item, Snapshot) else 1

    def open(self) -> None:
        if self._locked is not None and not self._is_there(self._locked):
            self._close()
        if self._locked is None:
            try:
                self._locked = locked_directory(self._directory)
            except UsageError as error:
                raise DeliveryError(error.message) from None

    def _is_there(self, locked: int) -> bool:
        """Whether the path leads to the directory: it may be removed, or a disk mounted anew."""
        with suppress(OSError):
            return os.path.samestat(os.fstat(locked), os.stat(self._directory))
        return False

    def deliver(self, item: Item, skip: int) -> None:
        self._record_gaps()
        self._utc_ns = item.utc_ns if isinstance(item, Event) else item.end_utc_ns
        if isinstance(item, Event):
            self._full.add(FrameKind.EVENT, item.utc_ns, _json_of(Event, item))
            return
        if item.is_metric and item.probe not in self._probes:
            # The state tells the formats of its metrics.
            self._look(item.end_utc_ns - 1)
            self._probes.add(item.probe)
        self._full.window(item)
        add_losses(self._losses, item.losses)
        if is_table(item, "flow", ""):
            try:
                (tens, _), _ = self._sums.values()
                self._write_sums(tens.add(item))
            except OSError as error:
                # The window itself is recorded.
                raise DeliveryError(words_of(error), delivered=self.records(item)) from None

    def tick(self) -> None:
        now = time.monotonic()
        if now - self._looked_s >= STATE_S:
            self._looked_s = now
            self.look()
            self._full.sync()
        if now - self._cleaned_s >= _CLEAN_S:
            self._cleaned_s = now
            remove_old(self._directory, *self._keep)

    def look(self) -> None:
        """Record the state of the controller, as of the last item."""
        if self._utc_ns:
            self._look(self._utc_ns)

    def close(self) -> None:
        try:
            if self._locked is not None:
                self._record_gaps()
                (tens, _), (minutes, minute) = self._sums.values()
                self._write_sums(tens.rest())
                for sums in minutes.rest():
                    minute.window(largest(sums))
        finally:
            self._close()

    def _close(self) -> None:
        for writer in (self._full, *(writer for _, writer in self._sums.values())):
            writer.close()
        if self._locked is not None:
            os.close(self._locked)
            self._locked = None

    def _record_gaps(self) -> None:
        """Record which items the queue has lost: they come before every other one."""
        self._gaps += self._ledger.take_gaps(self._name)
        while self._gaps:
            gap = self._gaps[0]
            self._full.add(FrameKind.GAP, gap.end_ns, _json_of(Gap, gap))
            del self._gaps[0]

    def _write_sums(self, finished: Iterable[Snapshot]) -> None:
        """Record finished sums of 10 s, and add them to the sum of their minute."""
        (_, ten_seconds), (minutes, minute) = self._sums.values()
        for sums in finished:
            ten_seconds.window(largest(sums))
            for longer in minutes.add(sums):
                minute.window(largest(longer))

    def _begun(self, utc_ns: int) -> None:
        """Record the whole state: each segment opens alone."""
        self._state.clear()
        # Before the first item.
        self._look(utc_ns - 1)

    def _look(self, utc_ns: int) -> None:
        """Record the parts of the state that have changed."""
        losses = {one.name: [loss.packets, loss.bytes] for one, loss in self._losses.items()}
        self._full.add(FrameKind.STATE, utc_ns, json.dumps(losses).encode())
        for number, part in enumerate(STATE_PARTS.values(), 1):
            try:
                text = part(self._plane)
            except ProbedeckError:
                continue  # the probe of this part ends at the moment
            if self._state.get(number) != text:
                self._full.add(FrameKind.STATE, utc_ns, text, number)
                self._state[number] = text


def _json_of(kind: Any, value: object) -> bytes:
    found: bytes = adapter(kind).dump_json(value)
    return found


def recorder(host: ExportHost) -> RunRecorder:
    """Return the output that records a run."""
    return RunRecorder(host)
