"""The verifier's usual reasons in plain words, with the fix, named as the source names things.

An entry of `_ADVICE` has a pattern of the verifier's reason, and a text or a function that makes
one. Texts of functions name the variable, the map and the packet's pointers if the source tells.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from bpf.machine import LOCKED_DOWN, is_locked_down

_LOOKUP = re.compile(
    r"(?P<variable>\w+)\s*=\s*(?:\([^()]*\)\s*)?(?:bpf_map_lookup_\w+\s*\(\s*&\s*)?"
    r"(?P<map>\w+)\s*(?:\.\s*(?:lookup\w*|ringbuf_reserve)\s*\(|,)"
)
_CONTEXT = re.compile(r"(?P<variable>\w+)\s*=\s*[^;,=]*->\s*(?P<field>data|data_end)\b(?!_)")
_MAP = re.compile(r"\bmap=(\w+)")
_VALUE = re.compile(r"=map_value\w*\([^)]*\bvs=(\d+)")
_INDEX = re.compile(r"\[\s*(\w+)\s*\]")
_CALL = re.compile(r"call (?:bpf_)?(\w+)#\d+")
_MOVING = re.compile(
    r"call bpf_((?:xdp|skb)_(?:adjust|change|pull|store|vlan|clone)\w*|l[34]_csum_replace)#"
)
_RANGE = re.compile(r"off=(-?\d+) size=(\d+)(?:.*?\br=(\d+))?")
_SIZE = re.compile(r"\*\((?:u|s)(8|16|32|64) \*\)")
_HOOK = "a program of this hook"


@dataclass(frozen=True, slots=True)
class RefusedLine:
    """A refusal: its reason, the end of the log, and the statement in the source."""

    reason: str
    log: str
    statement: str
    """The refused line; empty if it is unknown."""
    source: str

    @property
    def map(self) -> str:
        """Name of the map that the last registers point into, or empty."""
        found = _MAP.findall(self.log[-2000:])
        return found[-1] if found else ""

    @property
    def pointer(self) -> tuple[str, str]:
        """Variable and map of the lookup whose result the statement uses; empty if unknown."""
        lookups = [(found["variable"], found["map"]) for found in _LOOKUP.finditer(self.source)]
        for variable, name in reversed(lookups):
            if _uses(self.statement, variable) and self.map in ("", name):
                return variable, name
        return "", self.map

    def packet(self, field: str) -> str:
        """Return the variable with the packet's `data` or `data_end`."""
        found = (
            each["variable"] for each in _CONTEXT.finditer(self.source) if each["field"] == field
        )
        return next(found, f"(long)ctx->{field}")


_Advice = str | Callable[[RefusedLine, re.Match[str]], str]


def _uses(statement: str, variable: str) -> bool:
    name = re.escape(variable)
    return bool(re.search(rf"\*\s*{name}\b|\b{name}\s*(->|\[)", statement))


def _null(mistake: RefusedLine, _: re.Match[str]) -> str:
    variable, name = mistake.pointer
    of = f" (lookup of `{name}`)" if name else ""
    if not variable:
        return f"a pointer may be NULL{of}: test it before its first use"
    parts = (part.strip() for part in mistake.statement.split(";"))
    use = next((p for p in parts if _uses(p, variable) and not _LOOKUP.search(p)), "")
    simple = re.fullmatch(r"[\w\s*()+\-<>.\[\]]*?(\+\+|--|[+\-|&^]?=[^=].*)", use)
    declares = re.match(r"\w+\s+\*?\w+\s*=", use)
    if simple and not declares:
        return f"{variable} may be NULL{of}: write  if ({variable}) {use};"
    return f"{variable} may be NULL{of}: write before  if (!{variable}) return VERDICT_PASS;"


def _not_null(mistake: RefusedLine, match: re.Match[str]) -> str:
    variable, name = mistake.pointer
    of = f" of `{name}`" if name else ""
    return f"{variable or 'this pointer'}{of} may be NULL: test it before its first use"


