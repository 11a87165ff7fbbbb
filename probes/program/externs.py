"""Shared maps as in bcc: `BPF_TABLE("extern", ...)` names a map of another source."""

from __future__ import annotations

import re
from collections.abc import Callable

from bpf.compiler import CompiledMap, CompileError, Diagnostic
from bpf.compiler.source import code_of

_EXTERN = re.compile(
    r'\bBPF_TABLE\s*\(\s*"extern"\s*,(?P<types>[^()]*),\s*(?P<name>\w+)\s*,[^(),]*\)'
)


def externs(source: str) -> list[str]:
    """Return the names of a source's extern maps."""
    code = code_of(source)
    return [m["name"] for m in _EXTERN.finditer(source) if code.startswith("BPF_TABLE", m.start())]


def resolved(source: str, file: str, find: Callable[[str], CompiledMap | None]) -> str:
    """Return `source` with each extern map declared as `find` knows it. Lines keep their numbers.

    The compiler does not know the map: it no longer has the other source. Raises CompileError,
    with the line in `file`, for a map that `find` does not know.
    """
    names = set(externs(source))

    def declare(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in names:
            return match[0]
        found = find(name)
        if found is None:
            line = source.count("\n", 0, match.start()) + 1
            text = f"no program declares map {name}: declare it in the other direction, or in a "
            text += f"probe that runs and shares it as this one does (maps.{name}.share)"
            raise CompileError(file, [Diagnostic(file, line, 0, "error", text)])
        spec = found.spec
        arguments = f'"{spec.type.name.lower()}",{match["types"]}, {match["name"]}'
        rest = "\n" * (match[0].count("\n") - match["types"].count("\n"))
        return f"BPF_F_TABLE({arguments}, {spec.max_entries}, {int(spec.flags)}{rest})"

    return _EXTERN.sub(declare, source)
