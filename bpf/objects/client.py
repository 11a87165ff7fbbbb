"""The console's side of the object helper: sources for libbpf, and objects, become `Compiled`."""

from __future__ import annotations

import base64
import json
import re
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bpf.abi import AttachType, ProgType
from bpf.cancel import current
from bpf.compiler.compiled import Compiled, close_all
from bpf.compiler.diagnostics import CompileError, Diagnostic
from bpf.compiler.endings import KILLED_HINT
from bpf.compiler.packages import install
from bpf.compiler.process import Helper
from bpf.compiler.source import code_of
from bpf.errors import KernelError, ProbedeckError
from bpf.objects.dialect import SECTIONS, modern_maps
from bpf.objects.result import ObjectRequest, result

_HERE = Path(__file__).parent
_COMPILER = _HERE.parent / "compiler"
_HEADERS = _HERE.parent / "headers"
_CONSTANT = r"\bconst\s+volatile\b[^;{{=]*\b{}\b|\bvolatile\s+const\b[^;{{=]*\b{}\b"
_CLANGS = ("clang", *(f"clang-{number}" for number in range(22, 10, -1)))
_REPLY_S = 200.0
_IDLE_S = 60.0


class ObjectCompiler:
    """Compiles by clang, and loads by libbpf, in a helper, see `Helper`."""

    def __init__(self, cpu_limit: float) -> None:
        """A request may take `cpu_limit` seconds of CPU time."""
        self._cpu_limit = cpu_limit
        self._helper = Helper(
            "object helper", _command, _no_start, ready_s=_REPLY_S, idle=_IDLE_S, clean=_clean
        )

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
            "source": modern_maps(source),
            "headers": {name: modern_maps(text) for name, text in (headers or {}).items()},
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
        with self._helper.turn():
            return str(self._helper.greeting["unconfined"])

    def close(self) -> None:
        """End the helper."""
        self._helper.close()

    def _ask(self, request: dict[str, Any], name: str) -> tuple[dict[str, Any], list[int]]:
        fds: list[int] = []
        with self._helper.turn() as cancel:
            try:
                reply = self._helper.ask(json.dumps(request).encode(), _REPLY_S, fds)
            except (OSError, EOFError):
                close_all(fds)
                self._helper.check_open()
                self._helper.end()
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


def _command(fd: int) -> list[str]:
    helper = [sys.executable, "-I", "-S", str(_HERE / "helper.py"), str(fd)]
    return [*helper, str(_COMPILER), clang(), str(_HEADERS)]


def _no_start(said: str, killed: bool) -> KernelError:
    reason = (said.strip().splitlines() or ["no reason given"])[-1]
    hint = install("libbpf") if "libbpf.so" in reason else ""
    if killed:
        reason, hint = "it was killed (SIGKILL)", KILLED_HINT
    return KernelError(f"the object helper does not start: {reason}", hint=hint)


def _clean(greeting: dict[str, Any]) -> None:
    if folder := greeting.get("folder"):
        shutil.rmtree(folder, ignore_errors=True)


def clang() -> str:
    """Return the path of clang; empty if the host lacks it."""
    found = (shutil.which(name) for name in _CLANGS)
    return next((path for path in found if path), "")
