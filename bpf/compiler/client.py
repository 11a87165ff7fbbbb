"""The console's side of the compile helper: starts it, asks it, survives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bpf.abi import AttachType, ProgType
from bpf.compiler.compiled import Compiled, close_all, digest
from bpf.compiler.diagnostics import (
    LIMIT_VARIABLE,
    WALL_PER_CPU,
    CompileError,
    Diagnostic,
    cause_of_end,
    parse_clang,
)
from bpf.compiler.instructions import take_constants
from bpf.compiler.process import KILLED, KILLED_HINT, Helper
from bpf.compiler.quota import map_bytes
from bpf.compiler.source import flatten
from bpf.compiler.store import (
    BUNDLED,
    Store,
    StoredProgram,
    compiler_id,
    key_of,
    own_folder,
    stored_in,
)
from bpf.errors import Closing, KernelError, ProbedeckError, current
from bpf.features import kernel_macros
from bpf.machine import possible_cpus, time_limit
from bpf.requirements import install, require
from bpf.syscall import PRIVILEGES

if TYPE_CHECKING:
    from bpf.objects.client import ObjectCompiler

HEADERS = Path(__file__).parent.parent / "headers"
"""A slim stand-in for the running kernel's headers, on top of linux-libc-dev."""
SYSTEM_PYTHON = "/usr/bin/python3"
_HELPER = Path(__file__).with_name("helper.py")
_HELPERS = "".join(
    f"#undef bpf_probe_read_{each}\n" for each in ("kernel", "user", "kernel_str", "user_str")
)
"""For a user who is not root, libbcc replaces these by helpers that programs of a cgroup lack."""
_FLAGS = ("-Werror=implicit-function-declaration", "-Werror=return-type")
"""Constructs that the verifier refuses without a place, or that run and mean something else."""
_CPU_LIMIT_S = 20.0
"""CPU time that one compile may take; a loaded machine makes it last longer, not fail."""
MAP_LIMIT = 1 << 30
"""Bytes of maps that a user's probe may have, unless that is configured."""
_REPLY_GRACE_S = 5.0
"""The helper ends itself at its limits; this much later the client gives up on it."""
_IDLE_S = 60.0
"""Seconds without a request after which the helper ends: it holds 130 MB."""

_NO_BCC = 3
"""Exit status of a look for bcc."""

_Answer = tuple[Any, list[int], str]
"""The helper's reply, descriptors, and the output of clang and libbcc."""


def missing() -> str:
    """Return why this host has no compiler; empty if it has one. Takes some 30 ms."""
    if not os.path.exists(SYSTEM_PYTHON):
        return f"there is no {SYSTEM_PYTHON}"
    look = f"import importlib.util as u, sys; sys.exit(u.find_spec('bcc') is None and {_NO_BCC})"
    if subprocess.run([SYSTEM_PYTHON, "-Ic", look], check=False).returncode == _NO_BCC:
        return f"{SYSTEM_PYTHON} cannot import bcc"
    return ""


