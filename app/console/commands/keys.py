"""Keys of the console: bindings, numbers before keys, and keys that wait for others."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from textual import events
from textual.app import App, ScreenStackError
from textual.binding import Binding, BindingsMap
from textual.widget import Widget

from app.commands.keys import CHARACTERS
from app.commands.model import ParameterKind
from app.commands.registry import REGISTRY
from app.config.keymap import Keymap
from bpf.errors import UsageError
from widgets.status import StatusItem
from widgets.terminal.keybar import Weight
from widgets.tones import Tone

_WEIGHTS = {
    "help.keys": Weight.KEPT, "app.quit": Weight.KEPT, "view.pause": Weight.USUAL,
    "app.palette": Weight.SPARE,
}  # fmt: skip


def weight(action: str) -> Weight:
    """Return the weight of a binding's action in the footer."""
    command = action.removeprefix("app.command('").removesuffix("')")
    usual = Weight.SCREEN if command.startswith("view.") else Weight.OWN
    return _WEIGHTS.get(command, usual)


def is_step_in_time(action: str) -> bool:
    """Whether the action of a binding is a step backwards or forwards in time."""
    return action.startswith(("app.command('time.back", "app.command('time.forward"))


def bindings(keymap: Keymap, screen: str = "") -> BindingsMap:
    """Return the keys of a screen, or of all screens; the footer shows the first of a command."""
    made, named = [], set()
    for bound in keymap.of(screen):
        footer, asks = "", False
        if (command := bound.command) is not None:
            footer, asks = command.footer if command.name not in named else "", command.asks
            named.add(command.name)
        words = footer or bound.title
        # Textual passes only one of a variable number of parameters.
        name, given = ("press", ",".join(bound.keys)) if bound.keys else ("command", bound.lines)
        text = given if isinstance(given, str) else "\n".join(given)
        action = f"app.{name}({text!r})"
        made.append(Binding(bound.key, action, words, show=bool(footer), priority=asks))
    return BindingsMap(made)


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


_PATIENCE_S = 3.0
"""Seconds that a key may delay the next one: a key that ends the console must come through. Other
keys must not pass a key whose prompt opens slowly: without a prompt, their text would be lost."""
_GLANCE_S = 0.05
"""Seconds between two looks at whether a widget still runs."""


class TypeAhead:
    """Hands each key to the app when the last one is handled.

    Textual hands a key at once to the widget with the focus. Of several keys that arrive together
    that widget would get all, before the first has opened a prompt or turned to another screen.
    """

    def __init__(self, app: App[Any]) -> None:
        self._app = app
        self._ahead: deque[events.Event] = deque()
        self._turn: events.Event | None = None
        """The event of the queue that is being handed on."""
        self._first: events.Event | None = None
        """The event that is handled without having been in the queue."""
        self._handing: asyncio.Task[None] | None = None

    def next(self, event: events.Event) -> events.Event | None:
        """Return the event to handle now; None: it is queued. Call `handled` afterwards."""
        typed = isinstance(event, events.Key | events.Paste) and not event.is_forwarded
        if not typed or event is self._turn:
            return event
        if self._handing is not None:
            self._ahead.append(event)
            return None
        self._first, *rest = self._split(event)
        self._ahead.extend(rest)
        return self._first

    def handled(self, event: events.Event) -> None:
        """Begin to hand on the queue, if the event did not come from it."""
        if event is self._first:
            self._first = None
            self._handing = asyncio.create_task(self._hand_on())

    async def _hand_on(self) -> None:
        try:
            await self._settled()
            while self._ahead:
                self._turn, *rest = self._split(self._ahead.popleft())
                self._ahead.extendleft(reversed(rest))
                self._app.post_message(self._turn)
                await self._settled()
        except ScreenStackError:
            pass  # The app has ended.
        finally:
            self._handing = None

    def _split(self, event: events.Event) -> list[events.Event]:
        """Split `alt` and a key into Escape and the key, unless a widget or a binding uses `alt`.

        A slow link may bring Escape and the next key together, which looks like `alt`.
        """
        if not (isinstance(event, events.Key) and event.key.startswith("alt+") and event.character):
            return [event]
        key, screen = event.character, self._app.screen
        typing = screen.focused is not None and screen.focused.check_consume_key(key, key)
        if typing or event.key in screen.active_bindings:
            return [event]
        name = key if key.isalnum() else event.key.removeprefix("alt+")
        return [events.Key("escape", "\x1b"), events.Key(name, key)]

    async def _settled(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self.settle(), _PATIENCE_S)

    async def press(self, keys: str) -> None:
        """Press keys, separated by commas, each when the last one is handled."""
        for key in keys.split(","):
            character = CHARACTERS.get(key, key if len(key) == 1 else None)
            self._app.post_message(events.Key(key, character))
            await self.settle()

    async def settle(self) -> None:
        """Wait until the focused widget and all above it have handled a key, and until the widget
        to which that moved the focus has, too."""
        done: Widget | None = None
        while (focused := self._app.screen.focused or self._app.screen) is not done:
            done = focused
            for node in (self._app, *focused.ancestors_with_self):
                handled = asyncio.Event()
                waits = node.call_later(handled.set)
                # A widget that is removed meanwhile handles nothing any more.
                while waits and node.is_running and not handled.is_set():
                    with suppress(TimeoutError):
                        await asyncio.wait_for(handled.wait(), _GLANCE_S)
