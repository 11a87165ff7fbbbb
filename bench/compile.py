"""The compile helper's round trip against bcc as it comes, in one run, interleaved.

    python -I -m bench.compile [--headers DIR] [--rounds 21]

The opponent is a plain `BPF(text=)` in a process of its own that stays warm too, with a kernel's
full headers (Debian: linux-headers-amd64); any version will do, as nothing is run.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from bench.support.report import Report
from bpf.abi import ProgType
from bpf.compiler import Compiled, Compiler
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


def clone(compiled: Compiled) -> float:
    """Seconds to load the same program once more, on new maps."""
    started = time.perf_counter()
    program = Program(compiled, "monitor")
    seconds = time.perf_counter() - started
    program.close()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--headers", type=Path, help="a kernel's whole header tree")
    parser.add_argument("--rounds", type=int, default=21)
    options = parser.parse_args()
    report = Report("compiling a program of 100 lines")
    text = PROGRAM.read_text(encoding="utf-8")
    ours: list[float] = []
    plain: list[float] = []
    clones: list[float] = []
    with tempfile.TemporaryDirectory() as directory, Compiler(stores=()) as compiler:
        headers = options.headers or debian_headers(Path(directory))
        opponent = Plain(headers) if headers else None
        for _ in range(options.rounds + 1):
            with compiler.compile(text, ProgType.XDP, name=PROGRAM.name) as compiled:
                ours.append(compiled.seconds)
                clones.append(clone(compiled))
            if opponent:
                plain.append(opponent.compile())
    helper = statistics.median(ours[1:])
    report.target("helper, round trip", f"{helper * 1e3:.1f} ms", helper <= 0.045)
    report.row("a clone of it", f"{statistics.median(clones[1:]) * 1e3:.2f} ms")
    if opponent:
        opponent.close()
        other = statistics.median(plain[1:])
        report.row("BPF(text=) with full headers", f"{other * 1e3:.1f} ms")
        report.target(
            "helper against it", f"{other / helper:.1f} times faster", other >= 6 * helper
        )
    else:
        report.row("BPF(text=) with full headers", "not measured: no headers; give --headers")
    report.end()


if __name__ == "__main__":
    main()
