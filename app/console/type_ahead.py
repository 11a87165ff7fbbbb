"""Keys that come faster than they are handled, as on a slow link, by a paste, or typed blindly."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

from textual import events
from textual.app import ScreenStackError

from app.console.tapes.control import TapeApp

_PATIENCE_S = 0.5
"""So long a key may keep the next one waiting: one that ends the console must come through."""


class TypeAheadApp(TapeApp):
    """An app that hands on each key when what the last one came to is done.

    Textual hands a key to what has the focus at once: where several arrive together, that has it
    before the first of them has opened a prompt or turned to another screen.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ahead: deque[events.Event] = deque()
        self._turn: events.Event | None = None
        """What is being handed on."""
        self._handing: asyncio.Task[None] | None = None

    async def on_event(self, event: events.Event) -> None:
        typed = isinstance(event, events.Key | events.Paste) and not event.is_forwarded
        # A tape waits for its keys by itself.
        if not typed or self.playing or event is self._turn:
            await super().on_event(event)
        elif self._handing is not None:
            self._ahead.append(event)
        else:
            first, *rest = self._apart(event)
            self._ahead.extend(rest)
            await super().on_event(first)
            self._handing = asyncio.create_task(self._hand_on())

    async def _hand_on(self) -> None:
        try:
            await self._handled()
            while self._ahead:
                self._turn, *rest = self._apart(self._ahead.popleft())
                self._ahead.extendleft(reversed(rest))
                self.post_message(self._turn)
                await self._handled()
        except ScreenStackError:
            pass  # It has ended.
        finally:
            self._handing = None

    def _apart(self, event: events.Event) -> list[events.Event]:
        """Escape and the key after it, which a slow link may bring together: that looks like alt,
        and is taken for it where somebody has a use for that."""
        if not (isinstance(event, events.Key) and event.key.startswith("alt+") and event.character):
            return [event]
        key, focused = event.character, self.screen.focused
        typing = focused is not None and focused.check_consume_key(key, key)
        if typing or event.key in self.screen.active_bindings:
            return [event]
        name = key if key.isalnum() else event.key.removeprefix("alt+")
        return [events.Key("escape", "\x1b"), events.Key(name, key)]

    async def _handled(self) -> None:
        # What is taken off the screen meanwhile handles nothing any more.
        with suppress(TimeoutError):
            await asyncio.wait_for(self.settle(), _PATIENCE_S)
