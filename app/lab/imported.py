"""Captures as recordings: the probes' programs see each frame, and the windows are recorded."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote

from app.exporters.host import ExportHost
from app.exporters.kinds import parse
from app.exporters.ledger import Ledger
from app.files import as_invoker
from app.lab.capture import CaptureFile, open_capture
from app.lab.frames import FrameBatch
from app.lab.policy_runner import CaptureResult, PolicyRunner
from app.recording.plane import RecordedPlane
from app.recording.recorder import STATE_S, RunRecorder
from bpf.errors import UsageError
from probes.operation import Operation
from probes.reports import OutputConfig
from probes.snapshot import Item, Snapshot

STDIN = "-"


class _CapturedPlane(RecordedPlane):
    """The state of a run that never was: a monitor with its policies, and nothing that changes."""

    def __init__(self, runner: PolicyRunner) -> None:
        super().__init__()
        self._answers: Mapping[str, Any] = {
            "probes": tuple, "traced": tuple, "monitor": runner.info,
        }  # fmt: skip
        self._interval = runner.interval

    def _call(self, operation: Operation[..., Any], values: Any, named: Mapping[str, Any]) -> Any:
        return self._answers[operation.name]()

    @property
    def interval(self) -> float:
        return self._interval


def record(captures: Sequence[str], runner: PolicyRunner, directory: str) -> CaptureResult:
    """Record captures in a directory: files, folders of them, or standard input, in order of time.

    Raises UsageError if a file is no capture, ProbedeckError if the recording fails.
    """
    config = parse(OutputConfig(f"record:{quote(directory)}", "record", {}))
    plane = _CapturedPlane(runner)
    recorder = RunRecorder(ExportHost(config, plane, Ledger(), lambda records, reason: None))
    looked_ns = 0

    def publish(item: Item) -> None:
        nonlocal looked_ns
        recorder.deliver(item, 0)
        # Its tables come last of a window.
        if isinstance(item, Snapshot) and item.probe != "flow":
            due = item.end_utc_ns - looked_ns >= STATE_S * 1e9
            if due or runner.has_changed:
                looked_ns = item.end_utc_ns
                recorder.look()

    with ExitStack() as stack:
        files = _Files(captures, stack)
        recorder.open()
        stack.callback(recorder.close)
        result = runner.run(files.batches(), publish)
    return result.noting(files.defects())


class _Files:
    """The frames of several captures, in the order of their first frames."""

    def __init__(self, names: Sequence[str], stack: ExitStack) -> None:
        found = [self._open(name, stack) for name in chain.from_iterable(map(_within, names))]
        self._found = sorted(found, key=lambda each: each.begin_ns)

    @staticmethod
    def _open(name: str, stack: ExitStack) -> CaptureFile:
        if name == STDIN:
            return CaptureFile(sys.stdin.buffer, "standard input")
        return CaptureFile(stack.enter_context(open_capture(name)), name)

    def batches(self) -> Iterator[FrameBatch]:
        return chain.from_iterable(each.batches() for each in self._found)

    def defects(self) -> list[str]:
        """Return the defects of the files, known after the last frame."""
        return [defect for file in self._found for defect in file.defects]


def _within(name: str) -> list[str]:
    """Return the files of a folder, or the name itself. Raises UsageError for an empty folder."""
    with as_invoker():
        if name == STDIN or not os.path.isdir(name):
            return [name]
        files = sorted(str(path) for path in Path(name).iterdir() if path.is_file())
    if not files:
        raise UsageError(f"{name} has no file", hint="name a folder of captures")
    return files
