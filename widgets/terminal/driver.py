"""A terminal driver that learns when the terminal has drawn, and survives its loss.

Textual's own driver writes in a blocking thread: if a terminal hangs, the program never ends. It
takes the end of input for an error, or ignores it. It also releases and retakes the terminal in a
signal handler, at any point of the program; here the event loop does, between two callbacks.

Its keyboard tells the end of Escape from the start of the next key. Textual's parser joins Escape
with bytes that follow within a tenth of a second: Escape and 5, from fast fingers or a slow link,
become `∞`, and Escape and / become /. It also takes Escape sequences in pasted text for keys.
"""

from __future__ import annotations

import asyncio
import os
import re
import select
import signal
import time
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, cast

from textual._xterm_parser import XTermParser
from textual.app import App
from textual.drivers.linux_driver import LinuxDriver
from textual.events import Key
from textual.keys import _character_to_key
from textual.message import Message
from textual.messages import TerminalSupportsSynchronizedOutput

from widgets.terminal.link import LinkEstimator

_NO_SEQUENCE = r"[ -MQ-WYZ`ac-eg-~]"
"""Characters that follow Escape in no terminal sequence; b and f are word steps."""
_ALT = re.compile(f"\x1b({_NO_SEQUENCE})")
_ALONE = re.compile(_NO_SEQUENCE)
_PASTE = "\x1b[200~"
_MARKS = re.compile(r"(\x1b\[20[01]~)")
"""Marks before and after pasted text."""
_MARK_BEGUN = re.compile(r"\x1b(?:\[(?:2(?:0(?:1)?)?)?)?\Z")


class Keyboard:
    """Textual's parser, but a character after Escape is a separate key, and a character together
    with Escape is that key with alt."""

    def __init__(self, *, debug: bool) -> None:
        self._parser = XTermParser(debug)
        self._escape = self._pasting = False
        self._rest = ""
        """End of the pasted text so far, which may be a part of the end mark."""

    @property
    def waiting(self) -> bool:
        """Whether `tick` may yield more events."""
        return self._parser._timeout_time is not None

    def feed(self, text: str) -> Iterator[Message]:
        """Yield the events of `text`, not empty and read at once.

        Raises ValueError or OverflowError for numbers that no terminal sends."""
        text, self._rest = self._rest + text, ""
        for place, part in enumerate(_MARKS.split(text)):
            if place % 2:
                self._pasting = part == _PASTE
                self._escape = False
                yield from self._parser.feed(part)
            elif self._pasting:
                begun = _MARK_BEGUN.search(part)
                self._rest = begun.group() if begun is not None else ""
                if plain := part.removesuffix(self._rest).replace("\x1b", ""):
                    yield from self._parser.feed(plain)
            else:
                yield from self._typed(part)

    def _typed(self, text: str) -> Iterator[Message]:
        for place, part in enumerate(_ALT.split(text)):
            if not part:
                continue
            if self._escape and (place % 2 or _ALONE.match(part)):
                self._parser._timeout_time = 0.0
                yield from self._parser.tick()
            if place % 2:
                yield Key(f"alt+{_name_of(part)}", part)
            else:
                yield from self._parser.feed(part)
            self._escape = not place % 2 and part.endswith("\x1b")

    def tick(self) -> Iterator[Message]:
        """Yield events that are complete because nothing followed in time."""
        yield from self._parser.tick()
        self._escape = self._escape and self.waiting


def _name_of(character: str) -> str:
    return f"shift+{character.lower()}" if character.isupper() else _character_to_key(character)


_ATTRIBUTES = "\x1b[c"
_SYNC_MODE = "\x1b[?2026$p"
_GROUND = "\x1b]11;?\x1b\\"
_KEEP_TITLE, _BACK_TITLE = "\x1b[22;2t", "\x1b]2;\x07\x1b[23;2t"
"""Keep the title of the window, and bring it back (XTWINOPS). Terminals that keep none get an empty
one."""
_ANSWER = re.compile(
    r"(?P<attributes>\x1b\[\?[\d;]*c)"
    r"|(?P<sync>\x1b\[\?2026;\d\$y)"
    r"|\x1b\]11;(?P<ground>[^\x07\x1b]*)(?:\x07|\x1b\\)"
)
_BEGUN = re.compile(r"\x1b(?:\[(?:\?[\d;]{0,20}\$?)?|\](?:11?|11;[^\x07\x1b]{0,40}\x1b?)?)?\Z")
"""An incomplete answer."""
_RGB = re.compile(r"rgba?:([0-9a-fA-F]+)/([0-9a-fA-F]+)/([0-9a-fA-F]+)")
_UNSURE_MS = 30
"""Time to wait for the rest of an answer or a key."""
_SOON = 0.005
"""Seconds until a stopped program must have stopped."""
_SECONDS = 1.0
"""Time that the exit waits for a terminal that accepts nothing or owes answers."""


