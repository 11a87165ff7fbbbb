"""A terminal of our own: runs a program under a pty, shows its screen, counts its bytes and CPU.

The reader thread answers the queries that Textual makes of a terminal and keeps every chunk with
its time; the screen is emulated only when somebody looks at it, so that measuring costs little.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import statistics
import struct
import termios
import threading
import time
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

_ANSWERS = {
    b"\x1b[?2026$p": b"\x1b[?2026;2$y",  # synchronized output: supported, off
    b"\x1b[?2048$p": b"\x1b[?2048;0$y",  # in-band resize reports: unknown
    b"\x1b[6n": b"\x1b[1;1R",  # cursor position
}
_FRAME = b"\x1b[?2026h"
_TOKEN = re.compile(
    r"\x1b\[([<=>?]?)([\d;]*)([ $]?)([@-~])"  # CSI
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC
    r"|\x1b[PX^_][^\x1b]*\x1b\\"  # DCS, SOS, PM, APC
    r"|\x1b[ -/]*[0-~]"  # other escapes
    r"|[\x00-\x1f\x7f]"  # control characters
    r"|[^\x00-\x1f\x7f]+"  # text
)
_PARTIAL = re.compile(r"\x1b(?:\[[<=>?]?[\d;]*[ $]?|\][^\x07\x1b]*\x1b?|[PX^_][^\x1b]*\x1b?)?\Z")

Paint = tuple[frozenset[str], str, str]
"""How a cell is painted: attributes, foreground and background, as SGR parameters."""
_PLAIN: Paint = (frozenset(), "", "")


class Emulator:
    """The screen of a small terminal: text, cursor movement, SGR, erasing, scrolling."""

    def __init__(self, columns: int, rows: int) -> None:
        self.resize(columns, rows)
        self._rest = ""

    def resize(self, columns: int, rows: int) -> None:
        """Take a new size; as in a real terminal that lost its content, fill it with rubbish."""
        self.columns, self.rows = columns, rows
        self.cells = [[("?", _PLAIN)] * columns for _ in range(rows)]
        self._x = self._y = 0
        self._paint = _PLAIN
        self._region = (0, rows)

    @property
    def lines(self) -> list[str]:
        """The text of each line."""
        return ["".join(text for text, _ in line) for line in self.cells]

    @property
    def text(self) -> str:
        """The text of the screen."""
        return "\n".join(self.lines)

    def feed(self, data: str) -> None:
        """Draw what a program wrote."""
        data = self._rest + data
        partial = _PARTIAL.search(data)
        self._rest = data[partial.start() :] if partial else ""
        for token in _TOKEN.finditer(data, 0, len(data) - len(self._rest)):
            whole = token.group()
            if token.group(4):
                self._control(token.group(1), token.group(2), token.group(4))
            elif whole == "\r":
                self._x = 0
            elif whole == "\n":
                self._y = min(self._y + 1, self.rows - 1)
            elif whole == "\b":
                self._x = max(self._x - 1, 0)
            elif whole[0] >= " " and whole[0] != "\x7f":
                self._write(whole)

    def _write(self, text: str) -> None:
        for character in text:
            width = _width(character)
            if not width:
                self._combine(character)
            elif self._x + width <= self.columns:
                line = self.cells[self._y]
                self._break_wide(line, self._x, self._x + width)
                line[self._x] = (character, self._paint)
                if width == 2:
                    line[self._x + 1] = ("", self._paint)
                self._x += width

    def _combine(self, character: str) -> None:
        before = self._x - 1
        if before >= 0 and not self.cells[self._y][before][0]:
            before -= 1
        if before >= 0:
            text, paint = self.cells[self._y][before]
            self.cells[self._y][before] = (text + character, paint)

    @staticmethod
    def _break_wide(line: list[tuple[str, Paint]], start: int, end: int) -> None:
        if not line[start][0]:
            line[start - 1] = (" ", line[start - 1][1])
        if end < len(line) and not line[end][0]:
            line[end] = (" ", line[end][1])

    def _control(self, private: str, parameters: str, final: str) -> None:
        numbers = [int(n or 0) for n in parameters.split(";")]
        if private:
            if private == "?" and final in "hl" and 1049 in numbers:
                self.cells = [[(" ", _PLAIN)] * self.columns for _ in range(self.rows)]
        elif final == "H":
            row, column = [*numbers, 0][:2]
            self._y = min(max(row, 1), self.rows) - 1
            self._x = min(max(column, 1), self.columns) - 1
        elif final == "C":
            self._x = min(self._x + max(numbers[0], 1), self.columns - 1)
        elif final == "D":
            self._x = max(self._x - max(numbers[0], 1), 0)
        elif final == "m":
            self._paint = painted(self._paint, parameters)
        elif final == "r":
            top, bottom = [*numbers, 0][:2]
            self._region = (max(top, 1) - 1, bottom or self.rows)
            self._x = self._y = 0
        elif final in "LM":
            self._shift(max(numbers[0], 1), down=final == "L")
        elif final == "X":
            self._erase(self._x + max(numbers[0], 1))
        elif final == "J":
            self.cells = [[self._blank] * self.columns for _ in range(self.rows)]
        elif final == "K":
            self._erase(self.columns)

    @property
    def _blank(self) -> tuple[str, Paint]:
        """An erased cell: of the ground's colour, and nothing else."""
        return (" ", (frozenset(), "", self._paint[2]))

    def _erase(self, end: int) -> None:
        end = min(end, self.columns)
        line = self.cells[self._y]
        self._break_wide(line, self._x, end)
        line[self._x : end] = [self._blank] * (end - self._x)

    def _shift(self, count: int, *, down: bool) -> None:
        """Insert or delete lines at the cursor, within the region that scrolls."""
        bottom = self._region[1]
        count = min(count, bottom - self._y)
        new = [[self._blank] * self.columns for _ in range(count)]
        kept = self.cells[self._y : bottom]
        self.cells[self._y : bottom] = [*new, *kept[:-count]] if down else [*kept[count:], *new]


