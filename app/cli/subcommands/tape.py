"""`probedeck tape`: check and list tapes without playing them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import click

from app import VERSION
from app.cli.command import CommandGroup, argument
from app.cli.decorator import takes
from app.config.model import Settings
from bpf.errors import UsageError

if TYPE_CHECKING:
    from app.tape.model import Tape
    from app.tape.store import TapeStore

EXAMPLES = """\b
Examples:
  probedeck tape check triage.tape
  probedeck tape list
  probedeck lab --headless --tape triage.tape
  probedeck run -i eth0 --tape evidence"""

NO_VARIABLES: Mapping[str, str] = {}
_MISSING = 3
"""Exit code of a tape that needs something missing, as when it is played."""


class TapeGroup(CommandGroup):
    """The group of commands for tapes. Its help has the grammar, which takes long to import."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from textwrap import fill, indent

        from app.tape.grammar import EXIT, FORMS

        lines = ["\b\nLines of a tape:"]
        for form, meaning in FORMS:
            lines += [f"  {form}", indent(fill(meaning, 72), " " * 6)]
        self.epilog = "\n".join(lines) + f"\n\n{EXIT}\n\n{EXAMPLES}"
        super().format_epilog(ctx, formatter)


tape = TapeGroup("tape", help="Check tapes before they are played, and list them.")


@tape.command(epilog=EXAMPLES)
@argument(
    "tapes", "FILE...", "Files, names of tape list, or -: standard input.", nargs=-1, required=True
)
@click.option(
    "--set", "variables", multiple=True, metavar="NAME=VALUE", help="A value for $NAME in tapes."
)
@takes()
def check(settings: Settings, tapes: tuple[str, ...], variables: tuple[str, ...]) -> int:
    """Report every mistake in tapes without playing them.

    Exit codes: 0 all tapes can be played here, 2 a tape is wrong, 3 a tape needs something missing.
    """
    from app.tape.line import variables_of

    shelf = _shelf(settings, variables_of(variables))
    codes = {_check(name, shelf) for name in tapes}
    return next((code for code in (UsageError.exit_code, _MISSING) if code in codes), 0)


@tape.command("list")
@takes()
def list_tapes(settings: Settings) -> None:
    """List the tapes that can be played by name, and the recorded tapes."""
    from app.tape.store import registers

    shelf = _shelf(settings)
    for name in (*shelf.names(), *registers()):
        try:
            title = shelf.load(name).title
        except UsageError as error:
            title = str(error).splitlines()[0]
        print(f"{name:<12} {title}")


@tape.command()
def states() -> None:
    """List the states that Wait and Expect can test."""
    from app.tape import condition

    for each in condition.states().values():
        name = each.name + ("NAME" if each.name.endswith(".") else "")
        values = f": {' '.join(each.choices)}" if each.choices else ""
        print(f"{name:<20} {each.kind:<13} {each.help}{values if not each.meanings else ''}")
        for choice, meaning in zip(each.choices, each.meanings, strict=False):
            print(f"{'':<34} {choice:<9} {meaning}")


def _shelf(settings: Settings, variables: Mapping[str, str] = NO_VARIABLES) -> TapeStore:
    from app.tape.store import TapeStore

    return TapeStore(settings.macros, settings.filters, variables)


def _check(name: str, shelf: TapeStore) -> int:
    from app.tape.load import unmet

    try:
        tape = shelf.given(name)
    except UsageError as error:
        print(error if error.placed else f"probedeck: {error}", file=sys.stderr)
        return error.exit_code
    missing = list(unmet(tape, VERSION))
    for place, reason in missing:
        print(f"{place.file}:{place.line}: {reason}", file=sys.stderr)
    if missing:
        return _MISSING
    print(f"{name}: {', '.join(_facts(tape))}")
    return 0


def _facts(tape: Tape) -> Iterator[str]:
    count = len(tape.steps)
    yield f"{count} step" if count == 1 else f"{count} steps"
    places = (step.place for step in tape.steps if step.instruction.writes)
    writing = dict.fromkeys(f"{place.file}:{place.line}" for place in places)
    if writing:
        yield f"changes what runs at {', '.join(writing)}: needs --allow-write"
