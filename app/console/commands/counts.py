"""Numbers before keys: `'5j` goes five rows down."""

from __future__ import annotations

from collections.abc import Callable

from textual import events

from app.commands import REGISTRY, ParameterKind
from bpf.errors import UsageError
from widgets.status import StatusItem
from widgets.tones import Tone

_DIGITS = 6


class Counts:
    """The number that the user types for the next key.

    Digits turn to the screens, so another key begins a number.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        """`changed` brings the status strip up to date."""
        self._changed = changed
        self._digits: str | None = None
        """The digits until now; None: no number is typed."""
        self._used = False
        """Whether the key that gets the number was pressed."""

    def do_app_count(self) -> None:
        self._set("")

    def takes(self, event: events.Event) -> bool:
        """Take a key that belongs to the number; Escape forgets the number."""
        if self._digits is None or not isinstance(event, events.Key) or event.is_forwarded:
            return False
        if self._used or event.key == "escape":
            forgotten, self._used = not self._used, False
            self._set(None)
            return forgotten
        if event.key.isdecimal() and event.key.isascii() and len(self._digits) < _DIGITS:
            self._set(self._digits + event.key)
            return True
        self._used = True
        return False

    def applied(self, lines: str) -> str:
        """Return the command of a key with the number. Raises UsageError if it takes none."""
        digits = self._digits
        if digits is None or not self._used:
            return lines
        self._used = False
        self._set(None)
        command = REGISTRY.get(lines)
        if command is None or not any(
            each.kind is ParameterKind.COUNT for each in command.parameters[:1]
        ):
            hint = "j k g G, pgup pgdn and [ ] take one"
            raise UsageError(f"this key takes no number {digits}", hint=hint)
        return f"{lines} {digits}" if digits else lines

    def status_items(self) -> list[StatusItem]:
        """The number in the status strip, while the user types it."""
        if self._digits is None:
            return []
        return [StatusItem(f"{self._digits}_", Tone.ACCENT, priority=1, label="number")]

    def _set(self, digits: str | None) -> None:
        self._digits = digits
        self._changed()