class Compiler(Closing):
    """Gives sources' programs and maps, from a store or from a compile helper.

    The helper starts with the first source that no store has, see `Helper`.
    """

    def __init__(
        self,
        *,
        cpu_limit: float = 0.0,
        stores: Sequence[Store] | None = None,
        idle: float = _IDLE_S,
        macros: Mapping[str, int] | None = None,
    ) -> None:
        """A compile may take `cpu_limit` seconds of CPU time; 0: the number of `LIMIT_VARIABLE`.

        `stores` are searched in their order, and the last one keeps new programs: by default
        probedeck's and this host's. `macros` of include/kernel.h are for another kernel than this.
        Raises KernelError if the process or the kernel lacks what every run needs.
        """
        require()
        self.map_limit = MAP_LIMIT
        """Bytes of maps that a user's probe may have."""
        self._cpu_limit = cpu_limit or time_limit(LIMIT_VARIABLE, _CPU_LIMIT_S)
        self._wall_limit = self._cpu_limit * WALL_PER_CPU
        own = Store(own_folder(), own=True)
        self._stores = (Store(BUNDLED, own=False), own) if stores is None else tuple(stores)
        self.warn: Callable[[str], None] = lambda text: None
        """Called with a sentence for each damaged program."""
        self._macros = macros
        self._objects: ObjectCompiler | None = None
        self._helper = Helper(
            "compile helper", _command, _no_start, ready_s=self._wall_limit, idle=idle
        )

    @property
    def objects(self) -> ObjectCompiler:
        """The compiler of sources for libbpf, and of objects."""
        from bpf.objects.client import ObjectCompiler  # few runs need it

        if self._objects is None:
            self._objects = ObjectCompiler(
                self._cpu_limit, self._stores, lambda text: self.warn(text)
            )
        return self._objects

    @property
    def pid(self) -> int:
        """Process id of the helper that runs now. Raises ProbedeckError if none does."""
        return self._helper.pid

    @property
    def is_running(self) -> bool:
        """Whether a helper runs."""
        return self._helper.is_running

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
        KernelError if no compiler works, and CancelError, also once this is closed.
        """
        started = time.perf_counter()
        self._helper.check_open()
        if "\0" in source:
            line = source.count("\n", 0, source.index("\0")) + 1
            raise CompileError(name, [Diagnostic(name, line, 0, "error", "a NUL: this is no text")])
        flat = _HELPERS + flatten(source, name, headers, preludes)
        known = kernel_macros() if self._macros is None else self._macros
        macros = [f"-D{n}={value}" for n, value in known.items() if n in flat]
        text, flags, constants = take_constants(flat, [*_FLAGS, *macros, *cflags])
        request = {
            "source": text,
            "cflags": flags,
            "type": int(prog_type),
            "attach_type": -1 if attach_type is None else int(attach_type),
            "function": function,
            "constants": constants,
            "map_limit": map_limit,
            "cpu_limit": self._cpu_limit,
            "wall_limit": self._wall_limit,
        }
        reply, fds, said = self._stored(request) or self._compiled(request, name, source)
        try:
            current().check()
            kind = prog_type, attach_type
            return digest(name, source, flat, reply, fds, said, kind, constants, started)
        except ProbedeckError:
            close_all(fds)
            raise

    def _stored(self, request: Mapping[str, Any]) -> _Answer | None:
        """Return the answer to a request by a stored program; None if none fits."""
        for content in stored_in(self._stores, key_of(request), compiler_id(), self.warn):
            found = StoredProgram(**content)
            limit = request["map_limit"]
            if limit and found.memory(partial(map_bytes, cpus=possible_cpus())) > limit:
                continue
            fds = found.load(
                ProgType(request["type"]), max(request["attach_type"], 0), request["constants"]
            )
            if any(program["log"] for program in found.reply["programs"]) and compiler_id():
                # This kernel refuses what another one took: the compiler finds the line.
                close_all(fds)
                continue
            return found.reply, fds, found.said
        return None

    def _compiled(self, request: Mapping[str, Any], name: str, source: str) -> _Answer:
        """Return the answer of the compile helper, and store it."""
        reply, fds, said = self._ask(json.dumps(request).encode(), name, source)
        try:
            if self._stores and (made := StoredProgram.of(request["source"], reply, fds, said)):
                self._stores[-1].keep(key_of(request), asdict(made))
        except BaseException:
            close_all(fds)
            raise
        return reply, fds, said

    def _ask(self, request: bytes, name: str, source: str) -> _Answer:
        """Return the helper's reply, its descriptors, and what clang and libbcc printed.

        Raises CompileError if the source brings the helper down, KernelError and CancelError.
        """
        fds: list[int] = []
        with self._helper.turn() as cancel:
            try:
                reply = self._helper.ask(request, self._wall_limit + _REPLY_GRACE_S, fds)
            except (OSError, EOFError):
                close_all(fds)
                self._helper.check_open()
                cancel.check()
                status, said = self._helper.ended()
                if status == -signal.SIGKILL:
                    text = f"{name} does not compile: {KILLED}"
                    raise KernelError(text, hint=KILLED_HINT) from None
                limits = self._cpu_limit, self._wall_limit
                diagnostics = cause_of_end(status, said, name, source, *limits)
                # Its author corrects the source, and compiles again.
                self._helper.start()
                raise CompileError(name, diagnostics) from None
            return reply, fds, self._helper.said()

    def unconfined(self) -> str:
        """Why the helper could not confine itself; empty if it is confined.

        A helper that is not confined can read its user's files, and diagnostics show parts of the
        files that a source includes. Waits for the helper to start; raises KernelError if it can't.
        """
        with self._helper.turn():
            return str(self._helper.greeting["unconfined"])

    def close(self) -> None:
        """End the helpers. A compile that runs in another thread fails at once."""
        if self._objects is not None:
            self._objects.close()
        self._helper.close()


def _command(fd: int) -> list[str]:
    if not os.path.exists(SYSTEM_PYTHON):
        text = f"no compiler is installed: there is no {SYSTEM_PYTHON}"
        raise KernelError(text, hint=install("bcc", "headers"))
    return [SYSTEM_PYTHON, "-I", str(_HELPER), str(fd), str(HEADERS)]


def _no_start(said: str, killed: bool) -> KernelError:
    errors = (str(d) for d in parse_clang(said) if d.severity == "error")
    lines = reversed(said.strip().splitlines())
    reason = next(errors, "") or next(lines, "no reason given")
    hint = ""
    if killed:
        reason, hint = KILLED, KILLED_HINT
    elif "import bcc" in reason:
        hint = install("bcc", "headers")
        return KernelError(f"no compiler is installed: {reason}", hint=hint)
    elif "file not found" in reason or "headers are missing" in reason:
        hint = install("bcc", "headers")
    elif "not permitted" in said or "super-user" in said:
        hint = PRIVILEGES
    return KernelError(f"the compile helper does not start: {reason}", hint=hint)
