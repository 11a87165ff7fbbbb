"""A footer that leaves out keys that do not fit instead of cutting them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text
from textual import events
from textual.screen import Screen
from textual.widget import Widget


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


class KeyBar(Widget):
    """A footer as Textual's, in one piece: a widget for each key took two thirds of a change of
    screens. On a short line its keys are closer, and fewer.
    """

    COMPONENT_CLASSES = {"keybar--key", "keybar--words", "keybar--hover"}
    DEFAULT_CSS = """
    KeyBar {
        background: $footer-background;
        color: $footer-foreground;
        dock: bottom;
        height: 1;
        & > .keybar--key {
            background: $footer-key-background;
            color: $footer-key-foreground;
            text-style: bold;
        }
        & > .keybar--words {
            background: $footer-description-background;
            color: $footer-description-foreground;
        }
        & > .keybar--hover { background: $block-hover-background; }
        &:hover { pointer: pointer; }
    }
    """
    ALLOW_SELECT = False

    def __init__(
        self, weight: Callable[[str], Weight], is_hidden: Callable[[str], bool] = lambda _: False
    ) -> None:
        """`weight` returns the weight of an action, `is_hidden` whether its key works without being
        shown now."""
        super().__init__()
        self._weight, self._is_hidden = weight, is_hidden
        self._drawn: list[FooterEntry] = []
        self._under_mouse: FooterEntry | None = None

    @property
    def is_current(self) -> bool:
        """Whether the drawn keys are those of now."""
        return self._drawn == self._keys()

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._bindings_changed)

    def _bindings_changed(self, screen: Screen[object]) -> None:
        if not self.is_current:
            self.refresh()

    def render(self) -> Text:
        keys = self._drawn = self._keys()
        width = self.size.width
        if close := _cells(keys, 2) > width:
            keys = shortened(keys, self._weight, width)
        looks = [self.get_component_rich_style(f"keybar--{part}") for part in ("key", "words")]
        hover = self.get_component_rich_style("keybar--hover")
        line = Text(no_wrap=True)
        for entry in keys:
            parts = (
                (entry.name, f" {entry.words}") if close else (f" {entry.name} ", f"{entry.words} ")
            )
            on_it = Style(dim=None if entry.enabled else True, meta={"entry": entry})
            if entry == self._under_mouse:
                on_it += Style(bgcolor=hover.bgcolor)
            for part, look in zip(parts, looks, strict=True):
                line.append(part, look + on_it)
            if close:
                line.append(" ")
        return line

    def on_mouse_down(self, event: events.MouseDown) -> None:
        entry = event.style.meta.get("entry")
        if entry and entry.enabled:
            self.app.simulate_key(entry.key)
        elif entry:
            self.app.bell()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        self._turn(event.style.meta.get("entry"))

    def on_leave(self) -> None:
        self._turn(None)

    def _turn(self, entry: FooterEntry | None) -> None:
        if entry != self._under_mouse:
            self._under_mouse = entry
            self.refresh()

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