class TerminalLost(Message):
    """The terminal is gone."""


class GroundKnown(Message):
    """The terminal has reported its background."""

    def __init__(self, dark: bool) -> None:
        super().__init__()
        self.dark = dark


class TerminalDriver(LinuxDriver):
    """Textual's driver, with queries to the terminal and their answers."""

    def __init__(self, app: App[Any], **options: Any) -> None:
        super().__init__(app, **options)
        self._output = _Output(self._lose)
        self._file = cast("Any", self._output)
        self._link: LinkEstimator = cast("Any", app).link
        self._title, self._has_title = "", False
        self._question = ""
        """Queries that the terminal is known to answer."""
        self._ending = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable when reading should end."""
        self._halting: asyncio.Handle | None = None
        """The timer that stops the program, unless cancelled."""
        self._loop = asyncio.get_running_loop()
        # The event loop keeps the order of signals; Python's own handlers would run at once.
        self._loop.add_signal_handler(signal.SIGTSTP, self._stop)
        self._loop.add_signal_handler(signal.SIGCONT, self._go_on)
        signal.signal(signal.SIGTSTP, self._sigtstp_application)
        signal.signal(signal.SIGCONT, self._sigcont_application)

    @property
    def _has_terminal(self) -> bool:
        return self._writer_thread is not None

    def _sigtstp_application(self, *_: object) -> None:
        if not self._auto_restart:
            # Another program has the terminal, and the event loop waits for its end.
            os.kill(os.getpid(), signal.SIGSTOP)

    def _sigcont_application(self, *_: object) -> None:
        if self._halting is not None:
            self._halting.cancel()

    def _stop(self) -> None:
        """Release the terminal and stop, unless SIGCONT comes first."""
        self._sigcont_application()
        if self._has_terminal:
            self.suspend_application_mode()
        self._halting = self._loop.call_later(_SOON, self._all_heard)

    def _all_heard(self) -> None:
        # After the keys that the event loop has already queued.
        self._halting = self._loop.call_soon(os.kill, os.getpid(), signal.SIGSTOP)

    def _go_on(self) -> None:
        """Retake the terminal, even if it was never released: another program used it."""
        self._sigcont_application()
        if self._has_terminal:
            self.suspend_application_mode()
        if not self._app._exit:
            self._must_signal_resume = True
            self.resume_application_mode()

    def start_application_mode(self) -> None:
        """Take the terminal, and query its properties."""
        self._question = ""
        self._link.reset()
        self._output.deadline = None
        with suppress(BlockingIOError):
            os.eventfd_read(self._ending)
        super().start_application_mode()  # type: ignore[no-untyped-call]
        if self._has_terminal and self.input_tty:
            now = time.monotonic()
            self._link.sent(_SYNC_MODE, 0, now)
            self._link.sent(_ATTRIBUTES, 0, now)
            self.write(_GROUND + _ATTRIBUTES)
        self._has_title = self._has_terminal and os.environ.get("TERM") != "linux"
        if self._has_title:
            self.write(_KEEP_TITLE)
            self._write_title()

    def show_title(self, text: str) -> None:
        """Make a printable text the title of the terminal's window, until the end."""
        if text != self._title:
            self._title = text
            self._write_title()

    def _write_title(self) -> None:
        if self._title and self._has_title:
            self.write(f"\x1b]2;{self._title}\x07")

    def stop_application_mode(self) -> None:
        """Release the terminal, and leave no answer to the next program."""
        if not self._has_terminal:
            return
        end = time.monotonic() + _SECONDS
        while self._link.pending and time.monotonic() < end:
            time.sleep(0.005)
        if self._has_title:
            self.write(_BACK_TITLE)
        super().stop_application_mode()
        self._output.deadline = time.monotonic() + _SECONDS

    def close(self) -> None:
        super().close()
        self._writer_thread = None

    def write(self, data: str) -> None:
        """Write `data` while the terminal is ours."""
        if self._has_terminal:
            super().write(data)

    def disable_input(self) -> None:
        os.eventfd_write(self._ending, 1)
        super().disable_input()

    def write_piece(self, text: str, *, more: bool) -> None:
        """Write a piece and a query, which the terminal answers after drawing it."""
        question = self._question
        if question:
            self._link.sent(question, len(text.encode()), time.monotonic(), more=more)
        self.write(text + question)

    def run_input_thread(self) -> None:
        """Read until the exit, or until the terminal is gone."""
        poll = select.poll()
        poll.register(self.fileno, select.POLLIN)
        poll.register(self._ending, select.POLLIN)
        keyboard = Keyboard(debug=self._debug)
        decode = getincrementaldecoder("utf-8")(errors="replace").decode
        begun = ""
        while True:
            fresh = ""
            # No wake-ups without input: an idle console is idle.
            unsure = begun or keyboard.waiting
            ready_fds = [fd for fd, _ in poll.poll(_UNSURE_MS if unsure else None)]
            if self._ending in ready_fds:
                break
            if ready_fds:
                try:
                    data = os.read(self.fileno, 4096)
                except OSError:
                    data = b""
                if not data:
                    self._lose()
                    break
                fresh = decode(data)
            text = _ANSWER.sub(self._answer, begun + fresh)
            tail = _BEGUN.search(text)
            begun = tail.group() if tail is not None else ""
            if len(begun) <= 2 and not (fresh and self._link.pending):
                # It may begin an answer, but more likely is a key.
                begun = ""
            ready = text[: len(text) - len(begun)]
            try:
                for event in (*(keyboard.feed(ready) if ready else ()), *keyboard.tick()):
                    self.process_message(event)
            except (ValueError, OverflowError):
                # No terminal sends such numbers, but fingers may; the parser stops after them.
                keyboard = Keyboard(debug=self._debug)

    def _answer(self, answer: re.Match[str]) -> str:
        """Take a terminal's answers out of the input."""
        if answer["ground"] is not None:
            if (rgb := _RGB.match(answer["ground"])) is not None:
                self.process_message(GroundKnown(_luminance(rgb.groups()) < 0.5))
            return ""
        if answer["sync"]:
            question = _SYNC_MODE
            if answer["sync"][-3] != "0":
                self.process_message(TerminalSupportsSynchronizedOutput())
        else:
            question = _ATTRIBUTES
        if self._question != _ATTRIBUTES:
            self._question = question
        self._link.answered(question, time.monotonic())
        return ""

    def _lose(self) -> None:
        """Report the terminal's loss; for the reading and writing threads."""
        with suppress(RuntimeError):
            self.send_message(TerminalLost())


