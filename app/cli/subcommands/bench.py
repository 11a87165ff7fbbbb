"""`probedeck bench`: measurements beside peers, floors and the papers, from a checkout."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from app.cli.command import FILE, GroupedCommand, argument, option
from bpf.errors import UsageError

EXAMPLES = """\b
Examples:
  probedeck bench --list
  probedeck bench flow monitor
  probedeck bench flow --against main --rounds 5
  probedeck bench --quick --json"""


@click.command(cls=GroupedCommand, epilog=EXAMPLES)
@argument("names", "[NAME]...", "Benches; all of them if none is given.", nargs=-1)
@option("--list", "lists", is_flag=True, help="Print the benches, and measure nothing.")
@option("--quick", is_flag=True, help="Run each only to its end: its numbers mean nothing.")
@option("--rounds", metavar="N", type=click.IntRange(0), default=0, usual="each bench's own",
        help="Rounds of each comparison.")  # fmt: skip
@option("--against", metavar="COMMIT", default="", help="Compare with this commit, by turns.")
@option("--json", "as_json", is_flag=True, help="Print the results as JSON, and nothing else.")
@option("--page", "only_page", is_flag=True,
        help="Make the page and its pictures from the results; measure nothing.")  # fmt: skip
@option("-o", "folder", metavar="DIR", type=FILE, default="", usual="bench/results of whole runs",
        help="Write results, pictures and their page here.")  # fmt: skip
def bench(names: tuple[str, ...], lists: bool, **given: Any) -> int:
    """Measure costs and ratios beside peers, as root.

    Peers are other programs, floors, and the figures of papers. Comparisons are made by turns, in
    one run. Frames travel only in network namespaces that it makes. Exit code 3: a goal is missed;
    1: a bench did not reach its end.
    """
    try:
        command = import_module("bench.runner.command")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("bench"):
            raise
        raise UsageError(
            "the benches are no part of an installed package",
            hint="clone the repository, and run sudo ./probedeck bench there",
        ) from None
    if lists:
        print("\n".join(command.listed()))
        return 0
    code: int = command.run(names, **given)
    return code
