"""A footer that shortens its keys to fit instead of cutting them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from textual import events
from textual.app import ComposeResult
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Footer
from textual.widgets._footer import FooterKey

_Key = tuple[str, str, str, str, bool]
"""Key, its name, its description, its action, and whether it is enabled."""


def is_key(widget: Widget | None) -> bool:
    """Whether a widget is a key of the footer; it may have been removed since."""
    return isinstance(widget, FooterKey)


class KeyBar(Footer):
    """Textual's footer; on a short line its keys are closer, or without descriptions."""

    def __init__(
        self, is_short: Callable[[str], bool], is_hidden: Callable[[str], bool] = lambda _: False
    ) -> None:
        """`is_short` tells whether an action needs no description, `is_hidden` whether its key
        works without being shown now."""
        super().__init__(show_command_palette=False)
        self._is_short, self._is_hidden = is_short, is_hidden
        self._shown: tuple[int, list[_Key]] = (0, [])
        """The width and the keys of the last `compose`."""
        self._mounted = self._shown

    def compose(self) -> ComposeResult:
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
                # Keys without description stand at their usual place.
                keys = [key for key in keys if not self._is_short(key[3])]
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

    def _keys(self) -> list[_Key]:
        name = self.app.get_key_display
        return [
            (binding.key, name(binding), binding.description, binding.action, enabled)
            for _, binding, enabled, _ in self.screen.active_bindings.values()
            if binding.show and not self._is_hidden(binding.action)
        ]


def _cells(keys: Iterable[_Key], around: int) -> int:
    """Return the cells of keys with so many blanks around each; the last blank may be cut."""
    return sum(len(f"{name} {words}".rstrip()) + around for _, name, words, _, _ in keys) - 1
