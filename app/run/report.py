"""The report at the end of a headless run, on standard output."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum

from app.outputs.networks import Describe
from app.outputs.report import document, markdown, text
from app.outputs.report.model import build
from app.outputs.report.tally import PathTally
from app.outputs.table_output import send
from bpf.errors import ProbedeckError
from probes.path.traced import Traced
from probes.snapshot import Item

_STDOUT = 1


class ReportFormat(StrEnum):
    TEXT = "text"
    MARKDOWN = "markdown"
    JSON = "json"


class ReportWriter:
    """Collects the windows of a run, and writes the report."""

    def __init__(
        self, chosen: ReportFormat, describe: Describe,
        look_up: Callable[[Iterable[str]], None] = lambda addresses: None,
    ) -> None:  # fmt: skip
        """`describe` adds facts about routers; `look_up` waits for their names first."""
        self.format = chosen
        self._describe = describe
        self._look_up = look_up
        self._tally = PathTally()

    def add(self, item: Item) -> None:
        self._tally.add(item)

    def write(self, traced: Iterable[Traced], reasons: Mapping[str, Sequence[str]]) -> None:
        """Write the report. Raises ProbedeckError, and BrokenPipeError for a pipe without a reader.

        `reasons` say of destinations without probes why they have none.
        """
        self._look_up(self._tally.addresses())
        report = build(self._tally, traced, self._describe, reasons)
        match self.format:
            case ReportFormat.TEXT:
                written = text.render(report, _width())
            case ReportFormat.MARKDOWN:
                written = markdown.render(report)
            case ReportFormat.JSON:
                written = document.render(report)
        _, reason = send(written.encode(errors="backslashreplace"))
        if reason:
            raise ProbedeckError(f"the report could not be written: {reason}")


def _width() -> int:
    """Columns of the terminal; 0 if standard output is none: then lines are as long as needed."""
    try:
        return os.get_terminal_size(_STDOUT).columns
    except OSError:
        return 0
