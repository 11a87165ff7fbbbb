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
    r"DEVMAP|CPUMAP|XSKMAP|SOCK|SK_STORAGE|INODE_STORAGE|CGROUP)\w*\s*\(\s*[A-Za-z_,]|"
    r"\w+\.(?:lookup|update|increment)\w*\s*\(|\bVERDICT_(?:PASS|DROP)\b"
)
_LIBBPF = re.compile(
    r'\b(?:SEC|\w*section)\s*\(\s*"|'
    r'#\s*include\s*[<"](?:vmlinux\w*\.h|bpf/bpf_(?:tracing|core_read)\.h|xdp/\w+\.h)[>"]'
)
_OLD_MAP = re.compile(
    r"(?:\b(?:SEC|\w*section)\s*\([^()]*\)\s*)?\bstruct\s+bpf_(?:elf_map|map_def)\b"
    r"(?P<head>[^;{}=]*)=\s*\{(?P<fields>[^{}]*)\}\s*;"
)
"""A map as it was declared before libbpf 1.0, or for iproute2, in the section `maps`."""
_OLD_FIELD = re.compile(r"\.\s*(\w+)\s*=\s*([^,}\n]+?)\s*(?:,|(?=//|/\*|\n|$))")
_MAPS = '__attribute__((section(".maps"), used))'
_FIELDS = {"size_key": "key_size", "size_value": "value_size", "max_elem": "max_entries",
           "flags": "map_flags"}  # fmt: skip
_SECTION = re.compile(r'\b(?:SEC|\w*section)\s*\(\s*"([^"]+)"')
_HEADER = "4sBB10xHHIQQQIHHHHHH"
_SECTION_HEADER = struct.Struct("<II16xQQ24x")
_ELF64, _BIG, _RELOCATABLE, _MACHINE_BPF = 2, 2, 1, 247
_MACHINES = {62: "x86-64", 183: "arm64", 3: "x86", 40: "arm", 243: "RISC-V"}


def is_for_libbpf(text: str) -> bool:
    """Whether a source is written for libbpf: by its sections or headers, without maps of bcc."""
    code = _without_comments(text)
    return bool(_LIBBPF.search(code)) and not _BCC.search(code_of(text))


def modern_maps(text: str) -> str:
    """Return a source whose maps of the section `maps` are in `.maps`; each line keeps its place.

    libbpf 1.0 has given up the old declarations.
    """

    parts: list[str] = []
    end = 0
    for match in _OLD_MAP.finditer(code_of(text)):
        head = re.sub(r"\b\w+\s*\(.*\)", " ", match["head"], flags=re.DOTALL)
        if '"maps"' in text[slice(*match.span())] and (name := re.search(r"\w+", head)):
            fields = _OLD_FIELD.sub(_modern_field, text[slice(*match.span("fields"))])
            parts += text[end : match.start()], f"struct {{{fields}}} {name[0]} {_MAPS};"
            end = match.end()
    return "".join((*parts, text[end:]))


def _modern_field(match: re.Match[str]) -> str:
    name = _FIELDS.get(match[1], match[1])
    known = ("type", "key_size", "value_size", "max_entries", "map_flags")
    return f"int (*{name})[{match[2]}];" if name in known else ""


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


def packet_types(sections: list[str], text: str = "") -> set[ProgType]:
    """Return the types of the programs of packets in these sections.

    If no section is known, the contexts in the source `text` say them.
    """
    kinds = {SECTIONS.get(re.split("[/._]", name)[0]) for name in sections} - {None}
    if not kinds:
        contexts = re.findall(r"\b(xdp_md|__sk_buff)\b", code_of(text))
        kinds = {ProgType.XDP if name == "xdp_md" else ProgType.SCHED_CLS for name in contexts}
    return {kind for kind in kinds if kind}


def _section_names(data: bytes) -> Iterator[str]:
    if data[:4] != b"\x7fELF":
        raise UsageError("it is no object file (ELF)", hint="compile it by clang --target=bpf")
    try:
        (_, width, order, kind, machine, _, _, _, table, _, _, _, _, size, count, names) = (
            struct.unpack_from("<>"[data[5:6] == bytes([_BIG])] + _HEADER, data)
        )
        if (width, machine) != (_ELF64, _MACHINE_BPF) or order == _BIG:
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
