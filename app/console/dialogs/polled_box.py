"""A box whose text a thread asks for once a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.text import Text
from textual import work
from textual.content import Content

from app.console.dialogs.help_box import HelpBox
from bpf.errors import ProbedeckError

_PERIOD = 1.0


class PolledBox(HelpBox):
    """A box of facts that may come from another host."""

    def __init__(self, title: str, ask: Callable[[], Text]) -> None:
        super().__init__()
        self._named, self._asked, self._shown = title, ask, Text()

    def on_mount(self) -> None:
        self._box.border_title = Content(self._named)
        self._ask()
        self.set_interval(_PERIOD, self._ask)

    def text(self) -> Iterator[Text]:
        yield self._shown

    @work(thread=True, exclusive=True, group="polled")
    def _ask(self) -> None:
        try:
            self._shown = self._asked()
        except ProbedeckError as error:
            self._shown = Text(str(error), "bold")
        self.app.call_from_thread(self.renew)
