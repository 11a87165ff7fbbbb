"""Records of ring buffers and perf event arrays: their declarations lack the records' C type."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from bpf.compiler.compiled import Compiled
from bpf.compiler.source import code_of
from bpf.maps.btf import Btf
from bpf.syscall import btf_data

RECORDS_HEADER = "records.h"
"""Stands before a source whose records are read."""
_RING = re.compile(
    r"\bBPF_(?:RINGBUF|PERF)_OUTPUT\s*\(\s*(\w+)"
    r"|\bbpf_(?:ringbuf_output|ringbuf_reserve|perf_event_output)\s*\([^;]*?&\s*(\w+)"
)
"""A declaration for bcc, or a helper's call of a program for libbpf."""
_WRITE = (
    r"(?:\b{ring}\s*\.\s*(?:ringbuf_output|ringbuf_reserve|perf_submit(?:_skb)?)|"
    r"\bbpf_(?:ringbuf_output|ringbuf_reserve|perf_event_output)\s*\([^;]*?&\s*{ring})\b"
    r"[^;]*?\bsizeof\s*\(?\s*\*?\s*([\w ]+?)\s*[),]"
)
_DECLARED = (
    r"((?:\b(?:struct|union|enum)\s+)?\b(?!(?:return|else|goto|struct|union|enum)\b)\w+)"
    r"[\s*]+{name}\b\s*[=;,[)]"
)
_NUMBERS = re.compile(r"[us](?:8|16|32|64)|\w+_t|char|int|long|short|float|double")


def record_types(text: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the C types of the records of rings in `text`, by the rings' names.

    `given` are known types by map; the calls that write records tell an empty one. If
    no call tells it, the ring is missing.
    """
    code = code_of(text)
    return {
        ring: found
        for ring in (one or other for one, other in _RING.findall(code))
        if ring in given and (found := given[ring] or next(_written(code, ring), ""))
    }


def describe_records(types: Mapping[str, str]) -> dict[str, str]:
    """Return headers for the end of a source. They describe records in its BTF, as bcc's macros
    describe other maps.

    A header's name tells where a mistake in a type is.
    """
    return {
        f"records of {ring}": f"struct ____btf_map_{ring} {{ {type_} value; }};\n"
        f'struct ____btf_map_{ring} __attribute__((section(".maps.{ring}"), used)) '
        f"____btf_map_{ring} = {{}};\n"
        for ring, type_ in types.items()
    }


def variables(types: Mapping[str, str]) -> str:
    """Return a line for the end of a source for libbpf: variables keep the types in its BTF.

    libbpf opens no object that has a variable without bytes, as of an empty struct.
    """
    keep = '__attribute__((section("records"), used))'
    parts = (f"{keep} struct {{ {type_} value; char end; }} ____{n};" for n, type_ in types.items())
    return "\n" + " ".join(parts)


def with_records(compiled: Compiled, types: Mapping[str, str]) -> Compiled:
    """Return the same result, with the types of records from its BTF."""
    maps = dict(compiled.maps)
    btf = Btf(btf_data(compiled.btf_fd)) if compiled.btf_fd and types else None
    for name, found in compiled.maps.items():
        if found.spec.kind.records:
            value = btf.named(types[name]) if btf and name in types else None
            maps[name] = replace(found, key_type=None, value_type=value)
    return replace(compiled, maps=maps)


def _written(code: str, ring: str) -> Iterator[str]:
    """Yield the types in the `sizeof` of the calls that write records."""
    for found in re.findall(_WRITE.format(ring=ring), code):
        name = " ".join(found.split())
        if " " in name or _NUMBERS.fullmatch(name):
            yield name
        elif declared := re.search(_DECLARED.format(name=name), code):
            yield " ".join(declared[1].split())