def _luminance(rgb: Iterable[str]) -> float:
    """Parse a hexadecimal number of one to four digits to 0 ... 1."""
    red, green, blue = (int(part, 16) / float(16 ** len(part) - 1) for part in rgb)
    return 0.3 * red + 0.59 * green + 0.11 * blue


class _Output:
    """The terminal as a file: writes never fail, and always end."""

    def __init__(self, lost: Callable[[], None]) -> None:
        self._lost = lost
        self._fd = next((fd for fd in (2, 1) if os.isatty(fd)), 2)
        self.deadline: float | None = None
        """Time after which the rest is dropped; None: it waits for the terminal without limit."""
        self._gone = False
        with suppress(OSError):
            # Opened anew: O_NONBLOCK must not reach the shell.
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            self._fd = os.open(f"/proc/self/fd/{self._fd}", flags)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLOUT)

    def write(self, text: str) -> None:
        """Write all of `text`, or as much as possible."""
        data = text.encode(errors="replace")
        while (
            data and not self._gone and (self.deadline is None or time.monotonic() < self.deadline)
        ):
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:
                self._poll.poll(100)
            except OSError:
                self._gone = True
                self._lost()

    def flush(self) -> None:
        """Do nothing: `write` has written everything."""

    def fileno(self) -> int:
        return self._fd
