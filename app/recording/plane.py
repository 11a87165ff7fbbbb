"""A control plane over a recording: it answers as the controller did at a moment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from app.api.models import ControllerStatus, PathObject, adapter
from app.recording.recorder import STATE_PARTS
from bpf.errors import ProbedeckError, ReadOnlyError
from probes.control_plane import RemoteCalls
from probes.operation import Operation
from probes.path.options import PathOptions
from probes.poller import Publisher
from probes.reports import BudgetUse, MemoryUse, NoOutputs, OutputControl
from probes.snapshot import HookStatus, Loss, LossReason

READ_ONLY = "it is a recording"
_STATUS, _PATH_OPTIONS = "status", "path_options"
_NUMBERS = {name: number for number, name in enumerate(STATE_PARTS, 1)}


class RecordedPlane(RemoteCalls, Publisher):
    """The control plane of a recording: it answers operations from the recorded state.

    One thread turns it to moments; any thread asks it. Its history has the items of the last minute
    before the moment.
    """

    def __init__(self) -> None:
        super().__init__()
        self._parts: Mapping[int, bytes] = {}
        self.late_by = 0.0
        self.outputs: OutputControl = NoOutputs()
        self.read_only = READ_ONLY
        self.unwritten: Mapping[str, int] = {}
        self._status = ControllerStatus("", READ_ONLY, "", {})

    def _call(self, operation: Operation[..., Any], values: Any, named: Mapping[str, Any]) -> Any:
        if operation.name in STATE_PARTS:
            return self._part(operation.name, operation.answer)
        raise ReadOnlyError(f"read only: {READ_ONLY}", hint="a running controller can do that")

    def _part(self, name: str, kind: Any) -> Any:
        text = self._parts.get(_NUMBERS[name])
        try:
            return adapter(kind).validate_json(text or b"")
        except ValueError:
            words = "has no readable state" if text else "has no state"
            raise ProbedeckError(f"the recording {words} {name!r} of this moment") from None

    def turn_to(self, parts: Mapping[int, bytes]) -> None:
        """Answer from these parts of the state, by their numbers, from now on."""
        self._parts = parts
        if _NUMBERS[_STATUS] in parts:
            self._status = self._part(_STATUS, ControllerStatus)
            self.unwritten = self._status.unwritten

    @property
    def losses(self) -> dict[LossReason, Loss]:
        """Losses since the start of the run, until these parts were recorded."""
        return losses_of(self._parts.get(0, b"{}"))

    @property
    def version(self) -> str:
        """Of the controller."""
        return self._status.version

    @property
    def interval(self) -> float:
        return self._status.interval

    @property
    def capture(self) -> str:
        return self._status.capture

    @property
    def path_options(self) -> PathOptions:
        found: PathOptions = self._part(_PATH_OPTIONS, PathObject)
        return found

    @path_options.setter
    def path_options(self, options: PathOptions) -> None:
        raise ReadOnlyError(f"read only: {READ_ONLY}")

    def unconfined(self) -> str:
        return ""

    def hook_status(self) -> tuple[HookStatus, ...]:
        return self._status.hooks

    def memory(self) -> MemoryUse:
        return self._status.memory

    def budget(self) -> BudgetUse:
        return self._status.budget

    def failure(self) -> ProbedeckError | None:
        return ProbedeckError(self._status.failure) if self._status.failure else None

    def close(self) -> None:
        """Nothing runs."""


def losses_of(text: bytes) -> dict[LossReason, Loss]:
    """Return the losses of part 0 of a state; none if it is unreadable."""
    try:
        return {LossReason[name]: Loss(*map(int, of)) for name, of in json.loads(text).items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
