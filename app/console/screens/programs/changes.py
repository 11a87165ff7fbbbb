"""Changes of running probes on screen 5, and the confirmation of those that lose something."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from app.commands.remote import add_probe
from app.console.polling import PollingScreen
from app.console.screen import counted
from app.console.screens.programs.model import Programs, Verdict, loses
from app.console.screens.programs.panels import Panel
from bpf.errors import UsageError
from probes.control.trials import CutError
from probes.control_plane import ProbeInfo, Replacement
from probes.snapshot import Snapshot
from widgets.format import duration

_LOSES = "the report says what is lost"
_CUTS = "no test frame passes"


class Confirmation:
    """Asks for a second press of a key before an action."""

    def __init__(self) -> None:
        self.notice = ""
        """What the second press would do, in words."""
        self._action: object = None

    def is_asked(self, action: object) -> bool:
        """Return whether the next press of the action's key confirms it."""
        return self._action == action

    def given(self, action: object, notice: str) -> bool:
        """Return whether the user repeats an action; the first time, keep the notice."""
        again = self.is_asked(action)
        self._action, self.notice = (None, "") if again else (action, notice)
        return again

    def forget(self) -> None:
        self._action, self.notice = None, ""


class ProbeChanges:
    """Makes changes by the control plane, one at a time, and says what they came to."""

    def __init__(
        self,
        screen: PollingScreen[Any],
        model: Programs,
        change: Callable[[str, Callable[[], Any], Callable[[Any], None]], None],
        choose: Callable[[Panel], None],
    ) -> None:
        """`change` makes a change with a title; `choose` turns to a panel."""
        self._screen, self._model = screen, model
        self._change, self._choose = change, choose
        self.confirmation = Confirmation()

    def swap(self, verdict: Verdict) -> None:
        """Swap a checked source in; ask first if the swap loses something."""
        config = verdict.config
        if verdict.check is None:
            self._choose(Panel.PROBLEMS)
            self.refuse(f"{config.name} is not swapped: {verdict.diagnostics[0]}")
            return
        force = bool(verdict.check.cuts)
        key = self._screen.console.key_of("program.swap")
        notice = f"{_CUTS if force else _LOSES}; {key} again swaps"
        if not loses(verdict.check) or self.confirmation.given(config, notice):
            ask = partial(self._screen.console.plane.replace, config, force=force)
            self._change(f"swapping {config.name}", ask, partial(self._replaced, config.name))
        else:
            self._choose(Panel.REPORT)

    def roll_back(self, name: str) -> None:
        """Bring the generation before back."""
        ask = partial(self._screen.console.plane.roll_back, name)
        self._change(f"rolling back {name}", ask, partial(self._replaced, name))

    def _replaced(self, name: str, made: Replacement) -> None:
        self.say(f"generation {made.generation} of {name} runs; it took {duration(made.seconds)}")

    def measure(self, name: str) -> None:
        ask = partial(self._screen.console.plane.cost, name)
        self._change(f"measuring {name}", ask, partial(self._model.measured, name))

    def add(self, file: str) -> None:
        action = ("add", file)
        force = self.confirmation.is_asked(action)
        self.confirmation.forget()

        def add() -> ProbeInfo | CutError:
            try:
                return add_probe(self._screen.console.plane, file, force=force)
            except CutError as error:
                return error

        def added(made: ProbeInfo | CutError) -> None:
            if isinstance(made, CutError):
                self.confirmation.given(action, f"{made.message}; adding it again does it")
                self.refuse(self.confirmation.notice)
            else:
                self.say(f"{made.name} runs")

        self._change(f"adding {Path(file).name}", add, added)

    def remove(self, name: str) -> None:
        ask = partial(self._screen.console.plane.remove, name)
        self._change(f"removing {name}", ask, partial(self._removed, name))

    def _removed(self, name: str, last: Sequence[Snapshot]) -> None:
        self._model.forget(name)
        self.say(f"{name} is removed; {counted(len(last), 'table')} published")

    def export(self, name: str) -> None:
        """End the window of a probe, and export its tables."""
        ask = partial(self._screen.console.plane.export, name)
        self._change(f"exporting {name}", ask, partial(self._exported, name))

    def _exported(self, name: str, tables: Sequence[Snapshot]) -> None:
        window = f"window {tables[0].window} of {name}" if tables else name
        rows = counted(sum(len(table.rows) for table in tables), "row")
        self.say(f"{window}: {counted(len(tables), 'table')}, {rows}")

    def say(self, text: str) -> None:
        self._screen.notify(text, markup=False)

    def refuse(self, text: str) -> None:
        self._screen.console.complain(UsageError(text))
