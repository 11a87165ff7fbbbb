"""A helper: a process that answers requests, and that may crash, hang or be killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bpf.errors import Cancel, CancelError, KernelError, ProbedeckError, current

KILLED = "the compile helper was killed (SIGKILL), as the kernel does when memory runs out"
KILLED_HINT = (
    "give the host, or the memory.max of this cgroup, 300 MB or more; dmesg has the kernel's words"
)
_SCM_MAX_FD = 253
_LOOK_S = 0.05
"""Seconds between two looks at whether who waits for his turn still wants it."""


class Helper:
    """Starts a process with the first request, and again whenever it has died.

    One request runs at a time; callers of other threads wait for their turn. Cancelling a request
    (bpf.errors) ends the process, and the next request starts another. After `idle` seconds without
    a request it ends.
    """

    def __init__(
        self,
        what: str,
        command: Callable[[int], Sequence[str]],
        no_start: Callable[[str, bool], KernelError],
        *,
        ready_s: float,
        idle: float,
        clean: Callable[[dict[str, Any]], None] = lambda greeting: None,
    ) -> None:
        """Nothing runs yet. `what` is its name in messages.

        `command` returns the command line for the descriptor of its socket; it may raise
        KernelError. `no_start` makes an error of its output before it was ready, and of the fact
        that somebody killed it (SIGKILL). It is ready within `ready_s` seconds. `clean` gets the
        first message of a process that has ended.
        """
        self.greeting: dict[str, Any] = {}
        """The first message of the process, by which it is ready."""
        self._what = what
        self._command = command
        self._no_start = no_start
        self._ready_s = ready_s
        self._idle = idle
        self._clean = clean
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the process that runs now. Raises ProbedeckError if none does."""
        if process := self._process:
            return process.pid
        raise ProbedeckError(f"no {self._what} runs")

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @contextlib.contextmanager
    def turn(self) -> Iterator[Cancel]:
        """Have a process that is ready, for one request; cancelling it ends the process.

        Raises KernelError if it does not start, and CancelError.
        """
        cancel = current()
        with cancel.on_cancel():
            while not self._lock.acquire(timeout=_LOOK_S):
                cancel.check()
        try:
            if self._timer:
                self._timer.cancel()
            with cancel.on_cancel(self._kill):
                cancel.check()
                self._ready(cancel)
                yield cancel
        finally:
            try:
                if not self._closed:
                    if cancel.asked:
                        # The next one must not find a process that is about to die.
                        self.end()
                    self._timer = threading.Timer(self._idle, self._end_idle)
                    self._timer.daemon = True
                    self._timer.start()
            finally:
                self._lock.release()

    def ask(self, request: bytes, limit_s: float, fds: list[int]) -> Any:
        """Return the reply to a request; append the descriptors that come with it to `fds`.

        If this process may hold no more, fewer descriptors come than the helper sent. The caller
        has the turn. Raises OSError or EOFError if the process ends, or after `limit_s` seconds.
        """
        self._socket.settimeout(limit_s)
        self._socket.sendall(len(request).to_bytes(4, "little") + request)
        reply = self._message()
        for _ in range(reply.get("fd_messages", 0)):
            # Not socket.recv_fds: it has no use for its flags.
            data, ancillary, _, _ = self._socket.recvmsg(
                1, socket.CMSG_SPACE(_SCM_MAX_FD * 4), socket.MSG_CMSG_CLOEXEC
            )
            for _, _, packed in ancillary:
                fds += array("i", packed)
            if not data:
                raise EOFError
        return reply

    def said(self) -> str:
        """Return what the process printed."""
        return os.pread(self._output, os.fstat(self._output).st_size, 0).decode(errors="replace")

    def ended(self) -> tuple[int, str]:
        """Return exit status and output of a process that no longer answers.

        The status is -SIGALRM if it goes on. The caller has the turn.
        """
        assert self._process is not None
        try:
            status = self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            status = -signal.SIGALRM
        said = self.said()
        self.end()
        return status, said

    def start(self) -> subprocess.Popen[bytes]:
        """Start a process. The caller has the turn, and none runs."""
        self._socket, theirs = socket.socketpair()
        with theirs:
            try:
                command = self._command(theirs.fileno())
            except KernelError:
                self._socket.close()
                raise
            self._output = os.memfd_create("probedeck-helper")
            self.greeting = {}
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=[theirs.fileno()],
                # A Ctrl-C in the console must not reach the process.
                process_group=0,
            )
        return self._process

    def end(self) -> None:
        """End the process, if one runs. The caller has the turn."""
        if process := self._process:
            self._kill()
            process.wait()
            self._process = None
            self._socket.close()
            os.close(self._output)
            self._clean(self.greeting)

    def check_open(self) -> None:
        """Raise CancelError if it was closed."""
        if self._closed:
            raise CancelError(f"the {self._what} is closed") from None

    def close(self) -> None:
        """End the process. A request that runs in another thread fails at once."""
        if self._closed:
            return
        self._closed = True
        self._kill()
        # The thread of the request has woken up, and releases the lock.
        with self._lock:
            self.end()
            if self._timer:
                self._timer.cancel()

    def _ready(self, cancel: Cancel) -> None:
        self.check_open()
        process = self._process
        if process is None or process.poll() is not None:
            self.end()
            process = self.start()
            # Again: `close` ends the process that it finds, which may have been the last one.
            self.check_open()
        if self.greeting:
            return
        self._socket.settimeout(self._ready_s)
        try:
            self.greeting = self._message()
        except (OSError, EOFError):
            status, said = self.ended()
            self.check_open()
            cancel.check()
            raise self._no_start(said, status == -signal.SIGKILL) from None

    def _end_idle(self) -> None:
        """End the process, in the timer's thread, unless a request has come meanwhile."""
        timer = threading.current_thread()
        with self._lock:
            if self._timer is timer:
                self.end()

    def _kill(self) -> None:
        if process := self._process:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            process.kill()

    def _message(self) -> Any:
        """Receive one message: its length, then JSON."""
        return json.loads(self._receive(int.from_bytes(self._receive(4), "little")))

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._socket.recv(min(size - len(data), 1 << 20))
            if not part:
                raise EOFError
            data += part
        return bytes(data)
