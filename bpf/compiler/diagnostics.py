"""What clang, LLVM and the verifier say, as places in the source."""

from __future__ import annotations

import re
from dataclasses import dataclass

_CLANG = re.compile(
    r"^(?P<file>[^\s:][^:\n]*):(?P<line>\d+):(?P<column>\d+): "
    r"(?P<severity>fatal error|error|warning|note|remark): (?P<text>.*)$",
    re.MULTILINE,
)
_VERIFIER_PLACE = re.compile(r"^; .*@ (?P<file>[^\s:]+):(?P<line>\d+)$")
_VERIFIER_STEP = re.compile(
    r"^(\d+: |processed |from \d+ to |R\d+\w*=|(old|cur) state:|frame\d|last_idx|regs=|parent )"
)
_INFINITE_LOOP = re.compile(r"infinite loop detected at insn \d+")


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One remark about a source."""

    file: str
    """The source's name; empty where the place is unknown."""
    line: int
    """From 1; 0 where unknown."""
    column: int
    """From 1; 0 where unknown."""
    severity: str
    """`error`, `warning` or `note`."""
    text: str

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part)
        return (
            f"{place}: {self.severity}: {self.text}" if place else f"{self.severity}: {self.text}"
        )


def parse_clang(output: str) -> tuple[Diagnostic, ...]:
    """Diagnostics in clang's standard form, each once (bcc runs clang more than once)."""
    found = {
        Diagnostic(
            match["file"],
            int(match["line"]),
            int(match["column"]),
            match["severity"].removeprefix("fatal ").replace("remark", "note"),
            match["text"],
        ): None
        for match in _CLANG.finditer(output)
    }
    return tuple(found)


def parse_verifier(program: str, log: str) -> Diagnostic:
    """The verifier's reason and the source line that it had come to.

    The reason is the last lines of the log that are neither instructions nor register states.
    """
    file, line = "", 0
    reason: list[str] = []
    in_reason = False
    for row in log.splitlines():
        place = _VERIFIER_PLACE.match(row)
        if place and place["file"] and place["line"] != "0":
            file, line = place["file"], int(place["line"])
        is_reason = not row.startswith(";") and bool(row.strip()) and not _VERIFIER_STEP.match(row)
        if is_reason:
            reason = [*reason, row.strip()] if in_reason else [row.strip()]
        in_reason = is_reason
    if loop := _INFINITE_LOOP.search(log):
        reason = [loop[0]]
    text = "; ".join(reason) or "no reason given"
    return Diagnostic(file, line, 0, "error", f"the verifier refused {program}: {text}")
