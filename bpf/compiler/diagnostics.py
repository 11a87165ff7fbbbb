"""Diagnostics: messages of clang, LLVM and the verifier, with places in the source."""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bpf.compiler.source import place_of
from bpf.errors import UsageError

LIMIT_VARIABLE = "PROBEDECK_COMPILE_LIMIT"
"""Variable that sets another CPU time."""
WALL_PER_CPU = 10
"""Wall-clock seconds that a compile may last, for each second of CPU time that it may take."""
_CRASHING = r"__builtin_(?:clz|ctz|ffs|clrsb|popcount|parity)(?:l|ll)?|__int128"
"""A construct that crashes LLVM unless its operands are constants."""
_CLANG = re.compile(
    r"^(?P<file>[^\s:][^:\n]*):(?P<line>\d+):(?P<column>\d+): "
    r"(?P<severity>fatal error|error|warning|note|remark): (?P<text>.*)$",
    re.MULTILINE,
)
_LLVM = re.compile(
    r"^error: (?P<file>[^\s:]+):(?P<line>\d+):(?P<column>\d+): in function (?P<function>\w+) "
    r".*?(?<=\)): (?P<text>.*)$",
    re.MULTILINE,
)
_NO_INSTRUCTION = re.compile(
    r"^LLVM ERROR: Cannot select: \w+: \S+ = (?P<what>[\w:]+)"
    r"(?:.*?, (?P<file>[^\s,:]+):(?P<line>\d+):(?P<column>\d+))?",
    re.MULTILINE | re.DOTALL,
)
_LLVM_ERROR = re.compile(r"^LLVM ERROR: (?P<text>.*)$", re.MULTILINE)
_ASSEMBLER = re.compile(r"^error: <inline asm>:\d+:\d+: (?P<text>.*)$", re.MULTILINE)
_ADDRESS = re.compile(r" to 0x[0-9a-f]+: .*$")
_MAP = re.compile(r"could not open bpf map: (?P<map>\w+), error: (?P<text>.*)")
_VERIFIER_PLACE = re.compile(r"^.*@ (?P<file>[^\s:]+):(?P<line>\d+)$")
_VERIFIER_STEP = re.compile(
    r"^(\d+: |processed |from \d+ to |R\d+\w*=|(old|cur) state:|frame\d|last_idx|regs=|parent )"
)
_TOO_LARGE = "BPF program is too large"
MOST_LOG = 1 << 18
"""Characters of a log that are kept."""
_INFINITE_LOOP = re.compile(r"infinite loop detected at insn \d+")
_NO_ADDRESS = re.compile(r"\(18\) r\d = 0x[0-9a-f]{1,7}\b")
"""An ld_imm64 of a small constant: an unresolved reference into .rodata or .bss."""
_NOT_IN_THE_KERNEL = "global and static variables, constant tables and long strings"
_HEADERS = (
    "packet.h, probe.h and others of probedeck, and files beside the source, below the "
    "configuration's directory, or in a directory of include"
)
_HINTS = tuple(
    (re.compile(pattern), hint)
    for pattern, hint in (
        (r"file not found$", f"available headers: {_HEADERS}"),
        (r"definition of type 'struct tracepoint__", "programs of packets only, not of tracing"),
        (
            r"^void function '\w+_takes' should not return",
            "an application only looks, so it returns nothing; a probe may drop packets, as "
            "examples/dropper.c does. lookup_or_init() returns, too: use lookup_or_try_init()",
        ),
        (r"^void function .* should not return", "lookup_or_init() does: use lookup_or_try_init()"),
        (r"unsupported map type", "such as hash, percpu_hash, lru_hash, array, queue, lpm_trie"),
        (
            r"bpf_map_def|legacy map definitions",
            'declare maps by bcc\'s macros (BPF_HASH), or for libbpf in SEC(".maps")',
        ),
        (r"BTF is required", "compile it with -g"),
        (r"stripped object file", "strip it with -g, which leaves its symbols"),
        (r"unknown opcode 8d", "compile it with -O2: without it each call is indirect"),
        (r"^'section' attribute only applies", "declare maps outside of functions"),
        (r"map function inside a macro", "make the macro a static inline function"),
        (
            r"^(implicit|call to undeclared)",
            "there is no such helper, map or function before this line",
        ),
        (r"(stack limit|stack allocation)", "at most 504 bytes, and no variable-length arrays"),
        (r"built-in function 'mem\w+'", "its size must be a constant of at most 1024 bytes"),
        (r"built-in function '__\w+'", "neither floating point nor 128-bit arithmetic"),
        (r"no instruction for s(div|rem)\b", "divide unsigned numbers"),
        (r"no instruction for brind\b", "no jump to a computed label"),
        (r"too many args", "a function that is not inlined takes five"),
        (r"expected=map_ptr", "use a map by its methods: map.lookup(&key), map.update(&key, &v)"),
        (r"last insn is not an exit", "every function that is called must be __always_inline"),
        (r"(jump out of range|too large|Argument list too long)$", "make it smaller"),
        (r"instruction limit|too large. Processed|too complex", "unroll less, and branch less"),
        (r"undefined table", "declare a map as its owner does and share it by maps.NAME.share"),
        (r"maps per program has reached", "put several values into one map"),
    )
)
_MAP_HINTS = {
    "Argument list too long": "its size, or its value, is more than the kernel takes",
    "Cannot allocate memory": "out of memory",
    "Invalid argument": (
        "see its size, its key's (4 bytes of an array), and the flags: an LPM trie needs "
        "BPF_F_NO_PREALLOC, a ring buffer a power of two of pages"
    ),
}


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One remark about a source."""

    file: str
    """The source's name; empty if the place is unknown."""
    line: int
    """From 1; 0 if unknown."""
    column: int
    """From 1; 0 if unknown."""
    severity: str
    """`error`, `warning` or `note`."""
    text: str

    def renamed(self, files: Mapping[str, str]) -> Diagnostic:
        """Return the same remark with the file behind the name, if `files` has it."""
        return replace(self, file=files.get(self.file, self.file))

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part)
        return ": ".join(filter(None, (place, self.severity, self.text)))


