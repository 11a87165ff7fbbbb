"""The console's side of the object helper: sources for libbpf, and objects, become `Compiled`."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bpf.abi import AttachType, ProgType
from bpf.compiler.compiled import Compiled, close_all
from bpf.compiler.diagnostics import CompileError, Diagnostic
from bpf.compiler.process import KILLED_HINT, Helper
from bpf.compiler.source import code_of
from bpf.compiler.store import FORMAT, Store, kernel_id, stored_in
from bpf.errors import KernelError, ProbedeckError, current
from bpf.kernel_types import VMLINUX, kernel_types
from bpf.objects.dialect import SECTIONS, modern_maps
from bpf.objects.result import ObjectRequest, result
from bpf.requirements import install

_HERE = Path(__file__).parent
_COMPILER = _HERE.parent / "compiler"
_HEADERS = _HERE.parent / "headers"
_CONSTANT = r"\bconst\s+volatile\b[^;{{=]*\b{}\b|\bvolatile\s+const\b[^;{{=]*\b{}\b"
_CLANGS = ("clang", *(f"clang-{number}" for number in range(22, 10, -1)))
_WORD = re.compile(r"\w+")
_INTEGERS = ("__u", "__s", "__be", "__le", "u", "s")
_TYPES = (*(f"{kind}{bits}" for kind in _INTEGERS for bits in (8, 16, 32, 64)),
          "__sum16", "__wsum", "bool", "size_t", "pt_regs")  # fmt: skip
"""Types that libbpf's headers name."""
_REPLY_S = 200.0
_IDLE_S = 60.0


class ObjectCompiler:
    """Compiles by clang, and loads by libbpf, in a helper, see `Helper`."""

    def __init__(
        self, cpu_limit: float, stores: Sequence[Store], warn: Callable[[str], None]
    ) -> None:
        """A request may take `cpu_limit` seconds of CPU time. `Compiler` describes `stores` and
        `warn`."""
        self._cpu_limit = cpu_limit
        self._stores = stores
        self._warn = warn
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

        `define` gives `const volatile` variables, and members of variables, their values; other
        names are macros. `Compiler.compile` describes the other arguments and the errors.
        KernelError also if clang or libbpf is missing.
        """
        started = time.perf_counter()
        define = dict(define or {})
        if not data:
            code = code_of("\n".join((source, *(headers or {}).values())))
            is_variable = {n: "." in n or re.search(_CONSTANT.format(n, n), code) for n in define}
            macros = [name for name, found in is_variable.items() if not found]
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
            "said": "",
            "types": [],
        }
        key = "" if data else self._prepare(request)
        reply, fds = self._ask(request, name)
        try:
            if key and self._stores and not reply["stage"] and "files" in reply:
                parts = "object", "said", "files"
                made = {"compiler": clang_id(), **{part: reply[part] for part in parts}}
                self._stores[-1].keep(key, made)
            current().check()
            asked = ObjectRequest(name, source, prog_type, attach_type, function, define, started)
            return result(asked, reply, fds)
        except ProbedeckError:
            close_all(fds)
            raise

    def _prepare(self, request: dict[str, Any]) -> str:
        """Add the stored object of a source to its request, or the input of clang; return the key
        of its object. Raises KernelError without clang."""
        text = "\n".join((request["source"], *request["headers"].values()))
        needs_types = "vmlinux" in text
        parts = [FORMAT, *(request[part] for part in ("source", "headers", "name", "cflags"))]
        parts.append(kernel_id() if needs_types else os.uname().machine)
        key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
        for found in stored_in(self._stores, key, clang_id(), self._warn):
            if not clang() or all(_digest(path) == known for path, known in found["files"].items()):
                request |= {"object": found["object"], "said": found["said"]}
                return key
        if not clang():
            raise KernelError(
                "a source for libbpf needs clang, which is missing", hint=install("clang")
            )
        if needs_types and VMLINUX.exists():
            words = {*_WORD.findall(text), *_WORD.findall(" ".join(request["cflags"])), *_TYPES}
            request["types"] = kernel_types().needed(words)
        return key

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


def _digest(path: str) -> str:
    with contextlib.suppress(OSError):
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return ""


def clang_id() -> str:
    """Return an id of this host's clang, which changes with its package; empty without clang."""
    if not (path := clang()):
        return ""
    state = os.stat(path)
    return f"{os.path.realpath(path)} {state.st_size} {state.st_mtime_ns}"


def clang() -> str:
    """Return the path of clang; empty if the host lacks it."""
    found = (shutil.which(name) for name in _CLANGS)
    return next((path for path in found if path), "")
