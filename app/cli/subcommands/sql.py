"""`probedeck sql`: questions to stored flows."""

from __future__ import annotations

import sys

import click

from app.cli.command import GroupedCommand, argument, option
from app.store import FORMATS

EXAMPLES = """\b
Examples:
  probedeck sql --store http://collector:8123 talkers
  probedeck sql --store http://collector:8123 'select sum(bytes) from probedeck.flows'"""


@click.command(cls=GroupedCommand, epilog=EXAMPLES)
@argument("query", "QUERY", "A query, or the name of a ready one.")
@option("--store", metavar="URL", required=True, help="The HTTP interface of a ClickHouse.")
@option(
    "--format", "form", type=click.Choice(list(FORMATS)), default="text", usual="text",
    help="Format of the answer.",
)  # fmt: skip
def sql(query: str, store: str, form: str) -> None:
    """Ask the store of a fleet; nothing can be changed."""
    from app.store import ask

    sys.stdout.buffer.write(ask(store, query, form))
