"""C types as Python sees them: a numpy layout with the names that the source gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

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