class CompileError(UsageError):
    """A source that did not compile or verify; the running generation stays."""

    def __init__(
        self, name: str, diagnostics: Sequence[Diagnostic], verifier_log: str = ""
    ) -> None:
        errors = [d for d in diagnostics if d.severity == "error"] or list(diagnostics)
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        what = "load" if name.endswith(".o") else "compile"
        super().__init__(f"{name} does not {what}: {errors[0]}{more}")
        self.name = name
        self.diagnostics = tuple(diagnostics)
        self.verifier_log = verifier_log
        """The verifier's log, see `end_of_log`; empty if the verifier did not refuse."""

    def renamed(self, files: Mapping[str, str]) -> CompileError:
        """Return the same error with file names replaced: `files` maps names in it to new ones."""
        diagnostics = [each.renamed(files) for each in self.diagnostics]
        return CompileError(files.get(self.name, self.name), diagnostics, self.verifier_log)


def parse_clang(output: str) -> tuple[Diagnostic, ...]:
    """Diagnostics in clang's standard form, each once (bcc runs clang more than once)."""
    found = (
        Diagnostic(
            match["file"],
            int(match["line"]),
            int(match["column"]),
            match["severity"].removeprefix("fatal ").replace("remark", "note"),
            hinted(match["text"]),
        )
        for match in _CLANG.finditer(output)
    )
    return tuple(dict.fromkeys(found))


