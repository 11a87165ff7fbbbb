"""One rule for all commands that write a file: they replace no other file unasked."""

from __future__ import annotations

from pathlib import Path

from app.commands.registry import OVERWRITE
from app.files import exists
from bpf.errors import UsageError


class Overwriting:
    """Decides whether a file may be replaced.

    A prompt asks the user: enter again replaces the file. A whole command, as keys and tapes give
    it, must say `overwrite`. A source replaces the file that it wrote last.
    """

    def __init__(self) -> None:
        self._asked: Path | None = None
        """The file about which a prompt asked last."""
        self._written: dict[Path, object] = {}
        """The source of each file that was written."""

    def check(self, path: Path, told: str, *, prompt: bool, source: object = None) -> None:
        """Raise UsageError if the file must not be replaced yet. `told` is the word after the
        file. `prompt` says whether the command comes from one. A table has the source None."""
        place, again = path.absolute(), self._asked
        self._asked = None
        own = source is not None and self._written.get(place) == source
        if told == OVERWRITE or own or not exists(path):
            return
        if not prompt:
            hint = f"{OVERWRITE} after the file's name replaces it"
            raise UsageError(f"{path} exists and is left alone", hint=hint)
        if again != place:
            self._asked = place
            raise UsageError(f"there is one already, which enter again overwrites: {path}")

    def wrote(self, path: Path, source: object) -> None:
        """Remember which source wrote a file."""
        self._written[path.absolute()] = source