def _packet(mistake: RefusedLine, match: re.Match[str]) -> str:
    data, end = mistake.packet("data"), mistake.packet("data_end")
    found = _RANGE.search(mistake.reason)
    if found is None:
        return f"bytes of the packet are used before their length is checked against {end}"
    offset, size, checked = int(found[1]), int(found[2]), int(found[3] or 0)
    end_of = offset + size
    what = f"byte {offset}" if size == 1 else f"bytes {offset} to {end_of - 1}"
    known = f"only {checked} are checked" if checked else "no length is checked"
    if "id=0" not in mistake.reason and "id=" in mistake.reason:
        return f"{what} after a pointer into the packet: {known}; compare it with {end} before"
    return (
        f"the line uses {what} of the packet, and {known}: write before  "
        f"if ((void *){data} + {end_of} > (void *){end}) return VERDICT_PASS;"
    )


def _helper(mistake: RefusedLine, match: re.Match[str]) -> str:
    if is_locked_down(mistake.reason):
        return LOCKED_DOWN
    helper = match["helper"] or "such helper"
    return f"{_HOOK} has no {helper}: see the helpers of its kind (XDP or TC) in bpf-helpers(7)"


def _index(mistake: RefusedLine, _: re.Match[str]) -> str:
    index = _INDEX.search(mistake.statement)
    name = index[1] if index and not index[1].isdigit() else "the index"
    of = f" of `{mistake.map}`" if mistake.map else ""
    sizes, widths = _VALUE.findall(mistake.log[-2000:]), _SIZE.findall(mistake.log[-600:])
    count = int(sizes[-1]) * 8 // int(widths[-1]) if sizes and widths else 0
    if name == "the index" or count < 1:
        return (
            f"{name}{of} may be negative or too large: limit it before, as in  if (i >= N) return"
        )
    return f"{name} may be outside of the value{of}: write before  if ({name} >= {count}) return"


def _value(mistake: RefusedLine, match: re.Match[str]) -> str:
    size, offset, width = (int(match[n]) for n in (1, 2, 3))
    of = f" of `{mistake.map}`" if mistake.map else ""
    return (
        f"the line uses bytes {offset} to {offset + width - 1} of a value{of}, which has {size}: "
        "limit the index, or declare the value larger"
    )


def _reference(mistake: RefusedLine, _: re.Match[str]) -> str:
    calls = _CALL.findall(mistake.log)
    if "ringbuf_reserve" in calls:
        return (
            "a reserved record is not given back on each way out: call ringbuf_submit(record, 0) "
            "or ringbuf_discard(record, 0) before each return"
        )
    return (
        "a socket is not given back on each way out: call bpf_sk_release(sk) before each return, "
        "if sk is not NULL"
    )


def _scalar(mistake: RefusedLine, _: re.Match[str]) -> str:
    if moved := _MOVING.search(mistake.log):
        return (
            f"bpf_{moved[1]}() moves the packet: after it, read ctx->data and ctx->data_end again, "
            "and check the length again"
        )
    return "this is a number and no pointer into a map, the stack or the packet"


def _length(mistake: RefusedLine, match: re.Match[str]) -> str:
    called = _CALL.findall(mistake.log)
    of = f" of bpf_{called[-1]}()" if called else ""
    return (
        f"the length{of} may be 0, negative or too large: check it before, as in  "
        "if (n < 1 || n > sizeof(buffer)) return VERDICT_PASS;"
    )