def _width(character: str) -> int:
    if unicodedata.combining(character) or character in "\u200d\ufe0e\ufe0f":
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def painted(before: Paint, parameters: str) -> Paint:
    """How cells are painted after SGR `parameters`."""
    attributes, fore, back = set(before[0]), before[1], before[2]
    codes = parameters.split(";")
    at = 0
    while at < len(codes):
        code = int(codes[at] or 0)
        length = {"2": 5, "5": 3}[codes[at + 1]] if code in (38, 48) else 1
        whole = ";".join(codes[at : at + length])
        at += length
        if code == 0:
            attributes, fore, back = set(), "", ""
        elif 30 <= code <= 39 or 90 <= code <= 97:
            fore = "" if code == 39 else whole
        elif 40 <= code <= 49 or 100 <= code <= 107:
            back = "" if code == 49 else whole
        else:
            attributes.add(whole)
    return frozenset(attributes), fore, back


@dataclass(frozen=True, slots=True)
class Cost:
    """What a program costs while it runs; medians over windows."""

    cpu_percent: float
    """CPU of the whole process tree, in percent of one core."""
    bytes_per_second: float
    """What it writes to the terminal."""
    frames_per_second: float
    """Synchronized updates."""
    rss_mb: float
    """Resident memory of the first process, in 10^6 bytes."""


