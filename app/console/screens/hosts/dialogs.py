"""Boxes of screen 7: the outcome of a change on each host, and the distinct flows of the fleet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from app.console.dialogs.list_box import ListBox
from app.fleet.distinct import FleetFlows
from app.fleet.plane import HostReport
from widgets.format import counted, duration, si
from widgets.table.rows import Column, Row, Rows
from widgets.tones import Tone


class ReportBox(ListBox[None]):
    """The outcome of a change on each of the chosen hosts."""

    help_text = "esc closes"
    columns: ClassVar = (
        Column("host", "Host", 16),
        Column("outcome", "Outcome", 50, grows=True),
        Column("seconds", "Took", 7, "right"),
    )

    def __init__(self, title: str, reports: Sequence[HostReport]) -> None:
        super().__init__()
        self._title, self._reports = title, reports

    @property
    def title_text(self) -> str:
        done = sum(one.error is None for one in self._reports)
        return f"{self._title}: done on {done} of {counted(len(self._reports), 'host')}"

    def rows(self) -> Rows:
        # Failures first: they need an answer.
        ordered = sorted(self._reports, key=lambda one: one.error is None)
        return Rows.of(
            Row(
                one.host,
                (one.host, "done" if one.error is None else str(one.error), duration(one.seconds)),
                (Tone.NORMAL, Tone.GOOD if one.error is None else Tone.BAD, Tone.MUTED),
            )
            for one in ordered
        )


class DistinctBox(ListBox[None]):
    """Distinct flows of the chosen hosts together, and of each."""

    help_text = (
        "A flow that several hosts see counts once. Hosts need the same seed:\n"
        "probedeck run --seed-file FILE. esc closes"
    )
    columns: ClassVar = (
        Column("host", "Host", 16),
        Column("flows", "Flows", 8, "right"),
        Column("band", "95 %", 15, "right"),
        Column("part", "In the sum", 30, grows=True),
    )

    def __init__(self, found: FleetFlows) -> None:
        super().__init__()
        self._found = found

    @property
    def title_text(self) -> str:
        found = self._found
        of = f"{found.merged} of {counted(len(found.hosts), 'host')}"
        return f"{si(found.estimate)} distinct flows of {of}, {_band(found.low, found.high)}"

    def rows(self) -> Rows:
        return Rows.of(
            Row(
                one.host,
                (one.host, si(one.estimate), _band(one.low, one.high), one.why_not or "yes"),
                (Tone.NORMAL, Tone.NORMAL, Tone.MUTED, Tone.WARN if one.why_not else Tone.GOOD),
            )
            for one in self._found.hosts
        )


def _band(low: float, high: float) -> str:
    return f"{si(low)}..{si(high)}"