def parse_llvm(name: str, source: str, output: str) -> tuple[Diagnostic, ...]:
    """Return why LLVM gave up on a source that clang had understood; empty if it does not say.

    If LLVM knows only the function, the place is the function's.
    """
    found: list[Diagnostic] = []
    for each in _LLVM.finditer(output):
        place = int(each["line"]), int(each["column"])
        place = place if place[0] else place_of(source, each["function"])
        text = hinted(_ADDRESS.sub("", each["text"]))
        found.append(Diagnostic(each["file"], *place, "error", text))
    if found:
        return tuple(dict.fromkeys(found))
    if match := _NO_INSTRUCTION.search(output):
        text = hinted(f"eBPF has no instruction for {match['what'].rpartition('::')[2]}")
        line, column = int(match["line"] or 0), int(match["column"] or 0)
        return (Diagnostic(match["file"] or "", line, column, "error", text),)
    if match := _ASSEMBLER.search(output):
        place = place_of(source, r"asm|__asm|__asm__")
        return (Diagnostic(name, *place, "error", f"inline assembly: {match['text']}"),)
    if match := _LLVM_ERROR.search(output):
        return (Diagnostic(name, 0, 0, "error", hinted(match["text"])),)
    return ()


def parse_map(name: str, source: str, output: str) -> Diagnostic | None:
    """Return the map that the kernel refused, and why; None if the failure was another."""
    match = _MAP.search(output)
    if match is None:
        return None
    text = f"map {match['map']} cannot be made: {match['text']}"
    if match["text"] == os.strerror(errno.EDQUOT):
        text = (
            f"map {match['map']} would exceed the map memory that a probe may have; "
            "make it smaller, or see --probe-memory"
        )
    if hint := _MAP_HINTS.get(match["text"]):
        text += f"; {hint}"
    line, column = place_of(source, match["map"])
    return Diagnostic(name if line else "", line, column, "error", text)


def parse_verifier(
    program: str, log: str, places: str = "", name: str = "", source: str = ""
) -> Diagnostic:
    """Return the verifier's reason, in plain words and its own, and the line that it had reached.

    `source` is the text of the file `name`, `log` what `end_of_log` returns. The reason is the last
    rows of the log that are neither instructions nor register states. If the log has no lines, the
    place is the last line of `places`, the end of a log with lines.
    """
    from bpf.compiler.advice import advice  # its patterns take 4 ms of each start

    # This reason stands behind an instruction.
    log = log.replace(_TOO_LARGE, f"\n{_TOO_LARGE}")
    place = _last_place(log) or _last_place(places)
    file, line = (place["file"], int(place["line"])) if place else ("", 0)
    if not place and _TOO_LARGE in log and (loop := place_of(source, "for|while|do")[0]):
        # The rounds have pushed the only line out of the log.
        file, line = name, loop
    reason: list[str] = []
    in_reason = False
    for row in log.splitlines():
        is_reason = not row.startswith(";") and bool(row.strip()) and not _VERIFIER_STEP.match(row)
        if is_reason:
            reason = [*reason, row.strip()] if in_reason else [row.strip()]
        in_reason = is_reason
    if endless := _INFINITE_LOOP.search(log):
        reason = [endless[0]]
    text = hinted("; ".join(reason) or "no reason given")
    if "scalar" in text and "map_ptr" not in text and _NO_ADDRESS.search(log):
        text += f"; {_NOT_IN_THE_KERNEL} are not there: use a map, or #define"
    elif said := advice(text, log, source, line if file == name else 0):
        text = f"{said} ({text})"
    return Diagnostic(file, line, 0, "error", f"the verifier refused {program}: {text}")


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


def end_of_log(log: str) -> str:
    """Return a log of the verifier, or its last rows if it is long: its end has the reason."""
    if len(log) <= MOST_LOG:
        return log
    return f"; {len(log) - MOST_LOG} characters before\n{log[-MOST_LOG:].partition(chr(10))[2]}"


def _last_place(log: str) -> re.Match[str] | None:
    found = (_VERIFIER_PLACE.match(row) for row in reversed(log.splitlines()))
    return next((place for place in found if place and place["line"] != "0"), None)


def hinted(text: str) -> str:
    """Return a message with the remedy of a usual mistake."""
    for pattern, hint in _HINTS:
        if pattern.search(text):
            return f"{text}; {hint}"
    return text
