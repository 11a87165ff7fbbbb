"""From a probe's C file to the one text that bcc compiles; every line keeps its place."""

from __future__ import annotations

import functools
import posixpath
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from bpf.abi import ProgType

INCLUDES = Path(__file__).parent.parent / "include"
"""Headers for probes."""
_NAME = "\0"
"""Stands for the name of a source, which contains no NUL."""
_INCLUDE = re.compile(r'^\s*#\s*include\s*"(?P<name>[^"]+)"')
INCLUDE_SYSTEM = re.compile(r"^\s*#\s*include\s*<(?P<name>[^>]+)>")
_CONTEXTS = {
    ProgType.XDP: "xdp_md",
    ProgType.SCHED_CLS: "__sk_buff",
    ProgType.RAW_TRACEPOINT: "bpf_raw_tracepoint_args",
    ProgType.CGROUP_SOCK: "bpf_sock",
    ProgType.CGROUP_SOCK_ADDR: "bpf_sock_addr",
    ProgType.SOCK_OPS: "bpf_sock_ops",
}
_PACKET_TYPES = (ProgType.XDP, ProgType.SCHED_CLS)
_OTHER_CONTEXTS = (
    "xdp_md|__sk_buff|sk_buff|pt_regs|bpf_sock_ops|bpf_sock|bpf_sock_addr|bpf_sockopt|bpf_sysctl|"
    r"sk_msg_md|sk_reuseport_md|bpf_perf_event_data|bpf_raw_tracepoint_args|tracepoint__\w+"
)
_TRACING = re.compile(r"(tracepoint|raw_tracepoint|kprobe|kretprobe|kfunc|kretfunc|kmod_ret|lsm)__")
"""Names that bcc gives, by a macro such as TRACEPOINT_PROBE, to functions of tracing programs."""
_DEFINITION = re.compile(
    r"\b(?:struct|union|enum)\s+(\w+)\s*\{|\b(\w+)\s*\((?:[^;{}()]|\([^()]*\))*\)\s*\{"
)
"""The beginning of a struct, or of a function (also of an `if`, which does no harm)."""
_BRACKET = re.compile(r"[](){}[]")
_STATEMENT_END = (";", "{", "}")
_NO_CODE = re.compile(
    r"""//(?:\\\r?\n|[^\n])*|/\*.*?(?:\*/|\Z)|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.DOTALL
)


def flatten(
    text: str, name: str, headers: Mapping[str, str] | None = None, preludes: Iterable[str] = ()
) -> str:
    """Return `text` with its `#include "..."` replaced by the headers' text, each header once.

    The headers `preludes` stand before it.

    A header is one of `headers`, see `find_header`, or a file of bpf/include. The compiler looks
    for all others.

    bcc cannot take a map's method in an included header. Each statement gets a `#line` directive,
    which keeps its place: bcc's rewriter inserts lines between functions.
    """
    given = tuple((headers or {}).items())
    return _flat(text, given, tuple(preludes), INCLUDES).replace(_NAME, name)


@functools.lru_cache(maxsize=4)
def _flat(
    text: str, headers: tuple[tuple[str, str], ...], preludes: tuple[str, ...], includes: Path
) -> str:
    """As `flatten`, of a source called `_NAME`: both directions of a probe often have the same."""
    found = _Headers(dict(headers), {path.name: path for path in includes.iterdir()})
    lines = [line for each in preludes for line in _lines(f'#include "{each}"', _NAME, "", found)]
    return "\n".join((*lines, *_lines(text, _NAME, "", found))) + "\n"


def prelude_macros(text: str, externs: Iterable[str]) -> dict[str, int]:
    """Return the macros that tell a prelude about the source behind it, see framework.h."""
    names = [f"DEFINES_{one or other}" for one, other in _DEFINITION.findall(code_of(text))]
    facts = dict.fromkeys([*names, *(f"EXTERN_{each}" for each in externs)], 1)
    if "epoch" in text.lower():
        # Other sources are not compiled anew at each start.
        facts["EPOCH_NS"] = time.time_ns() - time.monotonic_ns()
    return facts


def find_header(name: str, including: str, headers: Iterable[str]) -> str:
    """Return the header of `#include "name"`; empty if `headers` does not contain it.

    `headers` and `including`, the file with the directive, are paths relative to the source's
    directory, with `/`. A header beside the including file comes first, as with a C compiler.
    """
    for path in (posixpath.join(posixpath.dirname(including), name), name):
        if (normal := posixpath.normpath(path)) in headers:
            return normal
    return ""


def included(text: str, form: re.Pattern[str] = _INCLUDE) -> Iterator[str]:
    """Yield the names in `#include "..."`, in order; also those in branches that are not taken.

    With `form = INCLUDE_SYSTEM` the names in `#include <...>`.
    """
    for line, code in zip(text.split("\n"), code_of(text).split("\n"), strict=True):
        if code.lstrip().startswith("#") and (match := form.match(line)):
            yield match["name"]


@functools.lru_cache(maxsize=8)
def code_of(text: str) -> str:
    """Return `text` with its comments and literals blank; code keeps its place."""
    return _NO_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def place_of(text: str, word: str) -> tuple[int, int]:
    """Return line and column, from 1, of the first `word` in code; zeros if it is not there."""
    code = code_of(text)
    if not word or (match := re.search(rf"\b(?:{word})\b", code)) is None:
        return 0, 0
    at = match.start()
    return code.count("\n", 0, at) + 1, at - code.rfind("\n", 0, at)


def fits_every_hook(text: str) -> bool:
    """Whether a source is written for XDP and TC alike, by the macros of bpf/include/probe.h.

    A source that names XDP's context, verdicts or helpers is not: XDP_PASS would drop every packet
    on TC.
    """
    code = code_of(text)
    if re.search(r"\bHOOK_(?:XDP|TC_\w+)\b", code):
        return True
    return bool(re.search(r"\bCONTEXT\b", code)) and not re.search(
        r"\b(?:xdp_md|XDP_(?:ABORTED|DROP|PASS|TX|REDIRECT)|bpf_xdp_\w+|redirect_map)\b", code
    )


def context_mismatch(text: str, function: str, prog_type: ProgType) -> str:
    """Return why a function is no program of this type; empty if it may be one.

    Its argument would be another structure, and the packet's place read from a wrong offset.
    """
    own = _CONTEXTS.get(prog_type)
    if own is None:
        return ""
    # A macro made the name: the source does not say it.
    if (kind := _TRACING.match(function)) and place_of(text, function) == (0, 0):
        if prog_type is ProgType.RAW_TRACEPOINT and kind[1] == "raw_tracepoint":
            return ""
        what = "programs of packets" if prog_type in _PACKET_TYPES else "other programs"
        return f"{function} is a tracing program ({kind[1]}), and this hook runs {what}"
    pattern = rf"\b{function}\s*\(\s*(?:const\s+)?struct\s+({_OTHER_CONTEXTS})\s*\*"
    found = re.search(pattern, code_of(text))
    if found is None or found[1] == own:
        return ""
    return f"{function} takes a struct {found[1]}, and a program of this hook gets a struct {own}"


class _Headers:
    """The headers at hand, and which of them are in the text already."""

    def __init__(self, given: Mapping[str, str], bundled: Mapping[str, Path]) -> None:
        self._given = given
        self._bundled = bundled
        self._seen: set[tuple[str, bool]] = set()

    def find(self, name: str, including: str, bundled: bool) -> tuple[str, bool] | None:
        """Return a header's name and whether it is of bpf/include; those prefer their own kind."""
        given = find_header(name, including, self._given)
        if given and not (bundled and name in self._bundled):
            return given, False
        return (name, True) if name in self._bundled else None

    def take(self, found: tuple[str, bool]) -> str | None:
        """Return a header's text the first time, None after that."""
        if found in self._seen:
            return None
        self._seen.add(found)
        name, bundled = found
        return self._bundled[name].read_text(encoding="utf-8") if bundled else self._given[name]


def _lines(
    text: str, name: str, path: str, headers: _Headers, bundled: bool = False
) -> Iterator[str]:
    """Yield the lines of a file; the lines of a header take the place of its `#include`.

    `#line` directives call the file `name`. `path` is relative to the source's directory.
    """
    text = text.removeprefix("\ufeff")
    yield f'#line 1 "{name}"'
    after_statement = continues = False
    depth = 0
    codes = code_of(text).split("\n")
    for number, (line, blank) in enumerate(zip(text.split("\n"), codes, strict=True), 1):
        code = blank.strip()
        directive = code.startswith("#") or continues
        # A backslash ends a line of a macro, or of an #include that is none of ours.
        continues = directive and code.endswith("\\")
        match = _INCLUDE.match(line) if code.startswith("#") else None
        if match and (found := headers.find(match["name"], path, bundled)):
            if (content := headers.take(found)) is not None:
                yield from _lines(content, found[0], found[0], headers, found[1])
            yield f'#line {number + 1} "{name}"'
            after_statement = False
            continue
        if after_statement and code:
            yield f'#line {number} "{name}"'
        if directive:
            # Each header is taken once, and clang warns of the pragma in a main file.
            yield "" if path and code == "#pragma once" else line
        else:
            bodies, depth = _bodies(line, blank, depth)
            for at, part in enumerate(bodies):
                if at:
                    yield f'#line {number} "{name}"'
                yield part
        if code.startswith("#"):
            # clang ignores a #line in a branch that is not taken.
            after_statement = not code.endswith("\\")
        elif code:
            after_statement = code.endswith(_STATEMENT_END)


def _bodies(line: str, code: str, depth: int) -> tuple[list[str], int]:
    """Cut a line behind each `{` of the outermost level that more code follows.

    bcc's rewriter puts a line before each function: what follows on the function's own line needs
    a `#line`, too. Every part keeps its column. Also returns how many brackets are open afterwards.
    """
    parts, start = [], 0
    for bracket in _BRACKET.finditer(code):
        if bracket[0] in "({[":
            after = bracket.end()
            if bracket[0] == "{" and not depth and code[after:].strip():
                parts.append(line[start:after])
                start = after
            depth += 1
        else:
            depth = max(0, depth - 1)
    parts.append(line[start:])
    # A bracket on one side of an #if only must not be waited for.
    depth = 0 if code.startswith("}") else depth
    columns = 0
    for at, part in enumerate(parts):
        parts[at] = " " * columns + part
        columns += len(part.encode())
    return parts, depth
