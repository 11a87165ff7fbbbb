"""The console's side of the compile helper: starts it, asks it, survives it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from bpf.abi import AttachType, ProgType
from bpf.cancel import Cancel, current
from bpf.compiler.compiled import Compiled, close_all, digest
from bpf.compiler.diagnostics import CompileError, Diagnostic, parse_clang, parse_llvm
from bpf.compiler.packages import install
from bpf.compiler.source import flatten, place_of
from bpf.errors import KernelError, ProbedeckError
from bpf.features import kernel_macros
from bpf.machine import time_limit
from bpf.requirements import require
from bpf.syscall import PRIVILEGES

if TYPE_CHECKING:
    from bpf.objects.client import ObjectCompiler

HEADERS = Path(__file__).parent.parent / "headers"
"""A slim stand-in for the running kernel's headers, on top of linux-libc-dev."""
SYSTEM_PYTHON = "/usr/bin/python3"
_HELPER = Path(__file__).with_name("helper.py")
_SCM_MAX_FD = 253
_HELPERS = "".join(
    f"#undef bpf_probe_read_{each}\n" for each in ("kernel", "user", "kernel_str", "user_str")
)
"""For a user who is not root, libbcc replaces these by helpers that programs of a cgroup lack."""
_FLAGS = ("-Werror=implicit-function-declaration", "-Werror=return-type")
"""Constructs that the verifier refuses without a place, or that run and mean something else."""
_CRASHING = r"__builtin_(?:clz|ctz|ffs|clrsb|popcount|parity)(?:l|ll)?|__int128"
"""A construct that crashes LLVM unless its operands are constants."""
_CPU_LIMIT_S = 20.0
"""CPU time that one compile may take; a loaded machine makes it last longer, not fail."""
LIMIT_VARIABLE = "PROBEDECK_COMPILE_LIMIT"
"""Variable that sets another CPU time."""
MAP_LIMIT = 1 << 30
"""Bytes of maps that a user's probe may have, unless that is configured."""
_WALL_PER_CPU = 10
"""Wall-clock seconds that a compile may last, for each second of CPU time that it may take."""
_REPLY_GRACE_S = 5.0
"""The helper ends itself at its limits; this much later the client gives up on it."""
_KILLED = "the compile helper was killed (SIGKILL), as the kernel does when memory runs out"
_KILLED_HINT = (
    "give the host, or the memory.max of this cgroup, 300 MB or more; dmesg has the kernel's words"
)
_LOOK_S = 0.05
"""Seconds between two looks at whether who waits for his turn still wants it."""


