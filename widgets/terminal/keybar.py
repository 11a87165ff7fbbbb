"""A footer that leaves out keys that do not fit instead of cutting them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

from rich.cells import cell_len
from textual import events
from textual.app import ComposeResult
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Footer
from textual.widgets._footer import FooterKey


class FooterEntry(NamedTuple):
    """A key of the footer."""

    key: str
    name: str
    """Text of the key."""
    words: str
    action: str
    enabled: bool = True


class Weight(IntEnum):
    """Weight of an entry: a short line leaves out the larger ones first."""

    KEPT = 0
    OWN = 1
    """A key of the screen in front."""
    USUAL = 2
    SPARE = 3
    SCREEN = 4
    """A key that turns to a screen; a short line names all such keys together."""


def is_key(widget: Widget | None) -> bool:
    """Whether a widget is a key of the footer; it may have been removed since."""
    return isinstance(widget, FooterKey)


class KeyBar(Footer):
    """Textual's footer; on a short line its keys are closer, and fewer."""

    def __init__(
        self, weight: Callable[[str], Weight], is_hidden: Callable[[str], bool] = lambda _: False
    ) -> None:
        """`weight` returns the weight of an action, `is_hidden` whether its key works without being
        shown now."""
        super().__init__(show_command_palette=False)
        self._weight, self._is_hidden = weight, is_hidden
        self._shown: tuple[int, list[FooterEntry]] = (0, [])
        """The width and the keys of the last `compose`."""
        self._mounted = self._shown

    def compose(self) -> ComposeResult:
        if not self._bindings_ready:
            return
        width, keys = self._shown = (self.size.width, self._keys())
        close = _cells(keys, 2) > width
        if close:
            keys = shortened(keys, self._weight, width)
        self.set_reactive(Footer.compact, close)
        self.set_class(close, "-compact")
        for key, name, words, action, enabled in keys:
            look = "-compact" if close else ""
            made = FooterKey(key, name, words, action, disabled=not enabled, classes=look)
            # Set at once: a later class would restyle each key.
            made.set_reactive(FooterKey.compact, close)
            yield made

    @property
    def is_current(self) -> bool:
        """Whether the drawn keys are those of now."""
        drawn = all(each.size.width for each in self.children)
        return drawn and self._mounted == self._shown == (self.size.width, self._keys())

    async def recompose(self) -> None:
        await super().recompose()
        self._mounted = self._shown

    def bindings_changed(self, screen: Screen[object]) -> None:
        """Show the present keys if they changed."""
        if not self._bindings_ready or self._shown != (self.size.width, self._keys()):
            super().bindings_changed(screen)

    def on_resize(self, event: events.Resize) -> None:
        if event.size.width != self._shown[0]:
            self.call_after_refresh(self.recompose)

    def _keys(self) -> list[FooterEntry]:
        name = self.app.get_key_display
        return [
            FooterEntry(binding.key, name(binding), binding.description, binding.action, enabled)
            for _, binding, enabled, _ in self.screen.active_bindings.values()
            if binding.show and not self._is_hidden(binding.action)
        ]


def shortened(
    keys: list[FooterEntry], weight: Callable[[str], Weight], width: int
) -> list[FooterEntry]:
    """Return the keys that fit in `width` cells with a blank between them; all have their words."""

    def variants() -> Iterator[list[FooterEntry]]:
        yield keys
        yield [key for key in keys if weight(key.action) is not Weight.SPARE]
        left = _screens_together(keys, weight)
        yield left
        for heavy in (Weight.SPARE, Weight.USUAL, Weight.SCREEN, Weight.OWN):
            for key in [key for key in left if weight(key.action) is heavy][::-1]:
                left = [other for other in left if other is not key]
                yield left

    found = list(variants())
    return next((keys for keys in found if _cells(keys, 1) <= width), found[-1])


def _screens_together(
    keys: list[FooterEntry], weight: Callable[[str], Weight]
) -> list[FooterEntry]:
    """Name all keys that turn to screens by one entry, `1-6 Screens`."""
    screens = [key for key in keys if weight(key.action) is Weight.SCREEN]
    if len(screens) < 2 or not all(key.name.isdigit() for key in screens):
        return keys
    first, last = screens[0], screens[-1]
    together = first._replace(name=f"{first.name}-{last.name}", words="Screens")
    return [together if key is first else key for key in keys if key not in screens[1:]]


def _cells(keys: Iterable[FooterEntry], around: int) -> int:
    """Return the cells of keys with so many blanks around each; the last blank may be cut."""
    return sum(cell_len(f"{key.name} {key.words}".rstrip()) + around for key in keys) - 1
