"""Options for tapes and commands at the start of a console."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from app import VERSION
from app.config.model import Settings
from bpf.errors import UsageError
from probes.config.options import setting

if TYPE_CHECKING:
    # Lazy: the first paint needs no tapes.
    from app.tape.model import Tape

TAPES = "Tapes"
"""Group of options."""


@dataclass(frozen=True, slots=True)
class Startup:
    """The tape at the start, and the rights of tapes."""

    tape: Tape | None = None
    allow_write: bool = False
    shown: bool = True
    """The console has a terminal: it sets the screen's size, and the console outlives the tape."""

    variables: Mapping[str, str] = field(default_factory=dict)
    """Values of `$NAME`, also for tapes that are played later."""
    updates_golden: bool = False
    """`Compare` writes its files."""
    junit: str = ""
    """File for the outcome of each step."""

    def check(self) -> None:
        """Raise StepError for an unmet requirement, or a step without the right to change."""
        if self.tape is None:
            return
        from app.tape.load import refused, unmet
        from app.tape.model import StepError

        for place, reason in unmet(self.tape, VERSION):
            raise StepError(place, reason)
        for step in self.tape.steps:
            if step.instruction.writes and not self.allow_write:
                raise StepError(step.place, refused(step.text))


NOTHING = Startup()


@dataclass(frozen=True, slots=True)
class TapeOptions:
    """Options of tapes."""

    tape: list[str] = setting(
        TAPES,
        [],
        "Play a tape first: a file, a name of tape list, or - for standard input. "
        "With --headless the screen is not shown, the run ends with the tape, and tables need "
        "-o DIR.",
        "FILE",
        flags=("--tape", "--macro"),
    )
    execute: list[str] = setting(
        TAPES,
        [],
        "Run a console command at start, such as 'flow.sort bytes'.",
        "COMMAND",
        flags=("--exec",),
    )
    allow_write: bool = setting(
        TAPES, False, "Let tapes change what runs.", flags=("--allow-write",)
    )

    variable: list[str] = setting(
        TAPES, [], "A value for $NAME in tapes.", "NAME=VALUE", flags=("--set",)
    )
    update_golden: bool = setting(
        TAPES, False, "Let Compare in tapes write its files.", flags=("--update-golden",)
    )
    junit: str = setting(
        TAPES, "", "Write the outcome of each step of the tape as JUnit XML.", "FILE"
    )

    def startup(self, settings: Settings, *, shown: bool) -> Startup:
        """Return the tape to play. Raises UsageError for mistakes, and the errors of `check`."""
        variables: Mapping[str, str] = {}
        if self.variable:
            # Not by other runs: it loads the console's commands and tables.
            from app.tape.line import variables_of

            variables = variables_of(self.variable)
        rights = Startup(None, self.allow_write, shown, variables, self.update_golden, self.junit)
        if not (self.tape or self.execute):
            if self.junit:
                raise UsageError("--junit needs a tape", hint="give --tape or --exec")
            return rights
        from app.tape.load import joined, of_commands
        from app.tape.store import TapeStore

        store = TapeStore(settings.macros, settings.filters, variables)
        tapes = [store.given(name) for name in self.tape]
        tapes += [of_commands(self.execute, settings.filters)] if self.execute else []
        startup = replace(rights, tape=joined(tapes))
        startup.check()
        return startup
