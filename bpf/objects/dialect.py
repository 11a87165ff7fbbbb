"""The dialect of a source, and the programs in the sections of a source or an object."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from bpf.abi import ProgType
from bpf.compiler.source import code_of
from bpf.errors import UsageError

SECTIONS = {
    "xdp": ProgType.XDP,
    "tc": ProgType.SCHED_CLS,
    "tcx": ProgType.SCHED_CLS,
    "classifier": ProgType.SCHED_CLS,
    "action": ProgType.SCHED_CLS,
}
"""Types of programs by the first part of their section's name."""
_BCC = re.compile(
    r"\bBPF_(?:F_)?(?:TABLE|HASH|ARRAY|PERCPU|LRU|LPM|HISTOGRAM|PERF|RINGBUF|QUEUE|STACK|PROG_ARRAY|"
    r"DEVMAP|CPUMAP|XSKMAP|SOCK|SK_STORAGE|INODE_STORAGE|CGROUP)\w*\s*\(|"
    r"\w+\.(?:lookup|update|increment)\w*\s*\("
)
_LIBBPF = re.compile(
    r'SEC\s*\(\s*"(?:\.maps|license)"\s*\)|'
    r'#\s*include\s*[<"](?:vmlinux\w*\.h|bpf/bpf_(?:tracing|core_read)\.h|xdp/\w+\.h)[>"]'
)
_SECTION = re.compile(r'\bSEC\s*\(\s*"([^"]+)"')
_HEADER = struct.Struct("<4sBB10xHHIQQQIHHHHHH")
_SECTION_HEADER = struct.Struct("<II16xQQ24x")
_ELF64, _LITTLE, _RELOCATABLE, _MACHINE_BPF = 2, 1, 1, 247
_MACHINES = {62: "x86-64", 183: "arm64", 3: "x86", 40: "arm", 243: "RISC-V"}


def is_for_libbpf(text: str) -> bool:
    """Whether a source is written for libbpf: by its maps, its license or its headers."""
    code = _without_comments(text)
    return bool(_LIBBPF.search(code)) and not _BCC.search(code_of(text))


def source_sections(text: str, function: str = "") -> list[str]:
    """Return the names in `SEC("...")`, in order; with a function only the name of its section."""
    code = _without_comments(text)
    if function:
        own = re.search(rf"{_SECTION.pattern}[^;{{}}]*?\b{re.escape(function)}\s*\(", code)
        return [own[1]] if own else []
    return _SECTION.findall(code)


def object_sections(data: bytes) -> list[str]:
    """Return the names of an object's sections.

    Raises UsageError for the object of another machine, and for a part of an object.
    """
    return list(_section_names(data))


def packet_types(sections: list[str]) -> set[ProgType]:
    """Return the types of the programs of packets in these sections."""
    kinds = (SECTIONS.get(re.split("[/._]", name)[0]) for name in sections)
    return {kind for kind in kinds if kind}


def _section_names(data: bytes) -> Iterator[str]:
    if data[:4] != b"\x7fELF":
        raise UsageError("it is no object file (ELF)", hint="compile it by clang --target=bpf")
    try:
        (_, width, order, kind, machine, _, _, _, table, _, _, _, _, size, count, names) = (
            _HEADER.unpack_from(data)
        )
        if (width, order, machine) != (_ELF64, _LITTLE, _MACHINE_BPF):
            name = _MACHINES.get(machine, f"machine {machine}")
            if machine == _MACHINE_BPF:
                name = "BPF of the other byte order"
            raise UsageError(f"it is an object for {name}", hint="compile it by clang --target=bpf")
        if kind != _RELOCATABLE:
            raise UsageError("it is linked: a program is an object file", hint="give the .o file")
        headers = [_SECTION_HEADER.unpack_from(data, table + size * n) for n in range(count)]
        _, _, start, length = headers[names]
        if max(at for _, _, at, _ in headers) > len(data) or start + length > len(data):
            raise UsageError("it is cut short", hint="copy it again")
        text = data[start : start + length]
        for at, *_ in headers:
            yield text[at : text.index(b"\0", at)].decode(errors="replace")
    except (struct.error, IndexError, ValueError):
        raise UsageError("it is cut short, or no object file", hint="copy it again") from None


def _without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?(?:\*/|\Z)", " ", text, flags=re.DOTALL)
