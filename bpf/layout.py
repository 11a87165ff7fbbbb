"""Layouts: of C types as numpy dtypes, and of a map's entries as the kernel hands them out.

bcc describes a key or a value in JSON: a scalar by its C name, anything else by `[name, members,
kind]` where kind is "struct" (the compiler's alignment rules apply), "struct_packed" (every gap is
an explicit `__pad_*` member) or "union". A member is `[name, type]`, `[name, type, [dimensions]]`
or `[name, type, bits]`; a nested type without a member name stands in place of a member.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpf.syscall import MapSpec, possible_cpus

Array = NDArray[Any]

_SCALARS = {
    "_Bool": "?",
    "bool": "?",
    "char": "i1",
    "signed char": "i1",
    "unsigned char": "u1",
    "short": "i2",
    "unsigned short": "u2",
    "int": "i4",
    "unsigned int": "u4",
    "long": "i8",
    "unsigned long": "u8",
    "long long": "i8",
    "unsigned long long": "u8",
    "__int128": "V16",
    "unsigned __int128": "V16",
    "float": "f4",
    "double": "f8",
}
_PADDING = "__pad_"


@dataclass(frozen=True, slots=True)
class _Type:
    dtype: np.dtype[Any]
    align: int


def dtype_of(descriptor: str) -> np.dtype[Any]:
    """The numpy dtype of what `descriptor` describes, field for field and byte for byte.

    Padding is no field. The members of an anonymous struct or union are fields of what encloses it,
    as in C. A union's members, and bit fields, overlap: a bit field stands for the whole word of
    its declared type that contains it. Pointers are u8, 128-bit integers V16.

    bcc describes `a[2][3]` as `a[2]`, so a result may be too short: compare its size with the map's
    (`Map` does).

    Raises ValueError, naming the member, where a type is not known.
    """
    return _type(json.loads(descriptor), "").dtype


def _type(node: Any, path: str) -> _Type:
    if isinstance(node, list):
        return _record(node, path)
    code = "u8" if node.endswith("*") else _SCALARS.get(node)
    if code is None:
        raise ValueError(f"{path or 'type'}: unknown C type {node!r}")
    dtype = np.dtype(code)
    return _Type(dtype, dtype.itemsize)


def _record(node: list[Any], path: str) -> _Type:
    name, members, kind = node
    if kind not in ("struct", "struct_packed", "union"):
        raise ValueError(f"{path or name}: unknown kind of type {kind!r}")
    path = path or name
    fields: list[tuple[str, np.dtype[Any], int]] = []
    cursor = end = 0  # bits
    align = 1
    natural = True
    for member in members:
        if kind == "union":
            cursor = 0
        member_name, extra = member[0], member[2] if len(member) == 3 else None
        member_path = f"{path}.{member_name}" if member_name else path
        anonymous = isinstance(extra, str)
        type_ = _type(member if anonymous else member[1], member_path)
        dtype, size = type_.dtype, type_.dtype.itemsize
        if isinstance(extra, int):
            if extra == 0 or cursor % (8 * size) + extra > 8 * size:
                cursor = round_up(cursor, 8 * size)
            offset = cursor // (8 * size) * size
            cursor += extra
        else:
            if isinstance(extra, list):
                dtype = np.dtype((dtype, tuple(extra)))
            offset = round_up(cursor, 8) // 8
            if kind == "struct":
                offset = round_up(offset, type_.align)
            cursor = 8 * (offset + dtype.itemsize)
        end = max(end, cursor)
        if isinstance(extra, int) and not member_name:
            continue
        align = max(align, type_.align)
        natural = natural and offset % type_.align == 0
        if anonymous:
            fields += [(n, f[0], offset + f[1]) for n, f in (dtype.fields or {}).items()]
        elif not member_name.startswith(_PADDING):
            fields.append((member_name, dtype, offset))
    size = round_up(end, 8) // 8
    if kind == "struct_packed":
        # bcc says "packed" of every struct without bit fields. One that lies just as the compiler
        # would align it is taken for aligned, which matters inside a union or beside bit fields.
        align = align if natural and size % align == 0 else 1
    dtype = np.dtype(
        {
            "names": [name for name, _, _ in fields],
            "formats": [dtype for _, dtype, _ in fields],
            "offsets": [offset for _, _, offset in fields],
            "itemsize": round_up(size, align),
        }
    )
    return _Type(dtype, align)


def round_up(value: int, step: int) -> int:
    return -(-value // step) * step


@dataclass(frozen=True, slots=True)
class EntryLayout:
    """Sizes of one entry of a map in the kernel's interface to user space, in bytes."""

    key_size: int
    """0 where entries have no stored key: arrays, queues and stacks."""
    value_size: int
    """From one value to the next; a CPU's value is padded to 8 bytes."""
    cpus: int
    """Values of an entry: the possible CPUs for per-CPU kinds, else 0 for a single value."""

    @classmethod
    def of(cls, spec: MapSpec) -> EntryLayout:
        return cls(
            0 if spec.kind.numbered else spec.key_size,
            round_up(spec.value_size, 8) if spec.percpu else spec.value_size,
            possible_cpus() if spec.percpu else 0,
        )

    @property
    def values_size(self) -> int:
        """Bytes of all of an entry's values."""
        return self.value_size * (self.cpus or 1)

    @property
    def value_dtype(self) -> np.dtype[Any]:
        """An entry's values as opaque bytes; of shape (CPUs,) for per-CPU kinds."""
        return np.dtype((f"V{self.value_size}", (self.cpus,) if self.cpus else ()))
