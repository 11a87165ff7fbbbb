"""From the object helper's reply to `Compiled`, or to the diagnostics of a refusal."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bpf.abi import AttachType, MapFlag, MapType, ProgType
from bpf.compiler.compiled import Compiled, CompiledMap, CompiledProgram
from bpf.compiler.diagnostics import (
    CompileError,
    Diagnostic,
    end_of_log,
    hinted,
    parse_clang,
    parse_verifier,
)
from bpf.compiler.source import place_of
from bpf.errors import MORE_FILES, KernelError, UsageError
from bpf.maps.btf import Btf
from bpf.maps.layout import CType, Member, array_of
from bpf.syscall import MapSpec, btf_data, map_lookup, prog_info

_NO_FUNCTION = re.compile(r"extern \(func ksym\) '(\w+)': not found")
_NO_MAP = re.compile(r"map '([\w.]+)': failed to create: ([^(]*)\(")
_CHARACTER = np.dtype("i1")


@dataclass(frozen=True, slots=True)
class ObjectRequest:
    """The parts of a request that its result depends on."""

    name: str
    source: str
    """Empty for an object."""
    prog_type: ProgType
    attach_type: AttachType | None
    function: str
    constants: Mapping[str, int]
    started: float
    """`time.perf_counter()` of the request."""


def result(asked: ObjectRequest, reply: dict[str, Any], fds: list[int]) -> Compiled:
    """Turn a reply into Compiled. Raises CompileError, UsageError, and KernelError.

    If no program is chosen, because none fits or several do, the result has `functions` only.
    """
    remarks = tuple(
        replace(each, file=each.file.removeprefix("./")) for each in parse_clang(reply["said"])
    )
    warnings = remarks if asked.source else ()
    if reply["stage"] == "function":
        section = reply["sections"].get(asked.function, ("",))[0]
        if section and asked.function not in reply["fitting"]:
            raise UsageError(
                f'{asked.function} is a program of SEC("{section}"), and this hook is another',
                hint="give the hook, or another function",
            )
        return Compiled(asked.name, {}, tuple(reply["fitting"]), {}, warnings, 0.0)
    if reply["stage"]:
        raise _refusal(asked, reply, remarks)
    if missing := sorted(set(asked.constants) - set(reply["constants"])):
        raise UsageError(
            f"define.{missing[0]}: the {'source' if asked.source else 'object'} has no such "
            "`const volatile` variable, or member"
        )
    if len(fds) < reply["fds"]:
        text = f"{asked.name} has {reply['fds']} programs and maps, and only {len(fds)} could be"
        raise KernelError(f"{text} opened", hint=MORE_FILES)
    spare = iter(fds)
    ids: dict[int, str] = {}
    programs: dict[str, CompiledProgram] = {}
    for each in reply["programs"]:
        name, fd = each["name"], next(spare)
        info = prog_info(fd)
        ids[info.id] = name
        programs[name] = CompiledProgram(
            name,
            asked.prog_type,
            fd,
            bytes.fromhex(each["instructions"]),
            "GPL" if info.is_gpl else "Proprietary",
            asked.attach_type,
            bytes.fromhex(each["functions"]),
            bytes.fromhex(each["lines"]),
            has_frames=True,
        )
    map_fds = [next(spare) for _ in reply["maps"]]
    btf_fd = next(spare, 0)
    types: Btf | None = None
    if btf_fd:
        with contextlib.suppress(OSError, ValueError):
            types = Btf(btf_data(btf_fd))
    maps: dict[str, CompiledMap] = {}
    for declared, fd in zip(reply["maps"], map_fds, strict=True):
        found = _map(asked, declared, fd, btf_fd, types, ids)
        maps[found.spec.name] = found
    seconds = time.perf_counter() - asked.started
    variables = {each.spec.name: each for m in maps.values() for each in _variables(m)}
    return Compiled(
        asked.name, programs, tuple(reply["fitting"]), maps, warnings, seconds, btf_fd, variables
    )


def _refusal(
    asked: ObjectRequest, reply: dict[str, Any], remarks: tuple[Diagnostic, ...]
) -> UsageError:
    name, stage, said = asked.name, reply["stage"], reply["said"]
    if stage == "constants":
        return UsageError(f"define: {said}")
    errors: list[Diagnostic] = []
    log = ""
    if stage == "clang":
        if not any(each.severity == "error" for each in remarks):
            last = (said.strip().splitlines() or [f"clang ended with {reply['clang']}"])[-1]
            errors.append(Diagnostic("", 0, 0, "error", last))
        return CompileError(name, (*remarks, *errors))
    if stage == "memory":
        text = (
            f"map {said} would exceed the map memory that a probe may have; "
            "make it smaller, or see --probe-memory"
        )
        return CompileError(name, [_placed(asked, said, text)])
    for program in reply["programs"]:
        if not program["loaded"] and program["log"].strip():
            text = end_of_log(program["log"])
            function = program["name"]
            found = parse_verifier(function, text, "", name, asked.source)
            if not found.line:
                found = replace(found, file=name, line=place_of(asked.source, function)[0])
            errors.append(found)
            log = log or text
    if not errors:
        errors.append(_said(asked, stage, said))
    return CompileError(name, errors, log)


def _said(asked: ObjectRequest, stage: str, said: str) -> Diagnostic:
    """Return libbpf's reason as a diagnostic."""
    if match := _NO_FUNCTION.search(said):
        return _placed(
            asked,
            match[1],
            f"this kernel has no function {match[1]} for programs, outside of its modules",
        )
    if match := _NO_MAP.search(said):
        return _placed(asked, match[1], f"map {match[1]} cannot be made: {match[2]}")
    reason = next(iter(said.strip().splitlines()), "no reason given")
    what = "open" if stage == "open" else "load"
    return Diagnostic("", 0, 0, "error", hinted(f"libbpf cannot {what} it: {reason}"))


