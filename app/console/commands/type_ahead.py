"""Keys that arrive faster than they are handled: on a slow link, by a paste, or typed blindly."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Any

from textual import events
from textual.app import App, ScreenStackError
from textual.widget import Widget

from app.commands.keys import CHARACTERS

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
