"""Sentences about outputs that fail."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from app.console.screens.overview.trouble import Kind, Trouble
from probes.output_control import SOURCE, OutputState, OutputStatus
from widgets.format import age, counted, si
from widgets.tones import Tone


def output_troubles(outputs: Iterable[OutputStatus], utc_ns: int) -> Iterator[Trouble]:
    """Yield a sentence for each output that fails at `utc_ns`; it leads to the list of outputs."""
    for one in outputs:
        if one.state is not OutputState.FAILING:
            continue
        lasting = f"for {age(max(0, utc_ns - one.since_utc_ns) / 1e9)}"
        clauses = [f"{_records(one.lost)} undelivered", lasting] if one.lost else [lasting]
        if one.queued:
            clauses.append(f"{_records(one.queued)} waiting")
        tone = Tone.BAD if one.lost else Tone.WARN
        text = f"Output {one.name} fails: {one.reason}"
        about = SOURCE, one.name
        yield Trouble(
            Kind.UNDELIVERED, one.lost, text, tone, "", None, tuple(clauses), about, about,
            lasting, "output.list",
        )  # fmt: skip


def _records(count: int) -> str:
    return counted(count, "record") if count < 1000 else f"{si(count)} records"