def _placed(asked: ObjectRequest, word: str, text: str) -> Diagnostic:
    line, column = place_of(asked.source, re.escape(word))
    return Diagnostic(asked.name if line else "", line, column, "error", text)


def _map(
    asked: ObjectRequest, declared: dict[str, Any], fd: int, btf_fd: int, types: Btf | None,
    ids: Mapping[int, str],
) -> CompiledMap:  # fmt: skip
    name = declared["name"]
    try:
        kind = MapType(declared["type"])
    except ValueError:
        text = f"map {name} is of kind {declared['type']}, which is not known here"
        raise CompileError(asked.name, [_placed(asked, name, text)]) from None
    sizes = (declared[part] for part in ("key_size", "value_size", "max_entries", "flags", "extra"))
    spec = MapSpec(name, kind, *sizes)
    unreadable = ""
    key: CType | None = None
    value: CType | None = None
    try:
        key = _type(types, declared["key_type"], spec.key_size)
        value = _type(types, declared["value_type"], spec.value_size)
    except ValueError as error:
        unreadable = str(error)
    contents, slots = b"", {}
    if declared["internal"]:
        contents = map_lookup(fd, bytes(4), spec.value_size) or b""
    elif kind is MapType.PROG_ARRAY:
        # Slots behind the declared values are empty, and may be a million.
        for slot in range(declared["values"]):
            number = int.from_bytes(map_lookup(fd, slot.to_bytes(4, "little"), 4) or b"", "little")
            if number in ids:
                slots[slot] = ids[number]
    line, _ = place_of(asked.source, rf"{re.escape(name)}(?=\s+SEC\s*\()")
    return CompiledMap(
        spec, key, value, fd, declared["bytecode_fd"], unreadable,
        line=line, btf_fd=btf_fd, contents=contents, slots=slots,
    )  # fmt: skip


def _type(types: Btf | None, number: int, size: int) -> CType | None:
    """Return the type of a key or a value; numbers or bytes if the map does not declare it.

    Raises ValueError for a type without a known layout.
    """
    if not size:
        return None
    if types and number:
        found = types.type(number)
        if found.dtype.itemsize != size:
            raise ValueError(f"it has {size} bytes, of which {found.dtype.itemsize} are described")
        return found
    if size in (1, 2, 4, 8):
        return CType(np.dtype(f"u{size}"))
    return array_of(CType(np.dtype("u1")), size)


def _variables(section: CompiledMap) -> Iterator[CompiledMap]:
    """Yield the variables of a section that programs write, as arrays at their places."""
    if not section.contents or section.is_constant or section.value_type is None:
        return
    for name, member in section.value_type.members.items():
        type_, count = _elements(member)
        spec = MapSpec(
            name, MapType.ARRAY, 4, type_.dtype.itemsize, count, MapFlag.MMAPABLE,
            offset=member.offset,
        )  # fmt: skip
        key = CType(np.dtype("u4"))
        yield CompiledMap(
            spec, key, type_, section.fd, -1, btf_fd=section.btf_fd, section=section.spec.name
        )


def _elements(member: Member) -> tuple[CType, int]:
    """Return the type of a variable's entries, and their number; a text is one entry."""
    element = member.type.element
    if element is None or element.dtype == _CHARACTER or not element.dtype.itemsize:
        return member.type, 1
    return element, member.dtype.itemsize // element.dtype.itemsize
