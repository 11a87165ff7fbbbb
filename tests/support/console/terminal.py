"""A terminal of our own: runs a program under a pty, shows its screen, counts its bytes and CPU.

The reader thread answers the queries that Textual makes of a terminal and keeps every chunk with
its time; the screen is emulated only when somebody looks at it, so that measuring costs little.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import queue
import re
import signal
import statistics
import struct
import termios
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tests.support.console.emulator import Emulator

ANSWERS = {
    b"\x1b[c": b"\x1b[?62;22c",  # what it is: a VT220 with colours
    b"\x1b[?2026$p": b"\x1b[?2026;2$y",  # synchronized output: supported, off
    b"\x1b[?2048$p": b"\x1b[?2048;0$y",  # in-band resize reports: unknown
    b"\x1b[6n": b"\x1b[1;1R",  # cursor position
}
"""Answers of a modern terminal; without its background colour."""
GROUND = b"\x1b]11;?\x1b\\"
"""The question for its ground, which is answered by its red, green and blue."""
_LONGEST = max(map(len, (*ANSWERS, GROUND)))
_PORTION = 0.05
"""Seconds of a slow link that are read at once."""
_FRAME = b"\x1b[?2026h"


@dataclass(frozen=True, slots=True)
class Cost:
    """Costs of a running program; medians over windows."""

    cpu_percent: float
    """CPU of the whole process tree, in percent of one core."""
    bytes_per_second: float
    """Bytes written to the terminal."""
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
        delay: float = 0.0,
        answers: Mapping[bytes, bytes] = ANSWERS,
    ) -> None:
        """Start `command`; `rate` is the speed of the link in bytes per second, None the fastest,
        and `delay` what it adds to a round trip, in seconds.

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
        self._answers = answers
        self._asking = re.compile(b"|".join(map(re.escape, answers or {b"\0": b""})))
        self._asked = b""
        self._there, self._back = _Way(delay / 2), _Way(delay / 2)
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
        self._back.take(self._write, keys.encode() if isinstance(keys, str) else keys)

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
        """Read the program's output again."""
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
        """Measure the program while no key is pressed."""
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
                size = 65536 if self._rate is None else max(1, int(self._rate * _PORTION))
                data = os.read(self._fd, size)
            except OSError:
                data = b""
            if self._rate is not None:
                time.sleep(len(data) / self._rate)
            self._there.take(self._come, data)
            if not data:
                return

    def _come(self, data: bytes) -> None:
        """Take what arrived at the terminal, and answer what it asks."""
        asked = self._asked + data
        self._asked = asked[-_LONGEST + 1 :]
        for question in self._asking.finditer(asked):
            if question.end() > len(asked) - len(data):
                self._back.take(self._write, self._answers[question.group()])
        with self._arrived:
            self.running = bool(data)
            self.bytes += len(data)
            self.frames += data.count(_FRAME)
            if data:
                self._chunks.append((time.perf_counter(), data))
            self._arrived.notify_all()

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            os.write(self._fd, data)

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


class _Way:
    """One direction of a link: what it takes is done after a time, in order."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._under_way: queue.SimpleQueue[tuple[float, Callable[[bytes], None], bytes]]
        self._under_way = queue.SimpleQueue()
        if seconds:
            threading.Thread(target=self._run, daemon=True).start()

    def take(self, arrive: Callable[[bytes], None], data: bytes) -> None:
        """Have `arrive` called with `data`."""
        if self._seconds:
            self._under_way.put((time.perf_counter() + self._seconds, arrive, data))
        else:
            arrive(data)

    def _run(self) -> None:
        while True:
            due, arrive, data = self._under_way.get()
            time.sleep(max(0.0, due - time.perf_counter()))
            arrive(data)


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
