"""The editors of screen 5, one for each opened source, the user's own editor, and files."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from textual.containers import Vertical
from textual.widget import Widget

from app.console.screens.programs.model import Draft, Programs, Slot, place_of
from app.files import write_atomic
from bpf.errors import ProbedeckError
from widgets.editor import CodeEditor, Mark
from widgets.tones import Tone

_TONES = {"error": Tone.BAD, "warning": Tone.WARN}


class Sources(Vertical):
    """Editors, one of which is visible."""

    def __init__(self, model: Programs) -> None:
        super().__init__(id="editors")
        self._model = model
        self._editors: dict[Slot, CodeEditor] = {}
        self.slot: Slot | None = None
        """The visible source."""

    @property
    def editor(self) -> CodeEditor | None:
        return self._editors.get(self.slot) if self.slot else None

    @property
    def remark(self) -> str:
        """The first problem of the cursor's line; empty without one."""
        editor = self.editor
        marks = editor.marks.get(editor.cursor_location[0], ()) if editor is not None else ()
        return marks[0].text if marks else ""

    def slot_of(self, editor: Widget) -> Slot | None:
        """Return the source of an editor."""
        return next((slot for slot, each in self._editors.items() if each is editor), None)

    def open(self, slot: Slot) -> None:
        """Show a source; others keep their edits, cursors and histories."""
        self.slot = slot
        if slot not in self._editors:
            direction = self._model.direction(slot)
            assert direction is not None
            editor = self._editors[slot] = CodeEditor(direction.source)
            self._model.drafts[slot] = Draft(direction.source, editor.text, editor.text)
            self.mount(editor)
        for other, editor in self._editors.items():
            editor.display = other == slot
        self.show_marks()

    def follow(self) -> None:
        """Bring the editors into line with the running sources; edits stay."""
        for slot in [slot for slot in self._editors if slot not in self._model.drafts]:
            self._editors.pop(slot).remove()
        for slot, draft in self._model.drafts.items():
            direction = self._model.direction(slot)
            if direction is not None and direction.source != draft.running:
                was_modified = draft.modified
                draft.running = draft.loaded = direction.source
                if not was_modified:
                    self._editors[slot].put(draft.running)
                    draft.text = draft.loaded = self._editors[slot].text
                elif draft.text == draft.running:
                    draft.loaded = draft.text
        if self.slot not in self._model.slots():
            self.slot = None

    def show_marks(self) -> None:
        """Mark the problems of the last check in the editors of the probe."""
        verdict = self._model.verdicts.get(self.slot.probe) if self.slot else None
        if self.slot is None or verdict is None:
            return
        places = [(place_of(each, self.slot), each) for each in verdict.diagnostics]
        for slot, editor in self._editors.items():
            if slot.probe == self.slot.probe:
                editor.show_marks(
                    [
                        Mark(at.line - 1, at.column - 1, _TONES.get(each.severity, Tone.MUTED),
                             each.text)
                        for at, each in places
                        if at is not None and at.side == slot.side
                    ]
                )  # fmt: skip


def write_source(path: Path, text: str) -> None:
    """Replace a file by a source, all or nothing. Raises ProbedeckError."""
    try:
        write_atomic(path, [text.encode()])
    except (OSError, ValueError) as error:
        words = error.strerror if isinstance(error, OSError) else str(error)
        raise ProbedeckError(f"{path} is not written: {words}") from None


def edit_outside(name: str, text: str) -> str:
    """Return `text` as the user's editor leaves it; the editor has the terminal meanwhile.

    Raises ProbedeckError if no editor starts, if it fails, or if its file is unreadable.
    """
    command = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory(prefix="probedeck-") as directory:
        path = Path(directory, name)
        path.write_text(text, encoding="utf-8", newline="")
        try:
            subprocess.run([*shlex.split(command), str(path)], check=True, env=os.environ)
            with path.open(encoding="utf-8", newline="") as file:
                return file.read()
        except subprocess.CalledProcessError as error:
            raise ProbedeckError(
                f"{command} failed ({error.returncode}); nothing is changed"
            ) from None
        except (OSError, ValueError) as error:
            raise ProbedeckError(f"{command}: {error}", hint="set EDITOR to an editor") from None
