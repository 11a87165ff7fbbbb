"""Why a compile helper ended in the middle of a compile."""

from __future__ import annotations

import signal

from bpf.compiler.diagnostics import Diagnostic, parse_clang, parse_llvm
from bpf.compiler.source import place_of

LIMIT_VARIABLE = "PROBEDECK_COMPILE_LIMIT"
"""Variable that sets another CPU time."""
WALL_PER_CPU = 10
"""Wall-clock seconds that a compile may last, for each second of CPU time that it may take."""
KILLED = "the compile helper was killed (SIGKILL), as the kernel does when memory runs out"
KILLED_HINT = (
    "give the host, or the memory.max of this cgroup, 300 MB or more; dmesg has the kernel's words"
)
_CRASHING = r"__builtin_(?:clz|ctz|ffs|clrsb|popcount|parity)(?:l|ll)?|__int128"
"""A construct that crashes LLVM unless its operands are constants."""


def cause_of_end(
    status: int, said: str, name: str, source: str, cpu_limit: float, wall_limit: float
) -> tuple[Diagnostic, ...]:
    """Return diagnostics for the exit status of a helper, which printed `said`."""
    file, place = "", (0, 0)
    if status == -signal.SIGPROF:
        text = (
            f"the compiler was stopped: not done after {cpu_limit:g} s of CPU time; on a "
            f"slow machine set {LIMIT_VARIABLE} to more seconds"
        )
    elif status == -signal.SIGALRM:
        text = (
            f"the compiler was stopped: not done after {wall_limit:g} s, {WALL_PER_CPU} times "
            f"{LIMIT_VARIABLE}"
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
