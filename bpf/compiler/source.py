"""From a probe's C file to the one text that bcc compiles, every line still known by its place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from bpf.abi import ProgType

INCLUDES = Path(__file__).parent.parent / "include"
"""Headers for probes."""
_INCLUDE = re.compile(r'^\s*#\s*include\s+"(?P<name>[^"]+)"')
_CONTEXTS = {ProgType.XDP: "xdp_md", ProgType.SCHED_CLS: "__sk_buff"}
_KNOWN_CONTEXTS = frozenset({*_CONTEXTS.values(), "sk_buff", "pt_regs", "bpf_sock_ops"})
_STATEMENT_END = (";", "{", "}")
_NO_CODE = re.compile(
    r"""//(?:\\\r?\n|[^\n])*|/\*.*?(?:\*/|\Z)|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.DOTALL
)


def flatten(text: str, name: str, headers: Mapping[str, str] | None = None) -> str:
    """`text` with its `#include "..."` replaced by the headers' text, each header once.

    A header is one of `headers`, by name, or a file of bpf/include; any other is left to the
    compiler.

    bcc cannot take a map's method in an included header. `#line` directives keep the places:
    one at each statement, because bcc's rewriter puts lines of its own between functions.
    """
    own = {path.name: path for path in INCLUDES.iterdir()}
    return "\n".join(_lines(text, name, headers or {}, own, set())) + "\n"


def code_of(text: str) -> str:
    """`text` with its comments and literals blank: each character of code is where it was."""
    return _NO_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def place_of(text: str, word: str) -> tuple[int, int]:
    """Line and column, from 1, of the first `word` in code; zeros where there is none."""
    code = code_of(text)
    if not word or (match := re.search(rf"\b(?:{word})\b", code)) is None:
        return 0, 0
    at = match.start()
    return code.count("\n", 0, at) + 1, at - code.rfind("\n", 0, at)


def misfit(text: str, function: str, prog_type: ProgType) -> str:
    """Why a function is no program of this type: it would read its packet's place as another."""
    own = _CONTEXTS.get(prog_type)
    found = re.search(rf"\b{function}\s*\(\s*(?:const\s+)?struct\s+(\w+)\s*\*", code_of(text))
    if own is None or found is None or found[1] == own or found[1] not in _KNOWN_CONTEXTS:
        return ""
    return f"{function} takes a struct {found[1]}, and a program of this hook gets a struct {own}"


def _lines(
    text: str, name: str, headers: Mapping[str, str], own: Mapping[str, Path], seen: set[str]
) -> list[str]:
    text = text.removeprefix("\ufeff")
    out = [f'#line 1 "{name}"']
    after_statement = False
    codes = code_of(text).split("\n")
    for number, (line, code) in enumerate(zip(text.split("\n"), codes, strict=True), 1):
        code = code.strip()
        match = _INCLUDE.match(line) if code.startswith("#") else None
        header = match["name"] if match else ""
        if header in headers or header in own:
            if header not in seen:
                seen.add(header)
                content = headers.get(header) or own[header].read_text(encoding="utf-8")
                out += _lines(content, header, headers, own, seen)
            out.append(f'#line {number + 1} "{name}"')
            after_statement = False
            continue
        if after_statement and code:
            out.append(f'#line {number} "{name}"')
        out.append(line)
        if code.startswith("#"):
            # clang does not heed a #line in a branch that is not taken.
            after_statement = not code.endswith("\\")
        elif code:
            after_statement = code.endswith(_STATEMENT_END)
    return out
