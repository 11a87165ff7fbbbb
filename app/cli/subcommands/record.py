"""`probedeck record`: what recordings have, their check, and their tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from app.cli.command import CommandGroup, argument, option, print_table, say
from app.cli.decorator import takes
from app.config.model import Settings
from app.run.options import OUTPUT, Options, OutputSpec
from bpf.errors import ProbedeckError, UsageError
from bpf.quantities import byte_size, clock, counted
from probes.flow.options import GENERAL

if TYPE_CHECKING:
    from app.recording.reader import Recording

EXAMPLES = """\b
Examples:
  probedeck record list /var/lib/probedeck/record
  probedeck record verify /var/lib/probedeck/record
  probedeck record export DIR --views flows --from 03:10 --to 03:15 | head
  probedeck record export DIR --format parquet -o tables"""
FORM = option(
    "--format", "form", type=click.Choice(["csv", "jsonl", "parquet"]), default="csv", usual="csv",
    group=OUTPUT, help="Format of the tables.",
)  # fmt: skip

record = CommandGroup("record", help="List, check and export recordings.", epilog=EXAMPLES)
_directory = argument("directory", "DIR", "Directory of --record.")
_sums = option(
    "--sums", "stream", type=click.Choice(["10s", "1m"]), default=None,
    help="Take the sums of ten seconds or of a minute, not every window.",
)  # fmt: skip


ONE_RUN = option(
    "--run", "one_run", metavar="ID", default="", usual="all", group=GENERAL,
    help="Take this run only; record list has the ids.",
)  # fmt: skip


@contextmanager
def opened(directory: str, stream: str | None = None, run: str = "") -> Iterator[Recording]:
    # Imported here: other commands start without numpy.
    from app.recording.reader import FULL, Recording

    with Recording(directory, stream or FULL, run) as recording:
        yield recording


@record.command("list", epilog=EXAMPLES)
@_directory
@_sums
def list_segments(directory: str, stream: str | None) -> None:
    """List the segments of a recording. Times are UTC."""
    with opened(directory, stream) as recording:
        rows = [
            (one.path.name, clock(one.begin_ns), clock(one.end_ns), byte_size(one.end),
             str(len(one.entries())), str(one.rows), one.run[:8], one.head.get("host", ""))
            for one in recording.segments()
        ]  # fmt: skip
    print_table([("SEGMENT", "FROM", "TO", "SIZE", "FRAMES", "ROWS", "RUN", "HOST"), *rows])


@record.command(epilog=EXAMPLES)
@_directory
@_sums
def verify(directory: str, stream: str | None) -> int:
    """Read every frame, and name what is damaged or missing. Exit code 1 if anything is."""
    with opened(directory, stream) as recording:
        found = 0
        for fault in recording.faults():
            print(fault, flush=True)
            found += 1
        segments = recording.segments()
        rows = sum(one.rows for one in segments)
    words = "nothing is missing" if not found else counted(found, "fault")
    say(f"{counted(len(segments), 'segment')}, {counted(rows, 'row')}: {words}")
    return 1 if found else 0


@record.command(epilog=EXAMPLES)
@_directory
@option(
    "--from",
    "begin",
    metavar="TIME",
    usual="its begin",
    group=OUTPUT,
    help="From this time: 12:30:05, 2026-01-31T12:30, or how long before the end, 5m.",
)
@option("--to", "end", metavar="TIME", usual="its end", group=OUTPUT, help="Up to this time.")
@FORM
@_sums
@ONE_RUN
@takes(Options, only=("out", "views", "filter", "network_prefix", "networks"))
def export(
    options: Options, settings: Settings, directory: str, begin: str, end: str, form: str,
    stream: str | None, one_run: str,
) -> int:  # fmt: skip
    """Write tables of a recording, as the run would have written them. Times are UTC."""
    with opened(directory, stream, one_run) as recording:
        write_tables(recording, recording.between(begin, end), options, settings, form)
    return 0


def write_tables(
    recording: Recording, times: tuple[int, int], options: Options, settings: Settings, form: str
) -> None:
    """Write tables of a recording between two times. Raises UsageError and ProbedeckError."""
    from app.recording.export import PARQUET, RecordedItems, tables_of, write_parquet
    from app.run.table_writer import TableWriter

    items = RecordedItems(recording, *times)
    output = _output(options, settings, form, tables_of(recording))
    if form == PARQUET:
        if options.out == "-" or options.filter:
            hint = "-o DIR names one" if options.out == "-" else "filter them by probedeck sql"
            what = "a directory" if options.out == "-" else "no --filter"
            raise UsageError(f"Parquet files need {what}", hint=hint)
        write_parquet(items, options.out, output.views)
    else:
        items.plane.listen(lambda item: say(f"probedeck: {getattr(item, 'text', '')}"))
        tables = TableWriter(output, (), items.plane, options.describe())
        with tables.sink:
            for item in items:
                tables.write(item)
        tables.check()
    damage = [*recording.damage()]
    for line in damage:
        say(f"probedeck: {line}")
    if damage:
        raise ProbedeckError("the recording is damaged: rows are missing")


def _output(
    options: Options, settings: Settings, form: str, present: tuple[str, ...]
) -> OutputSpec:
    from probes.flow.kinds import parse_prefixes
    from probes.monitor.state import METRICS_TABLE

    named = options.named_views()
    names = named or (("flows",) if options.out == "-" else present)
    metrics = options.out != "-" and (not named or METRICS_TABLE in named)
    return OutputSpec(
        options.out, None if form == "csv" else form, names, metrics, options.filter,
        settings.filters, parse_prefixes(options.network_prefix),
    )  # fmt: skip
