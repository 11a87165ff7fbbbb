"""The output of an own command, while it runs and afterwards."""

from __future__ import annotations

import codecs
import re
import shlex
from collections import deque
from collections.abc import Sequence

from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.widgets import Log

from app.console.dialogs.boxes import BoxScreen
from app.console.tasks import Task
from bpf.errors import ProbedeckError, printable
from bpf.quantities import REPLACED, age

_LOOK_S = 0.1
_PARTS = 2
"""Parts of at most 64 KiB that are shown at once, so that keys do not wait."""
_MOST_CELLS = 2000
"""Characters of a line that are shown."""
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_LINE_END = re.compile(r"\r?\n|\r")


class OutputBox(BoxScreen[None]):
    """A box as large as the screen; Escape cancels the program, and closes the box afterwards."""

    AUTO_FOCUS = "Log"
    BINDINGS = [
        Binding("escape,q", "leave", "Close"),
        Binding("j,space", "scroll(1)", show=False),
        Binding("k", "scroll(-1)", show=False),
    ]
    DEFAULT_CSS = """
    OutputBox > .box, OutputBox > .box:focus {
        width: 100%; height: 100%; background: $panel; scrollbar-size-horizontal: 0;
    }
    """

    def __init__(self, words: Sequence[str], task: Task) -> None:
        super().__init__()
        self._line, self._work = printable(shlex.join(words), REPLACED), task
        self._parts: deque[bytes] = deque()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        """The last line, which may go on."""
        self._ended = ""

    def compose(self) -> ComposeResult:
        box = Log(auto_scroll=False, classes="box")
        box.border_title = Content(self._line)
        yield box

    def on_mount(self) -> None:
        self._show()
        self.set_interval(_LOOK_S, self._show)

    def on_unmount(self) -> None:
        self._work.cancel.ask()

    @property
    def _box(self) -> Log:
        return self.query_one(Log)

    def hear(self, part: bytes) -> None:
        """Take output; the program's thread calls it."""
        self._parts.append(part)

    def end(self, how: str) -> None:
        """Take the end of the program, in words."""
        self._ended = how
        if self.is_attached:
            self._show()

    def fail(self, error: ProbedeckError) -> None:
        self.end(str(error))

    def _show(self) -> None:
        for _ in range(min(_PARTS, len(self._parts))):
            self._write(self._decoder.decode(self._parts.popleft()))
        if self._ended and not self._parts and self._rest:
            self._write("\n")
        told = f"{self._ended}; esc closes this"
        if not self._ended:
            told = f"running {age(int(self._work.seconds))}; esc cancels"
        if self._box.border_subtitle != told:
            self._box.border_subtitle = Content(printable(told, REPLACED))

    def _write(self, text: str) -> None:
        *lines, self._rest = _LINE_END.split(self._rest + text)
        if lines:
            plain = (_ESCAPES.sub("", line).expandtabs() for line in lines)
            self._box.write_lines([printable(line[:_MOST_CELLS], REPLACED) for line in plain])

    def action_leave(self) -> None:
        """Cancel the program, else close the box."""
        if self._ended:
            self.dismiss()
        else:
            self._work.cancel.ask()

    def action_scroll(self, pages: int) -> None:
        self._box.scroll_relative(y=pages * max(1, self._box.size.height - 1), animate=False)
