"""Layouts: map entries in the kernel's interface, and their C types with numpy layouts.

Types come from BTF (`bpf.maps.btf`). A source without BTF has bcc's own description, in JSON:
a scalar by its C name, anything else by `[name, members, kind]` where kind is "struct" (with bit
fields or a flexible array: the compiler's alignment rules apply), "struct_packed" (every gap is an
explicit `__pad_*` member) or "union". A member is `[name, type]`, `[name, type, [dimension]]` or
`[name, type, bits]`; a nested type without a member name stands in place of a member.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bpf.machine import possible_cpus
from bpf.syscall import MapSpec

DType = np.dtype[Any]


@dataclass(frozen=True, slots=True)
class CType:
    """A C type."""

    dtype: DType
    """Layout, byte for byte. Padding is no field; the members of a union, and bit fields that share
    a word, overlap. Pointers are u8, 128-bit integers V16."""
    names: tuple[str, ...] = ()
    """Its typedefs from the outermost on, then the type itself: `("ip_t", "__be32", "__u32",
    "unsigned int")`, `("struct key",)`."""
    members: Mapping[str, Member] = field(default_factory=dict)
    """Of a struct or union. Members of an anonymous struct or union count as its own."""
    element: CType | None = None
    """Of an array; of an array of arrays the inner array."""
    enumerators: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a struct or union."""

    type: CType
    """As declared, for a bit field too."""
    offset: int
    """In bytes."""
    bits: tuple[int, int] | None = None
    """Shift and width of a bit field in the word at `offset`."""
    word: DType | None = None
    """Of a bit field: the declared type if an aligned word of it holds the whole field, else as
    many opaque bytes as the field touches."""

    @property
    def dtype(self) -> DType:
        """Layout of the bytes at `offset`."""
        return self.word or self.type.dtype


def array_of(element: CType, count: int) -> CType:
    """`count` elements; 0 for a flexible array."""
    dtype = np.dtype((element.dtype.base, (count, *element.dtype.shape)))
    return CType(dtype, element=element)


def bit_field(type_: CType, bit: int, width: int, size: int) -> Member:
    """A bit field of `width` bits that starts at `bit` of a struct of `size` bytes."""
    dtype = type_.dtype
    word = 8 * dtype.itemsize
    if bit % word + width <= word and bit // word * dtype.itemsize + dtype.itemsize <= size:
        container = np.dtype("u1") if dtype.kind == "b" else dtype
        return Member(type_, bit // word * dtype.itemsize, (bit % word, width), container)
    first, end = bit // 8, -(-(bit + width) // 8)
    return Member(type_, first, (bit % 8, width), np.dtype(f"V{end - first}"))


def record(name: str, members: Mapping[str, Member], size: int) -> CType:
    """A struct or union of `size` bytes."""
    dtype = np.dtype(
        {
            "names": list(members),
            "formats": [member.dtype for member in members.values()],
            "offsets": [member.offset for member in members.values()],
            "itemsize": size,
        }
    )
    return CType(dtype, (name,), members)


def moved(members: Mapping[str, Member], offset: int) -> dict[str, Member]:
    """Return the members of an anonymous struct or union, moved by its own offset."""
    return {
        name: replace(member, offset=member.offset + offset) for name, member in members.items()
    }


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


def described(descriptor: str) -> CType:
    """Return the C type that bcc describes, without typedefs, enumerators and inner dimensions.

    bcc describes `a[2][3]` as `a[2]`, so a result may be too short: compare it with the map's size.
    Raises ValueError, naming the member, for an unknown type and for a bit field: the description
    does not tell where a bit field lies.
    """
    try:
        node = json.loads(descriptor)
    except json.JSONDecodeError:
        raise ValueError("bcc does not describe its type") from None
    return _type(node, "")[0]


def _type(node: Any, path: str) -> tuple[CType, int]:
    """Return the type and its alignment."""
    if isinstance(node, list):
        return _record(node, path)
    code = "u8" if node.endswith("*") else _SCALARS.get(node)
    if code is None:
        raise ValueError(f"{path or 'type'}: unknown C type {node!r}")
    dtype = np.dtype(code)
    return CType(dtype, (node,)), dtype.itemsize


def _record(node: list[Any], path: str) -> tuple[CType, int]:
    name, members, kind = node
    if kind not in ("struct", "struct_packed", "union"):
        raise ValueError(f"{path or name}: unknown kind of type {kind!r}")
    path = path or name
    found: dict[str, Member] = {}
    cursor = end = 0
    align = 1
    natural = True
    for member_name, *rest in members:
        extra = rest[1] if len(rest) == 2 else None
        where = f"{path}.{member_name}" if member_name else path
        if isinstance(extra, int):
            raise ValueError(f"{where}: a bit field whose place is not known")
        anonymous = isinstance(extra, str)
        type_, step = _type([member_name, *rest] if anonymous else rest[0], where)
        if isinstance(extra, list):
            for count in reversed(extra):
                type_ = array_of(type_, count)
        offset = 0 if kind == "union" else cursor
        if kind == "struct":
            offset = round_up(offset, step)
        cursor = offset + type_.dtype.itemsize
        end = max(end, cursor)
        align = max(align, step)
        natural = natural and offset % step == 0
        if anonymous:
            found |= moved(type_.members, offset)
        elif not member_name.startswith(_PADDING):
            found[member_name] = Member(type_, offset)
    if kind == "struct_packed":
        # bcc says "packed" of every struct without bit fields. One that lies just as the compiler
        # would align it is taken for aligned, which matters inside a union.
        align = align if natural and end % align == 0 else 1
    word = "union" if kind == "union" else "struct"
    return record(f"{word} {name}", found, round_up(end, align)), align


def round_up(value: int, step: int) -> int:
    return -(-value // step) * step


@dataclass(frozen=True, slots=True)
class EntryLayout:
    """Sizes of one entry of a map in the kernel's interface to user space, in bytes."""

    key_size: int
    """0 if entries have no stored key: arrays, queues and stacks."""
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