_LOOP = "the verifier sees no end of this loop: give it a constant bound, as in  i < 32"
_LONG = (
    "too many steps to verify: a loop takes each round with each branch anew; fewer rounds, or "
    "fewer branches inside"
)
_ADVICE: tuple[tuple[str, _Advice], ...] = (
    (r"invalid mem access 'map_value_or_null'", _null),
    (r"(invalid mem access '\w+_or_null'|possibly NULL pointer passed)", _not_null),
    (r"invalid access to packet", _packet),
    (r"infinite loop detected|back-edge from insn", _LOOP),
    (r"too complex|too large\. Processed|too many (states|instructions)", _LONG),
    (
        r"combined stack size|stack (depth|limit)|exceed(s|ed)? .*stack",
        "the variables of the stack are too large (504 bytes in all): keep a large one in a "
        "BPF_PERCPU_ARRAY(name, type, 1)",
    ),
    (
        r"invalid (indirect )?read from stack|invalid (indirect )?access to (variable )?stack|"
        r"invalid (read|write) (from|to) stack",
        "bytes of a variable have no value, or are not part of it: begin with  = {};  and stay "
        "within its size",
    ),
    (r"Unreleased reference|reference leak", _reference),
    (
        r"(cannot use helper|unknown func|helper call is not allowed)(?: (?P<helper>\w+))?",
        _helper,
    ),
    (
        r"invalid func unknown#(?P<number>\d+)",
        lambda _, match: f"this kernel is older than helper {match['number']} of linux/bpf.h",
    ),
    (r"cannot call GPL", "this helper is for GPL programs: declare  BPF_LICENSE(GPL)"),
    (r"min value is negative|unbounded memory access|makes (fp|map_value) pointer", _index),
    (r"invalid access to map value, value_size=(\d+) off=(-?\d+) size=(\d+)", _value),
    (
        r"misaligned",
        "the address is no multiple of the size that is read: read it byte by byte, or copy it by "
        "__builtin_memcpy()",
    ),
    (
        r"R0 !read_ok",
        "the program ends without a verdict: return VERDICT_PASS at the end. If it does, an "
        "earlier line reads beyond a variable: the compiler drops all code behind such a line",
    ),
    (
        r"R\d !read_ok",
        "a value is used that was never set, or that a call of a helper has overwritten",
    ),
    (
        r"math between (pkt|packet) pointer|makes pkt pointer|pkt pointer .*out of bounds",
        "a pointer into the packet moves by a number without a limit: limit it before, as in  "
        "n &= 0x3ff;  and check the length after",
    ),
    (
        r"pointer arithmetic|arithmetic on .*pointer|R\d pointer .* prohibited|math between",
        "this arithmetic on a pointer is not allowed: add a limited number to a pointer into a "
        "map's value or the packet, nothing else",
    ),
    (
        r"jump out of range|invalid jump",
        "a jump is too far, or leaves the program: make the function smaller",
    ),
    (r"unreachable insn", "code is never reached: remove it, or the jump around it"),
    (r"invalid mem access '(scalar|inv)'", _scalar),
    (
        r"invalid bpf_context access off=(\d+) size=(\d+)",
        lambda _, match: (
            f"{_HOOK} cannot use the {match[2]} bytes at offset {match[1]} of ctx like this: some "
            "fields are read only, and each is used whole"
        ),
    ),
    (
        r"dereference of modified ctx|modified ctx ptr",
        "ctx itself must not move: copy a field of it into a variable, and compute with that",
    ),
    (r"invalid zero-sized read|R\d (unbounded|invalid) .*(size|access)", _length),
    (
        r"spin_lock-ed region|while holding a lock|inside bpf_spin_lock",
        "a lock is still held: call bpf_spin_unlock(&value->lock) before each return, and no "
        "helper before it",
    ),
    (
        r"cannot write into (packet|map)|write into map forbidden|write into .*read-?only",
        "this memory is read only here: change a copy of it",
    ),
    (r"leaks addr", "a pointer would leave the program as a number: store its contents instead"),
    (
        r"At program exit the register R0|R0 .*should have been in",
        "the verdict is none of this hook: return VERDICT_PASS or VERDICT_DROP",
    ),
    (
        r"[Oo]peration not permitted|permission denied",
        "the right to load programs is missing: run as root, or with CAP_BPF and CAP_NET_ADMIN",
    ),
    (
        r"\bBTF\b|func_info|vmlinux",
        "types of the kernel (BTF) are missing or differ: use plain types, and helpers that need "
        "no BTF",
    ),
)
_COMPILED = tuple((re.compile(pattern), said) for pattern, said in _ADVICE)


def advice(reason: str, log: str = "", source: str = "", line: int = 0) -> str:
    """Return one sentence with the fix; empty if the reason is not a usual one.

    `line` (from 1) is the refused line of `source`; 0 if it is unknown.
    """
    lines = source.splitlines()
    statement = lines[line - 1].strip() if 0 < line <= len(lines) else ""
    for pattern, said in _COMPILED:
        if match := pattern.search(reason):
            return (
                said
                if isinstance(said, str)
                else said(RefusedLine(reason, log, statement, source), match)
            )
    return ""
