"""A footer that is never cut: what it says gets shorter where there is less room."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from textual import events
from textual.app import ComposeResult
from textual.screen import Screen
from textual.widgets import Footer
from textual.widgets._footer import FooterKey

_Key = tuple[str, str, str, str, bool]
"""Key, what it is called, what it does, its action, and whether it can be used."""


class KeyBar(Footer):
    """Textual's footer, closer together or with bare keys where a line is too short for it."""

    def __init__(self, is_short: Callable[[str], bool]) -> None:
        """`is_short` tells of an action whether its key says enough."""
        super().__init__(show_command_palette=False)
        self._is_short = is_short
        self._shown: tuple[int, list[_Key]] = (0, [])

    def compose(self) -> ComposeResult:
        """Give the keys, as wide as there is room for."""
        if not self._bindings_ready:
            return
        width, keys = self._shown = (self.size.width, self._keys())
        close = _cells(keys, 2) > width
        bare = close and _cells(keys, 1) > width
        if bare:
            keys = [
                (key, name, "" if self._is_short(action) else words, action, enabled)
                for key, name, words, action, enabled in keys
            ]
            if _cells(keys, 1) > width:
                # Keys that say enough are where one would look for them.
                keys = [key for key in keys if not self._is_short(key[3])]
        self.set_reactive(Footer.compact, close)
        self.set_class(close, "-compact")
        for key, name, words, action, enabled in keys:
            look = "-compact" if close else ""
            made = FooterKey(key, name, words, action, disabled=not enabled, classes=look)
            # Known from the start, it is not styled once more for each key.
            made.set_reactive(FooterKey.compact, close)
            yield made

    def bindings_changed(self, screen: Screen[object]) -> None:
        """Show other keys, where they are others."""
        if not self._bindings_ready or self._shown != (self.size.width, self._keys()):
            super().bindings_changed(screen)

    def on_resize(self, event: events.Resize) -> None:
        """Fit the keys to another width."""
        if event.size.width != self._shown[0]:
            self.call_after_refresh(self.recompose)

    def _keys(self) -> list[_Key]:
        name = self.app.get_key_display
        return [
            (binding.key, name(binding), binding.description, binding.action, enabled)
            for _, binding, enabled, _ in self.screen.active_bindings.values()
            if binding.show
        ]


def _cells(keys: Iterable[_Key], around: int) -> int:
    """What keys need with so many blanks around each; that after the last one may be cut."""
    return sum(len(f"{name} {words}".rstrip()) + around for _, name, words, _, _ in keys) - 1
