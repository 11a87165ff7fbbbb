"""The console on its terminal: theme, glyphs and colours, and how often a slow link is drawn on."""

from __future__ import annotations

import os
import signal

from textual import on
from textual.binding import Binding
from textual.notifications import Notify

from app.config.model import Ui
from app.console.terminal import erases_in_color, has_shell
from app.console.themes import THEMES, name_of
from bpf.errors import UsageError
from widgets.status import StatusItem
from widgets.terminal.compositor import DiffApp, TerminalCaps
from widgets.terminal.driver import GroundKnown
from widgets.terminal.link import FIRST, LinkEstimator
from widgets.tones import Tone

_SELDOM = 2.0
"""Seconds between two updates where little is to be sent."""
_FIRST_OF_LITTLE = 512
"""Bytes that may then be on their way before anything is known of the link."""
_TOLD = 1.5
"""Seconds between two updates from which on the operator is told: windows are missed."""


class TerminalApp(DiffApp[int]):
    """An app that draws what its terminal can show, as often as the link allows."""

    CSS = """
    .-low-bandwidth VirtualTable > .table--cursor { background: $surface; }
    .-low-bandwidth VirtualTable:focus > .table--cursor { background: $surface; }
    .-low-bandwidth ModalScreen { background: transparent; }
    .-plain .tone--warn { text-style: bold; }
    .-plain .tone--active { background: $surface; text-style: underline; }
    Toast { width: auto; max-width: 100%; padding: 0 1; margin-top: 0; }
    """
    """Neither a whole row nor a whole screen is to change its ground where that takes seconds;
    without colours a ground is drawn in reverse, on which a high bar would be an empty cell; and
    what is said in the corner covers no more than it needs."""

    ui = Ui()

    def take_terminal(self, ui: Ui) -> None:
        """Draw as `ui` says, whose `auto` means the best there is."""
        self.ui = ui
        self.look = TerminalCaps(
            glyphs="braille" if ui.glyphs == "auto" else ui.glyphs,
            colors=ui.colors != "none",
            erases=erases_in_color(),
        )
        self.animation_level = "none"
        self.link = LinkEstimator(_FIRST_OF_LITTLE if ui.low_bandwidth else FIRST)
        self.set_class(ui.low_bandwidth, "-low-bandwidth")
        self.set_class(not self.look.colors, "-plain")
        for theme in THEMES.values():
            self.register_theme(theme)
        self._take_theme(dark=ui.theme != "light")

    def on_ground_known(self, event: GroundKnown) -> None:
        """Take the theme for the terminal's ground, unless one was asked for."""
        if self.ui.theme == "auto" and self._untouched:
            self._take_theme(dark=event.dark)

    @on(Notify)
    def _latest(self, event: Notify) -> None:
        """What was said before has been read, or is out of date; mistakes stay their time."""
        for said in list(self._notifications):
            if said is not event.notification and said.severity != "error":
                self._unnotify(said)

    @property
    def theme_asked_for(self) -> bool:
        """Whether the theme is one that was chosen, and not the one for the terminal."""
        return self.ui.theme != "auto" or not self._untouched

    def do_app_theme(self, theme: str = "") -> None:
        wanted = theme or ("light" if self.current_theme.dark else "dark")
        self._take_theme(dark=wanted == "dark")
        self._untouched = False

    def do_app_suspend(self) -> None:
        if self._driver is None or not self._driver.can_suspend or not has_shell():
            raise UsageError("there is no shell to go back to")
        # To all of the job, as the terminal itself would send it.
        os.kill(0, signal.SIGTSTP)

    def get_key_display(self, binding: Binding) -> str:
        """What a key is called, by its name where its sign cannot be drawn."""
        sign = super().get_key_display(binding)
        return sign if self.look.glyphs != "ascii" or sign.isascii() else binding.key

    @property
    def slow(self) -> bool:
        """Whether little should be sent: because that was asked for, or as the link turned out."""
        return self.ui.low_bandwidth or self.link.slow

    def begin_update(self) -> None:
        super().begin_update()
        self.set_class(self.slow, "-low-bandwidth")

    def update_interval(self, usual: float) -> float:
        """Seconds between two updates of the screen, where there are `usual` ones elsewhere."""
        least = _SELDOM if self.ui.low_bandwidth else usual
        return max(least, self.link.pause)

    def link_items(self, usual: float) -> list[StatusItem]:
        """What the operator is told about the link."""
        every = self.update_interval(usual)
        if every < _TOLD:
            return []
        return [StatusItem(f"every {every:.0f} s", Tone.WARN, priority=2, label="slow link")]

    def _take_theme(self, *, dark: bool) -> None:
        self._untouched = True
        self.theme = name_of(dark=dark, colors=self.ui.colors)
