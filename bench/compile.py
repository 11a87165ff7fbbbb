"""The compile helper's round trip against bcc as it comes, in one run, interleaved.

The opponent is a plain `BPF(text=)` in a process of its own that stays warm too, with a kernel's
full headers (Debian: linux-headers-amd64); any version will do, as nothing is run.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from bench.runner.cases import Case, Effort, Group, MissingError, at_most
from bpf.abi import ProgType
from bpf.compiler import Compiler
from bpf.compiler.client import SYSTEM_PYTHON
from bpf.programs.program import Program

PROGRAM = Path(__file__).with_name("hundred.c")

_PLAIN = """
import atexit, os, sys
os.environ["BCC_KERNEL_SOURCE"] = sys.argv[1]
from bcc import BPF
text = open(sys.argv[2]).read()
for line in sys.stdin:
    b = BPF(text=text)
    b.load_func("monitor", BPF.XDP)
    b.cleanup()
    atexit.unregister(b.cleanup)
    print("done", flush=True)
"""


def debian_headers(into: Path) -> Path | None:
    """A kernel's whole header tree, put together of Debian's two packages; None without them."""
    for built in sorted(Path("/usr/src").glob("linux-headers-*-amd64"), reverse=True):
        common = built.with_name(built.name.removesuffix("amd64") + "common")
        for place in ("include", "arch/x86/include"):
            (into / place).mkdir(parents=True)
            for tree in (common, built):
                for entry in (tree / place).iterdir():
                    (into / place / entry.name).symlink_to(entry)
        return into
    return None


class Plain:
    """bcc used as its documentation says."""

    def __init__(self, headers: Path) -> None:
        self._process = subprocess.Popen(
            [SYSTEM_PYTHON, "-I", "-c", _PLAIN, str(headers), str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )

    def compile(self) -> float:
        """Seconds of one compilation and load."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        started = time.perf_counter()
        self._process.stdin.write(b"\n")
        if self._process.stdout.readline() != b"done\n":
            raise SystemExit("bcc could not compile with these headers")
        return time.perf_counter() - started

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def helper(stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """Compile by turns, each time anew."""
    text = PROGRAM.read_text(encoding="utf-8")
    compiler = stack.enter_context(Compiler(stores=()))

    def compile_once() -> float:
        with compiler.compile(text, ProgType.XDP, name=PROGRAM.name) as compiled:
            return compiled.seconds * 1e3

    kept = stack.enter_context(compiler.compile(text, ProgType.XDP, name=PROGRAM.name))

    def clone() -> float:
        started = time.perf_counter()
        program = Program(kept, "monitor")
        taken = time.perf_counter() - started
        program.close()
        return taken * 1e3

    name = "compile and load a program of 100 lines"
    yield Case(f"{name}, helper", "ms", compile_once, goal=at_most(45))
    yield Case(f"{name}, a clone on new maps", "ms", clone, compile_once, "the first program")
    headers = debian_headers(Path(stack.enter_context(tempfile.TemporaryDirectory())))
    if not headers:
        raise MissingError("bcc as it comes: no kernel's full headers; install linux-headers-amd64")
    plain = Plain(headers)
    stack.callback(plain.close)
    yield Case(f"{name}, beside bcc", "ms", compile_once, lambda: plain.compile() * 1e3,
               "BPF(text=) with full headers", goal=at_most(1 / 6))  # fmt: skip


GROUPS = (Group("by turns", helper, 21),)
