"""Commands on the open source of screen 5, and moves between sources, problems and panels."""

from __future__ import annotations

from textual.app import SuspendNotSupported

from app.console.screens.programs.changes import ProbeChanges, Programming
from app.console.screens.programs.model import Place, Slot
from app.console.screens.programs.panels import Panel
from app.console.screens.programs.sources import edit_outside, write_source
from app.files import expand
from bpf.errors import ProbedeckError, UsageError


class SourceCommands:
    """Commands on the open source; its `do_` methods are commands of the screen."""

    def __init__(self, screen: Programming, changes: ProbeChanges) -> None:
        self._screen, self._model, self._sources = screen, screen.model, screen.sources
        self._changes = changes

    def do_program_save(self, file: str = "", overwrite: str = "") -> None:
        if (slot := self._sources.slot) is None:
            raise UsageError("there is no source to save")
        prompt = self._screen.prompt
        if not file:
            prompt.ask("program.save", "Write to", "a file", slot.file)
            return
        path, draft = expand(file), self._model.drafts[slot]
        files = self._screen.console.overwriting
        files.check(path, overwrite, prompt=prompt.is_open, source=slot)
        write_source(path, draft.text if draft.modified else draft.running)
        files.wrote(path, slot)
        draft.saved = draft.text
        self._changes.say(f"{path} is written")
        self._screen.show_editing()

    def do_program_external(self) -> None:
        if (slot := self._sources.slot) is None or (editor := self._sources.editor) is None:
            return
        try:
            with self._screen.app.suspend():
                text = edit_outside(slot.file, editor.text)
        except SuspendNotSupported:
            self._changes.refuse("this terminal cannot be handed to another editor")
        except ProbedeckError as error:
            self._screen.console.complain(error)
        else:
            if text != editor.text:
                editor.put(text)

    def do_program_revert(self) -> None:
        if (slot := self._sources.slot) is not None and self._sources.editor is not None:
            self._sources.editor.put(self._model.drafts[slot].running)

    def do_program_host(self, host: str = "") -> None:
        """Turn to the programs of a chosen host, or of the next one."""
        console = self._screen.console
        if not console.hosts.several:
            raise UsageError("a single host is shown", hint="m on screen 7 chooses more")
        names = console.hosts.planes.chosen
        name = host or names[(names.index(console.hosts.current) + 1) % len(names)]
        self._screen.app.call_later(console.action_command, f"host.programs {name}")

    def do_program_edit(self, probe: str = "") -> None:
        if probe:
            name = self._model.target(probe, self._sources.slot)
            self._turn_to(next(slot for slot in self._model.slots() if slot.probe == name))
        self._screen.set_focus(self._sources.editor)

    def do_program_next_direction(self) -> None:
        if (slot := self._sources.slot) is None:
            return
        others = [each for each in self._model.slots() if each.probe == slot.probe and each != slot]
        if others:
            self._turn_to(others[0])
        else:
            self._changes.refuse(f"{slot.probe} has no other direction")

    def do_program_next_error(self) -> None:
        if (slot := self._sources.slot) is None or (editor := self._sources.editor) is None:
            return
        row, column = editor.cursor_location
        here = Place(slot.side, row + 1, column + 1)
        if (place := self._model.next_problem(slot, here)) is not None:
            self.go_to(place)
        else:
            self._screen.choose(Panel.PROBLEMS)
            self._changes.refuse("no problem with a place in this source")

    def do_program_panel(self) -> None:
        chosen = self._screen.source_panel.chosen
        beside = self._screen.live_maps.beside
        panels = [each for each in Panel if each is not Panel.MAPS or not beside]
        self._screen.choose(
            panels[(panels.index(chosen) + 1) % len(panels) if chosen in panels else 0]
        )

    def _turn_to(self, slot: Slot) -> None:
        self._sources.open(slot)
        listing = self._screen.listing
        if (index := listing.source.index(slot)) is not None:
            listing.move_to(index)
        self._screen.show_source()

    def go_to(self, place: Place) -> None:
        """Put the cursor on a place of the probe's sources."""
        assert self._sources.slot is not None
        slot = Slot(self._sources.slot.probe, place.side)
        if slot != self._sources.slot and slot in self._model.slots():
            self._turn_to(slot)
        if (editor := self._sources.editor) is not None:
            editor.go_to(place.line - 1, max(0, place.column - 1))
            self._screen.set_focus(editor)