class Terminal:
    """A program under a pty; a context manager that ends the program."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        columns: int = 120,
        rows: int = 40,
        environment: Mapping[str, str] | None = None,
        rate: float | None = None,
    ) -> None:
        """Start `command`; `rate` is the speed of the link in bytes per second, None the fastest.

        The program's environment is ours, for a truecolor xterm, with `environment` on top.
        """
        env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
        env |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8"}
        env |= environment or {}
        self.emulator = Emulator(columns, rows)
        self.bytes = 0
        self.frames = 0
        self.running = True
        self._rate = rate
        self._lost = False
        self._chunks: list[tuple[float, bytes]] = []
        self._drawn = 0
        self._arrived = threading.Condition()
        self._taking = threading.Event()
        self._taking.set()
        size = struct.pack("HHHH", rows, columns, 0, 0)
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, size)
            try:
                os.execvpe(command[0], list(command), env)
            finally:
                os._exit(127)
        self._status: int | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def send(self, keys: bytes | str) -> None:
        """Type `keys`."""
        os.write(self._fd, keys.encode() if isinstance(keys, str) else keys)

    def signal(self, number: signal.Signals) -> None:
        """Send the program a signal."""
        os.kill(self.pid, number)

    def resize(self, columns: int, rows: int) -> None:
        """Change the size of the terminal."""
        self.screen()
        self.emulator.resize(columns, rows)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    @property
    def fd(self) -> int:
        """The terminal's own end."""
        return self._fd

    def hang_up(self) -> None:
        """Lose the terminal, as when an ssh connection ends."""
        self._lost = True
        os.close(self._fd)

    def stall(self) -> None:
        """Take in nothing more, as a terminal does whose link hangs."""
        self._taking.clear()

    def resume(self) -> None:
        """Take in what is written again."""
        self._taking.set()

    def screen(self) -> str:
        """The text on the screen now."""
        with self._arrived:
            fresh, self._drawn = self._chunks[self._drawn :], len(self._chunks)
        for _, data in fresh:
            # Escapes are ASCII; a character cut by a chunk's end is completed by the next chunk.
            self.emulator.feed(self._decoded(data))
        return self.emulator.text

    def raw(self) -> bytes:
        """All that was written so far."""
        with self._arrived:
            return b"".join(data for _, data in self._chunks)

    def wait(self, pattern: str | Callable[[str], bool], timeout: float = 5.0) -> float:
        """Wait until the screen's text matches; the time (`time.perf_counter`) when it did.

        TimeoutError with the screen's text if it does not.
        """
        found = re.compile(pattern, re.MULTILINE).search if isinstance(pattern, str) else pattern
        end = time.perf_counter() + timeout
        while True:
            if found(self.screen()):
                return self._chunks[self._drawn - 1][0] if self._drawn else time.perf_counter()
            with self._arrived:
                left = end - time.perf_counter()
                if left <= 0 or not self.running:
                    break
                if self._drawn == len(self._chunks):
                    self._arrived.wait(left)
        raise TimeoutError(f"no {pattern!r} on the screen:\n{self.emulator.text}")

    def settle(self, quiet: float = 0.2) -> str:
        """Wait until nothing was written for `quiet` seconds; the screen's text."""
        seen = -1
        while seen != self.bytes:
            seen = self.bytes
            time.sleep(quiet)
        return self.screen()

    def latency(self, keys: bytes | str, pattern: str | Callable[[str], bool]) -> float:
        """Seconds from typing `keys` until the screen matches `pattern`, which it must not yet."""
        start = time.perf_counter()
        self.send(keys)
        return self.wait(pattern) - start

    def cost(self, *, seconds: float = 4.0, windows: int = 3) -> Cost:
        """Measure the program as it runs by itself."""
        measured: list[tuple[float, float, float]] = []
        for _ in range(windows):
            cpu, sent, frames, start = self.cpu(), self.bytes, self.frames, time.perf_counter()
            time.sleep(seconds)
            took = time.perf_counter() - start
            spent = (self.cpu() - cpu) * 100, self.bytes - sent, self.frames - frames
            measured.append((spent[0] / took, spent[1] / took, spent[2] / took))
        middle = [statistics.median(column) for column in zip(*measured, strict=True)]
        return Cost(middle[0], middle[1], middle[2], _resident(self.pid))

    def cpu(self) -> float:
        """CPU seconds, user and system, of all living threads of the program and its children."""
        return sum(_cpu_seconds(pid) for pid in _tree(self.pid))

    def wait_exit(self, timeout: float = 5.0) -> int:
        """Wait for the program's end; its exit code, negative for a signal."""
        end = time.perf_counter() + timeout
        while self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
            elif time.perf_counter() > end:
                raise TimeoutError(f"process {self.pid} still runs after {timeout} s")
            else:
                time.sleep(0.01)
        return self._status

    def close(self) -> None:
        """End the program if it still runs."""
        self.resume()
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._status is None:
                os.kill(self.pid, number)
                try:
                    self.wait_exit(1.0)
                except TimeoutError:
                    continue
        self._reader.join(2.0)
        if not self._lost:
            os.close(self._fd)

    def _read(self) -> None:
        while True:
            self._taking.wait()
            try:
                data = os.read(self._fd, 65536 if self._rate is None else 1024)
            except OSError:
                data = b""
            now = time.perf_counter()
            for query, answer in _ANSWERS.items():
                if query in data:
                    os.write(self._fd, answer)
            with self._arrived:
                self.running = bool(data)
                self.bytes += len(data)
                self.frames += data.count(_FRAME)
                if data:
                    self._chunks.append((now, data))
                self._arrived.notify_all()
            if not data:
                return
            if self._rate is not None:
                time.sleep(len(data) / self._rate)

    _undecoded = b""

    def _decoded(self, data: bytes) -> str:
        data = self._undecoded + data
        for cut in range(min(4, len(data) + 1)):
            try:
                text = data[: len(data) - cut].decode()
            except UnicodeDecodeError:
                continue
            self._undecoded = data[len(data) - cut :]
            return text
        self._undecoded = b""
        return data.decode(errors="replace")


def _tree(pid: int) -> list[int]:
    """A process and its descendants."""
    found = [pid]
    for thread in _threads(pid):
        try:
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                children = file.read().split()
        except OSError:
            continue
        for child in children:
            found += _tree(int(child))
    return found


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def _cpu_seconds(pid: int) -> float:
    total = 0
    for thread in _threads(pid):
        try:
            with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
                total += int(file.read().split()[0])
        except OSError:
            continue
    return total / 1e9


def _resident(pid: int) -> float:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6
