"""BTF, the type information that the compiler makes of a source and the kernel has checked.

A blob is a header, a section of types (numbered from 1) and one of strings, see
Documentation/bpf/btf.rst in the kernel's source.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from bpf.maps.layout import CType, Member, array_of, bit_field, moved, record

_MAGIC = 0xEB9F
_HEADER = struct.Struct("<HBBIIIII")
_ANNOTATION = "____btf_map_"
"""bcc's macros declare `struct ____btf_map_NAME {KEY key; VALUE value;}` for each map; a queue and
a stack have only a value."""


TypeKind = IntEnum(
    "TypeKind",
    """
    INT PTR ARRAY STRUCT UNION ENUM FWD TYPEDEF VOLATILE CONST RESTRICT FUNC FUNC_PROTO VAR DATASEC
    FLOAT DECL_TAG TYPE_TAG ENUM64
    """,
)
"""BTF_KIND_*."""
_KINDS = frozenset(TypeKind)
QUALIFIERS = (TypeKind.VOLATILE, TypeKind.CONST, TypeKind.RESTRICT, TypeKind.TYPE_TAG)
FIXED_BYTES = {TypeKind.INT: 4, TypeKind.ARRAY: 12, TypeKind.VAR: 4, TypeKind.DECL_TAG: 4}
"""Bytes that follow a type of this kind."""
EACH_BYTES = {
    TypeKind.STRUCT: 12,
    TypeKind.UNION: 12,
    TypeKind.ENUM: 8,
    TypeKind.FUNC_PROTO: 8,
    TypeKind.DATASEC: 12,
    TypeKind.ENUM64: 12,
}
"""Bytes that follow for each member."""
_SIGNED, _BOOL = 1, 4
"""Encodings of an INT."""


@dataclass(frozen=True, slots=True)
class _Entry:
    kind: TypeKind
    name: str
    count: int
    flag: bool
    """Members have bit fields; enumerators have a sign."""
    value: int
    """Size in bytes, or the number of another type."""
    at: int
    """Where its further data begins."""


def sections(data: bytes) -> tuple[bytes, bytes]:
    """Return the types and the strings of a blob. Raises ValueError for a malformed one."""
    try:
        magic, _, _, header, types, types_size, strings, size = _HEADER.unpack_from(data)
    except struct.error:
        raise ValueError("BTF is cut short") from None
    if magic != _MAGIC:
        raise ValueError("not BTF, or of the other byte order")
    types, strings = header + types, header + strings
    if len(data) < max(types + types_size, strings + size):
        raise ValueError("BTF is cut short")
    return data[types : types + types_size], data[strings : strings + size]


class Btf:
    """The types of one source."""

    def __init__(self, data: bytes) -> None:
        """Read a blob. Raises ValueError for a malformed one or a kind of type that is unknown."""
        self._data, self._strings = sections(data)
        self._types: dict[int, CType] = {}
        self._open: set[int] = set()
        """Types that are being read."""
        try:
            self._entries = list(self._read())
        except struct.error:
            raise ValueError("BTF is cut short") from None
        self._maps: dict[str, int] = {}
        for number, entry in enumerate(self._entries, 1):
            if entry.kind == TypeKind.STRUCT and entry.name.startswith(_ANNOTATION):
                self._maps.setdefault(entry.name.removeprefix(_ANNOTATION), number)

    def map_types(self, name: str) -> tuple[CType | None, CType | None] | None:
        """Key and value of a map; None if the source declares no such map.

        Raises ValueError, naming the type, for a type without a layout here.
        """
        if name not in self._maps:
            return None
        members = self.type(self._maps[name]).members
        key, value = members.get("key"), members.get("value")
        return key.type if key else None, value.type if value else None

    def named(self, name: str) -> CType | None:
        """Return a type by its name in C, such as `struct event`, or None."""
        word, _, tag = name.rpartition(" ")
        kinds = (word.upper(),) if word else (TypeKind.TYPEDEF.name, TypeKind.INT.name)
        for number, entry in enumerate(self._entries, 1):
            if entry.name == tag and entry.kind.name in kinds:
                return self.type(number)
        return None

    def type(self, number: int) -> CType:
        """A type by its number. Raises ValueError, naming it, if it has no layout."""
        if number in self._open:
            raise ValueError("a type that holds itself")
        if number not in self._types:
            self._open.add(number)
            try:
                self._types[number] = self._made(number)
            except struct.error:
                raise ValueError("BTF is cut short") from None
            finally:
                self._open.remove(number)
        return self._types[number]

    def _read(self) -> Iterator[_Entry]:
        at = 0
        while at < len(self._data):
            name, info, value = struct.unpack_from("<III", self._data, at)
            number, count = info >> 24 & 31, info & 0xFFFF
            if number not in _KINDS:
                raise ValueError(f"BTF has a type of the unknown kind {number}")
            kind = TypeKind(number)
            at += 12
            yield _Entry(kind, self._string(name), count, bool(info >> 31), value, at)
            at += FIXED_BYTES.get(kind, EACH_BYTES.get(kind, 0) * count)

    def _string(self, at: int) -> str:
        return self._strings[at : self._strings.index(b"\0", at)].decode(errors="replace")

    def _made(self, number: int) -> CType:
        if not 0 < number <= len(self._entries):
            raise ValueError("a type without a layout (void)")
        entry = self._entries[number - 1]
        match entry.kind:
            case TypeKind.INT:
                return self._integer(entry)
            case TypeKind.PTR:
                return CType(np.dtype("u8"), ("void *",))
            case TypeKind.ARRAY:
                element, _, count = struct.unpack_from("<III", self._data, entry.at)
                return array_of(self.type(element), count)
            case TypeKind.STRUCT | TypeKind.UNION:
                word = entry.kind.name.lower()
                members = dict(self._members(entry))
                return record(f"{word} {entry.name}".rstrip(), members, entry.value)
            case TypeKind.ENUM | TypeKind.ENUM64:
                return self._enum(entry)
            case TypeKind.TYPEDEF:
                aliased = self.type(entry.value)
                return replace(aliased, names=(entry.name, *aliased.names))
            case kind if kind in QUALIFIERS or kind == TypeKind.VAR:
                return self.type(entry.value)
            case TypeKind.DATASEC:
                return record(entry.name, dict(self._variables(entry)), entry.value)
            case TypeKind.FLOAT if entry.value in (4, 8):
                return CType(np.dtype(f"f{entry.value}"), (entry.name,))
        raise ValueError(f"{entry.name or entry.kind.name.lower()} has no layout that is known")

    def _integer(self, entry: _Entry) -> CType:
        (info,) = struct.unpack_from("<I", self._data, entry.at)
        encoding, offset, bits = info >> 24 & 15, info >> 16 & 255, info & 255
        if offset or bits != 8 * entry.value or bits not in (8, 16, 32, 64, 128):
            raise ValueError(f"{entry.name} has {bits} bits in {entry.value} bytes")
        code = "i" if encoding & _SIGNED else "b" if encoding & _BOOL else "u"
        if entry.value == 16:
            code = "V"
        return CType(np.dtype("?" if code == "b" else f"{code}{entry.value}"), (entry.name,))

    def _members(self, entry: _Entry) -> Iterator[tuple[str, Member]]:
        for name, number, place in struct.iter_unpack(
            "<III", self._data[entry.at : entry.at + 12 * entry.count]
        ):
            label = self._string(name)
            bit, width = (place & 0xFFFFFF, place >> 24) if entry.flag else (place, 0)
            type_ = self.type(number)
            if width:
                yield label, bit_field(type_, bit, width, entry.value)
            elif label:
                yield label, Member(type_, bit // 8)
            else:
                yield from moved(type_.members, bit // 8).items()

    def _variables(self, section: _Entry) -> Iterator[tuple[str, Member]]:
        """Yield the variables of a section; those whose type has no layout are missing."""
        for number, offset, _ in struct.iter_unpack(
            "<III", self._data[section.at : section.at + 12 * section.count]
        ):
            with contextlib.suppress(ValueError):
                yield self._entries[number - 1].name, Member(self.type(number), offset)

    def _enum(self, entry: _Entry) -> CType:
        wide = entry.kind == TypeKind.ENUM64
        if entry.value > 4 and not wide:
            # Before LLVM 15, a compiler writes the lower halves of the values.
            raise ValueError(
                f"enum {entry.name} has 64 bits, which this compiler does not describe"
            )
        if entry.value not in (1, 2, 4, 8):
            raise ValueError(f"enum {entry.name} has {entry.value} bytes")
        layout = "<III" if wide else "<II"
        size = struct.calcsize(layout) * entry.count
        values: dict[str, int] = {}
        for name, low, *high in struct.iter_unpack(layout, self._data[entry.at : entry.at + size]):
            values[self._string(name)] = low | high[0] << 32 if wide else low
        top = 1 << 63 if wide else 1 << 31
        # Before LLVM 15 no enum says that it has a sign.
        signed = entry.flag or (not wide and any(value & top for value in values.values()))
        if signed:
            values = {name: value - 2 * (value & top) for name, value in values.items()}
        code = np.dtype(f"{'i' if signed else 'u'}{entry.value}")
        return CType(code, (f"enum {entry.name}".rstrip(),), enumerators=values)
