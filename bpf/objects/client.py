"""The console's side of the object helper: sources for libbpf, and objects, become `Compiled`."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bpf.abi import AttachType, ProgType
from bpf.cancel import current
from bpf.compiler.compiled import Compiled, close_all
from bpf.compiler.diagnostics import CompileError, Diagnostic
from bpf.compiler.packages import install
from bpf.compiler.source import code_of
from bpf.errors import KernelError, ProbedeckError
from bpf.objects.dialect import SECTIONS
from bpf.objects.result import ObjectRequest, result

_HERE = Path(__file__).parent
_COMPILER = _HERE.parent / "compiler"
_HEADERS = _HERE.parent / "headers"
_SCM_MAX_FD = 253
_CONSTANT = r"\bconst\s+volatile\b[^;{{=]*\b{}\b|\bvolatile\s+const\b[^;{{=]*\b{}\b"
_CLANGS = ("clang", *(f"clang-{number}" for number in range(22, 10, -1)))
_REPLY_S = 200.0


class ObjectCompiler:
    """Compiles by clang, and loads by libbpf, in a helper that ends when it has no work.

    One request runs at a time; callers of other threads wait for their turn. Cancelling a request
    (bpf.cancel) ends the helper, and the next request starts another.
    """

    def __init__(self, cpu_limit: float) -> None:
        """A request may take `cpu_limit` seconds of CPU time."""
        self._cpu_limit = cpu_limit
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket = socket.socket()
        self._unconfined = ""
        self._folder = ""

    def compile(
        self,
        source: str,
        prog_type: ProgType,
        *,
        attach_type: AttachType | None = None,
        name: str = "probe.c",
        headers: Mapping[str, str] | None = None,
        define: Mapping[str, int] | None = None,
        cflags: Sequence[str] = (),
        function: str = "",
        map_limit: int = 0,
        data: bytes = b"",
    ) -> Compiled:
        """Compile `source` for libbpf, or take the object `data`; relocate, load and verify it.

        `define` gives `const volatile` variables their values; names that the source does not
        declare so are macros. `Compiler.compile` describes the other arguments and the errors.
        KernelError also if clang or libbpf is missing.
        """
        started = time.perf_counter()
        define = dict(define or {})
        if not data:
            code = code_of("\n".join((source, *(headers or {}).values())))
            macros = {n for n in define if not re.search(_CONSTANT.format(n, n), code)}
            cflags = [*cflags, *(f"-D{n}={define.pop(n)}" for n in macros)]
        request = {
            "source": source,
            "headers": dict(headers or {}),
            "name": name,
            "object": base64.b64encode(data).decode(),
            "cflags": list(cflags),
            "type": int(prog_type),
            "attach_type": int(attach_type or 0),
            "function": function,
            "constants": define,
            "sections": {section: int(kind) for section, kind in SECTIONS.items()},
            "map_limit": map_limit,
            "cpu_limit": int(self._cpu_limit),
        }
        if not data and not clang():
            raise KernelError(
                "a source for libbpf needs clang, which is missing", hint=install("clang")
            )
        reply, fds = self._ask(request, name)
        try:
            current().check()
            asked = ObjectRequest(name, source, prog_type, attach_type, function, define, started)
            return result(asked, reply, fds)
        except ProbedeckError:
            close_all(fds)
            raise

    def unconfined(self) -> str:
        """Why the helper could not confine itself; empty if it is confined."""
        with self._lock:
            self._ready()
            return self._unconfined

    def close(self) -> None:
        """End the helper."""
        self._kill()
        with self._lock:
            self._stop()

    def _ask(self, request: dict[str, Any], name: str) -> tuple[dict[str, Any], list[int]]:
        payload = json.dumps(request).encode()
        fds: list[int] = []
        cancel = current()
        with cancel.on_cancel(self._kill), self._lock:
            cancel.check()
            try:
                self._ready()
                self._socket.settimeout(_REPLY_S)
                self._socket.sendall(len(payload).to_bytes(4, "little") + payload)
                reply = self._message()
                for _ in range(reply.get("fd_messages", 0)):
                    data, ancillary, _, _ = self._socket.recvmsg(
                        1, socket.CMSG_SPACE(_SCM_MAX_FD * 4), socket.MSG_CMSG_CLOEXEC
                    )
                    for _, _, packed in ancillary:
                        fds += array("i", packed)
                    if not data:
                        raise EOFError
            except (OSError, EOFError):
                close_all(fds)
                self._stop()
                cancel.check()
                raise KernelError(f"{name}: the object helper ended") from None
        if reply["stage"] == "crash":
            status = reply["status"]
            how = signal.Signals(-status).name if status < 0 else f"exit {status}"
            text = f"libbpf cannot take this object: its process ended ({how})"
            if -status in (signal.SIGXCPU, signal.SIGKILL):
                text = f"not done after {self._cpu_limit:g} s of CPU time"
            raise CompileError(name, [Diagnostic("", 0, 0, "error", text)])
        return reply, fds

    def _ready(self) -> None:
        """Start a helper if none runs. Raises KernelError if it does not start."""
        if self._process is not None:
            if self._process.poll() is None:
                return
            self._stop()
        self._socket, theirs = socket.socketpair()
        output = os.memfd_create("probedeck-objects")
        with theirs:
            command = [sys.executable, "-I", "-S", str(_HERE / "helper.py"), str(theirs.fileno())]
            self._process = subprocess.Popen(
                [*command, str(_COMPILER), clang(), str(_HEADERS)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno()],
                process_group=0,
            )
        self._socket.settimeout(_REPLY_S)
        try:
            ready = self._message()
            self._unconfined, self._folder = ready["unconfined"], ready["folder"]
        except (OSError, EOFError):
            self._process.wait(timeout=1)
            said = os.pread(output, os.fstat(output).st_size, 0).decode(errors="replace")
            reason = (said.strip().splitlines() or ["no reason given"])[-1]
            self._stop()
            hint = install("libbpf") if "libbpf.so" in reason else ""
            raise KernelError(f"the object helper does not start: {reason}", hint=hint) from None
        finally:
            os.close(output)

    def _kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._process.kill()

    def _stop(self) -> None:
        self._kill()
        if self._process is not None:
            self._process.wait()
            self._process = None
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = ""
        self._socket.close()

    def _message(self) -> Any:
        return json.loads(self._receive(int.from_bytes(self._receive(4), "little")))

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._socket.recv(min(size - len(data), 1 << 20))
            if not part:
                raise EOFError
            data += part
        return bytes(data)


def clang() -> str:
    """Return the path of clang; empty if the host lacks it."""
    found = (shutil.which(name) for name in _CLANGS)
    return next((path for path in found if path), "")
