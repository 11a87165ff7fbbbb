"""Screen 5: the programs of every probe, edited, checked, swapped in and rolled back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from textual import events, on
from textual.app import SuspendNotSupported
from textual.timer import Timer
from textual.widgets import TextArea

from app.commands.remote import add_probe
from app.console.screen import counted
from app.console.screens.programs.files import edit_outside, write_source
from app.console.screens.programs.model import Place, Slot, Verdict, examine, loses, place_of
from app.console.screens.programs.panels import Panel, Spot
from app.console.screens.programs.view import ProgramView
from app.console.tasks import Task
from app.files import expand
from bpf.errors import ProbedeckError, UsageError, did_you_mean
from probes.config.model import ProbeConfig
from probes.control.trials import CutError
from probes.control_plane import Cost, ProbeInfo, Replacement
from probes.snapshot import Snapshot
from widgets.editor import CodeEditor
from widgets.format import duration
from widgets.table.table import VirtualTable

_PAUSE = 0.4
"""Seconds after the last key until a source is checked without being asked."""
_LOSES = "the report says what is lost"
_CUTS = "no test frame passes"


class ProgramsScreen(ProgramView):
    """What an operator can do to the programs."""

    MODE = "programs"

    def __init__(self) -> None:
        super().__init__()
        self._pause: Timer | None = None
        self._check_task = Task("")
        """The last check."""
        self._told_to: ProbeConfig | None = None
        """What the operator asked to have checked; others are checked while he types."""
        self._swap_after: ProbeConfig | None = None
        """What is swapped in as soon as it is checked."""
        self._again = False
        """Whether the source was edited while another was checked."""
        self._warned: object = None
        """What a second press of the same key does."""

    def offers(self, command: str) -> bool:
        if command == "table.select":
            return not isinstance(self.focused, CodeEditor)
        if command == "program.leave":
            leads = not self.console.time.is_live or self.console.tasks.can_cancel
            return leads or not self.listing.has_focus
        # Nothing here is a view of packets that could be frozen.
        return command != "view.pause" or self.console.time.paused

    # Checking

    def _check(self, *, told: bool = False) -> None:
        if self._slot is None:
            return
        config = self.model.edited(self._slot.probe)
        if told:
            self._told_to = config
            self._check_task.asked = True
        if self._checking is not None:
            self._again = True
            return
        self._again = False
        self._checking = config
        self._show_editing()
        ask = partial(examine, self.console.plane, config)
        self._check_task = Task(f"checking {config.name}", asked=config == self._told_to)
        self.run_in_worker(ask, self._checked, self._unchecked, task=self._check_task)

    def _checked(self, verdict: Verdict) -> None:
        self._checking = None
        name = verdict.config.name
        if name in self.model.infos:
            self.model.verdicts[name] = verdict
            if verdict.config == self._told_to:
                self._told_to = None
                if verdict.check is None:
                    self._choose(Panel.PROBLEMS)
            if verdict.config == self._swap_after:
                self._swap_after = None
                self._swap(verdict)
        if self._again:
            self._check()
        self._show_marks()
        self._show_editing()
        self._show_panel()

    def _unchecked(self, error: ProbedeckError) -> None:
        self._checking = self._told_to = self._swap_after = None
        self.console.complain(error)
        self._show_all()
        self._poll()

    @on(TextArea.Changed)
    def _edited(self, event: TextArea.Changed) -> None:
        slot = next((s for s, editor in self._editors.items() if editor is event.text_area), None)
        if slot is None or self.model.drafts[slot].text == event.text_area.text:
            return
        draft = self.model.drafts[slot]
        before = draft.modified
        draft.text = event.text_area.text
        self._forget_warning()
        if draft.modified != before:
            self._show_listing()
        self._show_editing()
        if self._panel is Panel.DIFF:
            self._show_panel()
        if self._pause is not None:
            self._pause.stop()
        self._pause = self.set_timer(_PAUSE, self._check)

    def do_program_compile(self) -> None:
        self._check(told=True)

    # Changes

    def do_program_swap(self) -> None:
        if self._slot is None:
            return
        name = self._slot.probe
        if not self.model.modified(name):
            self._refuse(f"{name} runs as it is shown: there is nothing to swap in")
        elif (verdict := self.model.verdict(name)) is not None:
            self._swap(verdict)
        else:
            self._swap_after = self.model.edited(name)
            self._check(told=True)

    def _swap(self, verdict: Verdict) -> None:
        config = verdict.config
        if verdict.check is None:
            self._choose(Panel.PROBLEMS)
            self._refuse(f"{config.name} is not swapped: {verdict.diagnostics[0]}")
        elif not loses(verdict.check) or self._meant(config, self._warning(verdict.check.cuts)):
            force = bool(verdict.check.cuts)
            ask = partial(self.console.plane.replace, config, force=force)
            self._do(f"swapping {config.name}", ask, partial(self._replaced, config.name))
        else:
            self._choose(Panel.REPORT)

    def _target(self, probe: str = "") -> str:
        """The probe of a name, or the one under the cursor. UsageError where there is none."""
        if not probe:
            if self._slot is None:
                raise UsageError("there is no probe here")
            return self._slot.probe
        if probe not in self.model.infos:
            hint = did_you_mean(probe, self.model.infos)
            raise UsageError(f"there is no probe {probe!r}", hint=hint)
        return probe

    def do_program_rollback(self, probe: str = "") -> None:
        name = self._target(probe)
        ask = partial(self.console.plane.roll_back, name)
        self._do(f"rolling back {name}", ask, partial(self._replaced, name))

    def _replaced(self, name: str, made: Replacement) -> None:
        self._say(f"generation {made.generation} of {name} runs; it took {duration(made.seconds)}")

    def do_program_cost(self, probe: str = "") -> None:
        name = self._target(probe)
        ask = partial(self.console.plane.cost, name)
        self._do(f"measuring {name}", ask, partial(self._measured, name))

    def _measured(self, name: str, costs: Sequence[Cost]) -> None:
        self.model.measured(name, costs)

    def do_probe_add(self, file: str = "") -> None:
        if not file:
            self.prompt.ask("probe.add", "Add a probe from", "counter.toml", "")
            return
        what = ("add", file)
        force = self._warned == what
        self._forget_warning()

        def add() -> ProbeInfo | CutError:
            try:
                return add_probe(self.console.plane, file, force=force)
            except CutError as error:
                return error

        def added(made: ProbeInfo | CutError) -> None:
            if isinstance(made, CutError):
                self._meant(what, f"{made.message}; adding it again does it")
                self._refuse(self._notice)
            else:
                self._say(f"{made.name} runs")

        self._do(f"adding {Path(file).name}", add, added)

    def do_probe_remove(self, probe: str = "") -> None:
        name = self._target(probe)
        edits = " and loses its edits" if self.model.modified(name) else ""
        key = self.console.key_of("probe.remove")
        if name in self.model.removed:
            self.model.forget(name)
            self._follow()
            self._show_all()
        # Who says which one means it.
        elif probe or self._meant(("remove", name), f"{key} again removes {name}{edits}"):
            ask = partial(self.console.plane.remove, name)
            self._do(f"removing {name}", ask, partial(self._removed, name))

    def _removed(self, name: str, last: Sequence[Snapshot]) -> None:
        self.model.forget(name)
        self._say(f"{name} is removed; {counted(len(last), 'table')} published")

    def do_probe_export(self, probe: str = "") -> None:
        name = self._target(probe)
        ask = partial(self.console.plane.export, name)
        self._do(f"exporting {name}", ask, partial(self._exported, name))

    def _exported(self, name: str, tables: Sequence[Snapshot]) -> None:
        window = f"window {tables[0].window} of {name}" if tables else name
        rows = counted(sum(len(table.rows) for table in tables), "row")
        self._say(f"{window}: {counted(len(tables), 'table')}, {rows}")

    # The source

    def do_program_save(self, file: str = "", overwrite: str = "") -> None:
        if self._slot is None:
            raise UsageError("there is no source to save")
        if not file:
            self.prompt.ask("program.save", "Write to", "a file", self._slot.file)
            return
        path, draft = expand(file), self.model.drafts[self._slot]
        overwriting = self.console.overwriting
        prompt = self.prompt.is_open
        overwriting.check(path, overwrite, prompt=prompt, source=self._slot)
        text = draft.text if draft.modified else draft.running
        write_source(path, text)
        overwriting.wrote(path, self._slot)
        draft.saved = draft.text
        self._say(f"{path} is written")
        self._show_editing()

    def do_program_external(self) -> None:
        if self._slot is None or (editor := self.editor) is None:
            return
        try:
            with self.app.suspend():
                text = edit_outside(self._slot.file, editor.text)
        except SuspendNotSupported:
            self._refuse("this terminal cannot be handed to another editor")
        except ProbedeckError as error:
            self.console.complain(error)
        else:
            if text != editor.text:
                editor.put(text)

    def do_program_revert(self) -> None:
        if self._slot is not None and (editor := self.editor) is not None:
            editor.put(self.model.drafts[self._slot].running)

    def do_program_next_direction(self) -> None:
        if self._slot is None:
            return
        others = [s for s in self.model.slots() if s.probe == self._slot.probe and s != self._slot]
        if others:
            self._turn_to(others[0])
        else:
            self._refuse(f"{self._slot.probe} has no other direction")

    def do_program_next_error(self) -> None:
        if self._slot is None or (editor := self.editor) is None:
            return
        verdict = self.model.verdicts.get(self._slot.probe)
        diagnostics = verdict.diagnostics if verdict else ()
        errors = [d for d in diagnostics if d.severity == "error"]
        shown = errors or [d for d in diagnostics if d.severity == "warning"]
        places = [place for d in shown if (place := place_of(d, self._slot))]
        if not places:
            self._choose(Panel.PROBLEMS)
            self._refuse("no problem with a place in this source")
            return
        row, column = editor.cursor_location
        here = Place(self._slot.side, row + 1, column + 1)
        order = sorted(set(places), key=lambda place: (place.side != here.side, place))
        after = (p for p in order if p.side != here.side or p[1:] > here[1:])
        self._go_to(next(after, order[0]))

    def _turn_to(self, slot: Slot) -> None:
        self._open(slot)
        index = self.listing.source.index(slot)
        if index is not None:
            self.listing.move_to(index)
        self._show_editing()
        self._show_panel()

    def _go_to(self, place: Place) -> None:
        assert self._slot is not None
        slot = Slot(self._slot.probe, place.side)
        if slot != self._slot and slot in self.model.slots():
            self._turn_to(slot)
        if (editor := self.editor) is not None:
            editor.go_to(place.line - 1, max(0, place.column - 1))
            self.set_focus(editor)

    # Moving about

    do_program_sort = ProgramView.sort_rows
    do_program_reverse = ProgramView.reverse_rows

    def do_program_edit(self, probe: str = "") -> None:
        if probe:
            name = self._target(probe)
            self._turn_to(next(slot for slot in self.model.slots() if slot.probe == name))
        self.set_focus(self.editor)

    def do_program_leave(self) -> None:
        self._forget_warning()
        if self.focused is self.listing:
            self.console.time.leave()
        self.set_focus(self.listing)

    def do_program_problems(self) -> None:
        self._choose(Panel.PROBLEMS)

    def do_program_log(self) -> None:
        self._whole_log = self._panel is Panel.LOG and not self._whole_log
        self._choose(Panel.LOG)

    def do_program_diff(self) -> None:
        self._choose(Panel.DIFF)

    def do_program_report(self) -> None:
        self._choose(Panel.REPORT)

    def do_program_metrics(self) -> None:
        self._choose(Panel.METRICS)

    def do_program_events(self) -> None:
        self._choose(Panel.EVENTS)

    def do_program_panel(self) -> None:
        panels = list(Panel)
        self._choose(panels[(panels.index(self._panel) + 1) % len(panels)])

    @on(VirtualTable.RowHighlighted, "#programs")
    def _row_highlighted(self, event: VirtualTable.RowHighlighted) -> None:
        slot = event.key
        if isinstance(slot, Slot) and slot != self._slot and self.model.direction(slot):
            self._forget_warning()
            self._open(slot)
            self._show_editing()
            self._show_panel()

    @on(VirtualTable.RowSelected, "#programs")
    def _row_selected(self) -> None:
        self.do_program_edit()

    @on(VirtualTable.RowSelected, "#panel")
    def _spot_selected(self, event: VirtualTable.RowSelected) -> None:
        if isinstance(event.key, Spot) and event.key.place is not None:
            self._go_to(event.key.place)

    @on(TextArea.SelectionChanged)
    def _cursor_moved(self) -> None:
        self._show_editing()

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        self.set_class(isinstance(event.widget, CodeEditor), "-editing")
        self.refresh_bindings()
        self._show_editing()

    # Words

    def _meant(self, what: object, text: str) -> bool:
        """Whether this is asked for again; at the first time `text` says what would come of it."""
        again = self._warned == what
        self._warned, self._notice = (None, "") if again else (what, text)
        self._show_editing()
        return again

    def _warning(self, cuts: Sequence[str]) -> str:
        """Text of the notice: the reason for the warning, and that `program.swap` again swaps."""
        return f"{_CUTS if cuts else _LOSES}; {self.console.key_of('program.swap')} again swaps"

    def _forget_warning(self) -> None:
        self._warned, self._notice = None, ""

    def _say(self, text: str) -> None:
        self.notify(text, markup=False)

    def _refuse(self, text: str) -> None:
        self.console.complain(UsageError(text))
