"""A report as text for a terminal or a file."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from app.outputs.report import cells
from app.outputs.report.cells import ReportLine
from app.outputs.report.model import PathReport, ReportedDestination, ReportedEvent

_HOP = 4
_WIDTHS = (6, 9, 6, 5, 5, 5, 5, 5, 5)
"""Of the columns of numbers, each after a blank: with _HOP and 15 columns of an IPv4 address they
fit 80 columns."""
_NUMBERS = sum(_WIDTHS) + len(_WIDTHS)
_LEAST = 15
_REMARKS = 6
"""Indentation of remarks below a line."""


def render(report: PathReport, width: int = 0) -> str:
    """Return the report as lines of at most `width` columns; 0: as long as they need to be.

    Nothing is cut off: if a line is too short for an address or a remark, it goes to its own line.
    """
    lines = [cells.heading(report), cells.UNITS]
    for destination in report.destinations:
        lines += ["", *_destination(destination, report, width)]
    if report.events:
        lines += ["", "Other events:", *_events(report.events, report, width)]
    if report.forgotten_events:
        lines.append(f"{report.forgotten_events} earlier events are left out.")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _destination(destination: ReportedDestination, report: PathReport, width: int) -> Iterator[str]:
    yield from _wrapped(f"{cells.title(destination)}: {cells.summary(destination)}", width, 2)
    table = list(cells.lines(destination))
    if table:
        room = max(_LEAST, width - _HOP - _NUMBERS - 1) if width else 10**6
        label = max(min(max(len(_label(line, room)) for line in table), room), len("router"))
        yield _row("hop", "router", cells.TITLES, label)
        for line in table:
            yield from _line(line, label, room, width)
    yield from _wrapped(f"probes: {cells.probes(destination.probes)}", width, 2)
    if destination.path_mtu:
        yield from _wrapped(str(destination.path_mtu), width, 2)
    for note in destination.notes:
        yield from _wrapped(f"note: {note}", width, 2)
    if destination.events:
        yield "events:"
        yield from _events(destination.events, report, width)


def _line(line: ReportLine, label: int, room: int, width: int) -> Iterator[str]:
    text, remarks = _label(line, room), [*line.remarks]
    if line.name and line.name not in text:
        remarks.insert(0, line.name)
    if len(text) > label:
        yield f"{line.hop:>3} {text}"
        text, line = "", line._replace(hop="")
    row = _row(line.hop, text, line.numbers, label)
    tail = "; ".join(remarks)
    if not tail or (not width) or len(row) + 2 + len(tail) <= width:
        yield f"{row}  {tail}"
        return
    yield row
    yield from _wrapped(tail, width, _REMARKS, " " * _REMARKS)


def _label(line: ReportLine, room: int) -> str:
    named = f"{line.label} ({line.name})"
    return named if line.name and len(named) <= room else line.label


def _row(hop: str, label: str, numbers: Sequence[str], width: int) -> str:
    columns = (f"{text:>{size}}" for text, size in zip(numbers, _WIDTHS, strict=True))
    return " ".join([f"{hop:>3}", f"{label:<{width}}", *columns])


def _events(events: Sequence[ReportedEvent], report: PathReport, width: int) -> Iterator[str]:
    for event in events:
        mark = "" if event.severity == "info" else f"{event.severity}: "
        yield from _wrapped(f"  {cells.clock(event, report)} {mark}{event.text}", width, 11)


def _wrapped(text: str, width: int, indent: int, first: str = "") -> list[str]:
    if not width:
        return [first + text]
    return textwrap.wrap(
        text, max(width, 40), initial_indent=first, subsequent_indent=" " * indent,
        drop_whitespace=True, break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