class Compiler:
    """A warm compile helper; started at once, and again whenever it has died.

    One request runs at a time; callers of other threads wait for their turn. Cancelling a request
    (bpf.cancel) ends its helper, and other requests get a new one.
    """

    def __init__(self, *, cpu_limit: float = 0.0) -> None:
        """A compile may take `cpu_limit` seconds of CPU time; 0: the number of `LIMIT_VARIABLE`.

        Raises KernelError if the process or the kernel lacks what every run needs.
        """
        require()
        self.map_limit = MAP_LIMIT
        """Bytes of maps that a user's probe may have."""
        self._cpu_limit = cpu_limit or time_limit(LIMIT_VARIABLE, _CPU_LIMIT_S)
        self._wall_limit = self._cpu_limit * _WALL_PER_CPU
        self._unconfined = ""
        self._lock = threading.Lock()
        self._closed = False
        self._objects: ObjectCompiler | None = None
        self._start()

    @property
    def objects(self) -> ObjectCompiler:
        """The compiler of sources for libbpf, and of objects."""
        from bpf.objects.client import ObjectCompiler  # few runs need it

        if self._objects is None:
            self._objects = ObjectCompiler(self._cpu_limit)
        return self._objects

    @property
    def pid(self) -> int:
        """Process id of the helper that runs now."""
        return self._process.pid

    def compile(
        self,
        source: str,
        prog_type: ProgType,
        *,
        attach_type: AttachType | None = None,
        name: str = "probe.c",
        headers: Mapping[str, str] | None = None,
        preludes: Sequence[str] = (),
        cflags: Sequence[str] = (),
        function: str = "",
        map_limit: int = 0,
    ) -> Compiled:
        """Compile `source`, and verify its programs, of type `prog_type`.

        `attach_type` is for the types of program whose context depends on it. Tracing programs are
        verified when they are loaded, as that needs the kernel's function behind them.
        Its programs are every non-static function, or `function` alone if that is given.
        Diagnostics call the source `name`. `headers` are texts by name, in addition to the files of
        bpf/include; `preludes` stand before the source. Its maps may take
        `map_limit` bytes; 0: any number.
        Raises CompileError with diagnostics if the source is refused or brings the compiler down,
        KernelError if no compiler works, and CancelError.
        """
        started = time.perf_counter()
        if "\0" in source:
            line = source.count("\n", 0, source.index("\0")) + 1
            raise CompileError(name, [Diagnostic(name, line, 0, "error", "a NUL: this is no text")])
        flat = _HELPERS + flatten(source, name, headers, preludes)
        request = json.dumps(
            {
                "source": flat,
                "cflags": [*_FLAGS, *(f"-D{n}={v}" for n, v in kernel_macros().items()), *cflags],
                "type": int(prog_type),
                "attach_type": -1 if attach_type is None else int(attach_type),
                "function": function,
                "map_limit": map_limit,
                "cpu_limit": self._cpu_limit,
                "wall_limit": self._wall_limit,
            }
        ).encode()
        reply, fds, said = self._ask(request, name, source)
        try:
            current().check()
            return digest(name, source, flat, reply, fds, said, (prog_type, attach_type), started)
        except ProbedeckError:
            close_all(fds)
            raise

    def _ask(self, request: bytes, name: str, source: str) -> tuple[Any, list[int], str]:
        """Return the helper's reply, its descriptors, and what clang and libbcc printed.

        Raises CompileError if the source brings the helper down, KernelError and CancelError.
        """
        fds: list[int] = []
        cancel = current()
        with self._turn(cancel):
            self._ready(cancel)
            try:
                self._socket.settimeout(self._wall_limit + _REPLY_GRACE_S)
                self._socket.sendall(len(request).to_bytes(4, "little") + request)
                reply = self._message()
                self._receive_fds(reply["fd_messages"], fds)
            except (OSError, EOFError):
                close_all(fds)
                self._check_open()
                cancel.check()
                try:
                    diagnostics = self._post_mortem(name, source)
                finally:
                    self._start()
                raise CompileError(name, diagnostics) from None
            return reply, fds, self._said()

    def unconfined(self) -> str:
        """Why the helper could not confine itself; empty if it is confined.

        A helper that is not confined can read its user's files, and diagnostics show parts of the
        files that a source includes. Waits for the helper to start; raises KernelError if it can't.
        """
        cancel = current()
        with self._turn(cancel):
            self._ready(cancel)
            return self._unconfined

    def close(self) -> None:
        """End the helper. A compile that runs in another thread fails at once."""
        if self._closed:
            return
        self._closed = True
        if self._objects is not None:
            self._objects.close()
        self._kill()
        # The compiling thread has woken up, and releases the lock.
        with self._lock:
            self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._output = os.memfd_create("probedeck-compiler")
        self._is_ready = False
        if not os.path.exists(SYSTEM_PYTHON):
            raise KernelError(f"there is no {SYSTEM_PYTHON}", hint=install("bcc", "headers"))
        with theirs:
            self._process = subprocess.Popen(
                [SYSTEM_PYTHON, "-I", str(_HELPER), str(theirs.fileno()), str(HEADERS)],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=[theirs.fileno()],
                # A Ctrl-C in the console must not reach the helper.
                process_group=0,
            )

    @contextlib.contextmanager
    def _turn(self, cancel: Cancel) -> Iterator[None]:
        """Lock the helper; `cancel` ends it meanwhile."""
        with cancel.on_cancel():
            while not self._lock.acquire(timeout=_LOOK_S):
                cancel.check()
        try:
            with cancel.on_cancel(self._kill):
                cancel.check()
                yield
        finally:
            try:
                if cancel.asked and not self._closed:
                    # The next one must not find a helper that is about to die.
                    self._stop()
                    self._start()
            finally:
                self._lock.release()

    def _kill(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._process.kill()

    def _stop(self) -> None:
        self._kill()
        self._process.wait()
        self._socket.close()
        os.close(self._output)

    def _ready(self, cancel: Cancel) -> None:
        """Wait until the helper is warm; start another if it died since the last request."""
        self._check_open()
        if self._process.poll() is not None:
            self._stop()
            self._start()
            # Again: `close` ends the helper that it finds, which may have been the last one.
            self._check_open()
        if self._is_ready:
            return
        self._socket.settimeout(self._wall_limit)
        try:
            self._unconfined = self._message()["unconfined"]
        except (OSError, EOFError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                # Its end of the socket is closed before it has written why.
                self._process.wait(timeout=1)
            killed = self._process.returncode == -signal.SIGKILL
            self._kill()
            self._process.wait()
            self._check_open()
            cancel.check()
            raise self._no_start(killed) from None
        self._is_ready = True

    def _no_start(self, killed: bool) -> KernelError:
        """Say why the helper did not become ready; `killed`: by a SIGKILL of somebody else."""
        said = self._said()
        errors = (str(d) for d in parse_clang(said) if d.severity == "error")
        lines = reversed(said.strip().splitlines())
        reason = next(errors, "") or next(lines, "no reason given")
        hint = ""
        if killed:
            reason, hint = _KILLED, _KILLED_HINT
        elif "import bcc" in reason:
            hint = install("bcc", "headers")
        elif "file not found" in reason or "headers are missing" in reason:
            hint = install("headers")
        elif "not permitted" in said or "super-user" in said:
            hint = PRIVILEGES
        return KernelError(f"the compile helper does not start: {reason}", hint=hint)

    def _check_open(self) -> None:
        if self._closed:
            raise ProbedeckError("the compile helper is closed") from None

    def _message(self) -> Any:
        """Receive one message of the helper: its length, then JSON."""
        return json.loads(self._receive(int.from_bytes(self._receive(4), "little")))

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._socket.recv(min(size - len(data), 1 << 20))
            if not part:
                raise EOFError
            data += part
        return bytes(data)

    def _receive_fds(self, messages: int, fds: list[int]) -> None:
        """Append the descriptors that arrive; fewer than sent if this process may hold no more."""
        for _ in range(messages):
            # Not socket.recv_fds: it has no use for its flags.
            data, ancillary, _, _ = self._socket.recvmsg(
                1, socket.CMSG_SPACE(_SCM_MAX_FD * 4), socket.MSG_CMSG_CLOEXEC
            )
            for _, _, packed in ancillary:
                fds += array("i", packed)
            if not data:
                raise EOFError

    def _said(self) -> str:
        return os.pread(self._output, os.fstat(self._output).st_size, 0).decode(errors="replace")

    def _post_mortem(self, name: str, source: str) -> tuple[Diagnostic, ...]:
        """Wait for the helper's death and return its reason.

        Raises KernelError if the reason is not the source.
        """
        try:
            status = self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            status = -signal.SIGALRM
        said = self._said()
        self._stop()
        file, place = "", (0, 0)
        if status == -signal.SIGKILL:
            raise KernelError(f"{name} does not compile: {_KILLED}", hint=_KILLED_HINT) from None
        if status == -signal.SIGPROF:
            text = (
                f"the compiler was stopped: not done after {self._cpu_limit:g} s of CPU time; on a "
                f"slow machine set {LIMIT_VARIABLE} to more seconds"
            )
        elif status == -signal.SIGALRM:
            text = (
                f"the compiler was stopped: not done after {self._wall_limit:g} s, {_WALL_PER_CPU} "
                f"times {LIMIT_VARIABLE}"
            )
        elif "bad_alloc" in said or "out of memory" in said.lower() or "MemoryError" in said:
            text = "the compiler was stopped: it needed more than 1 GiB of memory"
        elif reasons := parse_llvm(name, source, said):
            return (*parse_clang(said), *reasons)
        else:
            how = signal.Signals(-status).name if status < 0 else f"exit {status}"
            text = f"the compiler crashed ({how}): LLVM cannot take something in this source"
            place = place_of(source, _CRASHING)
            file = name if place[0] else ""
        return (*parse_clang(said), Diagnostic(file, *place, "error", text))
