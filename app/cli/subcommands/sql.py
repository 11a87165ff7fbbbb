"""`probedeck sql`: questions to tables of a directory, or to the store of a fleet."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from app.cli.command import GroupedCommand, argument, option
from app.outputs.formats import FORMATS as TABLE_FORMATS
from app.store import FORMATS
from bpf.errors import UsageError, printable

if TYPE_CHECKING:
    from app.exporters.files.query import Answer

EXAMPLES = """\b
Examples:
  probedeck sql tables/ "select source, sum(bytes) b from flows group by 1 order by b desc limit 9"
  probedeck sql tables/ "describe flows"
  probedeck sql --store http://collector:8123 talkers
  probedeck sql --store http://collector:8123 'select sum(bytes) from probedeck.flows'"""


@click.command(cls=GroupedCommand, epilog=EXAMPLES)
@argument(
    "words", "[DIR] QUERY", "Directory of --output parquet:DIR or jsonl:DIR, or of run -o DIR. "
    "One SELECT; of a store also the name of a ready query.", nargs=-1,
)  # fmt: skip
@option("--store", metavar="URL", default="", help="The HTTP interface of a ClickHouse.")
@option(
    "-f", "--format", "form", type=click.Choice(list(FORMATS)), default="text", usual="text",
    help="Format of the answer.",
)  # fmt: skip
def sql(words: tuple[str, ...], store: str, form: str) -> None:
    """Ask the tables of a directory, or the store of a fleet. Nothing can be changed.

    DuckDB, an extra package, asks the files of a directory. It reaches no other file and no
    network. A store needs no extra package.
    """
    if len(words) != (1 if store else 2):
        what = "a query" if store else "a directory and a query"
        raise UsageError(f"give {what}", hint=f"{len(words)} arguments are given; quote the query")
    # Imported here: other commands start without them.
    if store:
        from app.store import ask

        sys.stdout.buffer.write(ask(store, words[0], form))
        return
    from app.exporters.files.query import asked

    directory, query = words
    with asked(directory, query) as answer:
        for text in _texts(answer) if form == "text" else _encoded(answer, form):
            print(text, end="")


def _encoded(answer: Answer, form: str) -> Iterator[str]:
    written = TABLE_FORMATS[form]
    rows: Iterator[Any] = (tuple(map(_plain, row)) for row in answer.rows)
    if written.nested:
        rows = (dict(zip(answer.header, row, strict=True)) for row in rows)
    yield written.table("sql", answer.header, rows).decode()


def _texts(answer: Answer) -> Iterator[str]:
    """Yield the lines of an aligned table; numbers stand right."""
    rows = [tuple(map(_plain, row)) for row in answer.rows]
    cells = [answer.header, *(tuple(map(_shown, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    right = [
        all(isinstance(value, (int, float, type(None))) for value in column)
        for column in (zip(*rows, strict=True) if rows else [()] * len(widths))
    ]
    for row in cells:
        padded = (
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, right, strict=True)
        )
        yield "  ".join(padded).rstrip() + "\n"


def _shown(value: Any) -> str:
    """Return the text of a cell; names from the network move no cursor."""
    return "" if value is None else printable(str(value))


def _plain(value: Any) -> Any:
    """Return a value that JSON has; times as in tables."""
    import datetime

    if isinstance(value, datetime.datetime):
        return f"{value.isoformat()}Z" if value.tzinfo is None else value.isoformat()
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    return str(value)
