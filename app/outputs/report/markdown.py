"""A report as Markdown, with a table for each destination."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app.outputs.report import cells
from app.outputs.report.model import PathReport, ReportedDestination, ReportedEvent

_SPECIAL = str.maketrans({each: f"\\{each}" for each in "\\|`*_<>[]#"})


def render(report: PathReport) -> str:
    """Return the report."""
    lines = [f"# {_text(cells.heading(report))}", "", _text(cells.UNITS)]
    for destination in report.destinations:
        lines += ["", *_destination(destination, report)]
    if report.events:
        lines += ["", "## Other events", "", *_events(report.events, report)]
    if report.forgotten_events:
        lines += ["", f"{report.forgotten_events} earlier events are left out."]
    return "\n".join(lines) + "\n"


def _destination(destination: ReportedDestination, report: PathReport) -> Iterator[str]:
    yield f"## {_text(cells.title(destination))}"
    yield ""
    yield f"{_text(cells.summary(destination))}."
    yield ""
    table = list(cells.lines(destination))
    if table:
        yield _row(["hop", "router", *cells.TITLES, "remarks"])
        yield _row(["--:", ":--", *["--:"] * len(cells.TITLES), ":--"])
        for line in table:
            label = f"{line.label} ({line.name})" if line.name else line.label
            texts = (line.hop, label, *line.numbers, "; ".join(line.remarks))
            yield _row([_text(text) for text in texts])
        yield ""
    yield f"- probes: {_text(cells.probes(destination.probes))}"
    if destination.path_mtu:
        yield f"- {_text(str(destination.path_mtu))}"
    for note in destination.notes:
        yield f"- note: {_text(note)}"
    if destination.events:
        yield ""
        yield from _events(destination.events, report)


def _events(events: Sequence[ReportedEvent], report: PathReport) -> Iterator[str]:
    for event in events:
        mark = "" if event.severity == "info" else f"{event.severity}: "
        yield f"- {cells.clock(event, report)} {mark}{_text(event.text)}"


def _row(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _text(text: str) -> str:
    return text.translate(_SPECIAL)
