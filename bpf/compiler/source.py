"""From a probe's C file to the one text that bcc compiles, every line still known by its place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from bpf.errors import UsageError

INCLUDES = Path(__file__).parent.parent / "include"
"""Headers for probes."""
_INCLUDE = re.compile(r'^\s*#\s*include\s+"(?P<name>[^"]+)"')
_STATEMENT_END = (";", "{", "}", "*/")


def flatten(text: str, name: str, headers: Mapping[str, str] | None = None) -> str:
    """`text` with its `#include "..."` replaced by the headers' text, each header once.

    A header is one of `headers`, by name, or a file of bpf/include.

    bcc cannot take a map's method in an included header. `#line` directives keep the places:
    one at each statement, because bcc's rewriter puts lines of its own between functions.
    Raises UsageError, with file and line, for a header that there isn't.
    """
    return "\n".join(_lines(text, name, headers or {}, set())) + "\n"


def _lines(text: str, name: str, headers: Mapping[str, str], seen: set[str]) -> list[str]:
    out = [f'#line 1 "{name}"']
    after_statement = False
    for number, line in enumerate(text.split("\n"), 1):
        if match := _INCLUDE.match(line):
            header = match["name"]
            if header not in seen:
                seen.add(header)
                out += _lines(_read(header, headers, f"{name}:{number}"), header, headers, seen)
            out.append(f'#line {number + 1} "{name}"')
            after_statement = False
            continue
        code = line.strip()
        if after_statement and code:
            out.append(f'#line {number} "{name}"')
        out.append(line)
        if code.startswith("#"):
            # clang does not heed a #line in a branch that is not taken.
            after_statement = not code.endswith("\\")
        elif code and not code.startswith("//"):
            after_statement = code.endswith(_STATEMENT_END)
    return out


def _read(header: str, headers: Mapping[str, str], place: str) -> str:
    if header in headers:
        return headers[header]
    path = INCLUDES / header
    if not path.is_file():
        known = sorted({*headers, *(file.name for file in INCLUDES.iterdir())})
        raise UsageError(f'{place}: no header "{header}"', hint=f"there are {', '.join(known)}")
    return path.read_text(encoding="utf-8")
