"""What the fields of a key or value mean: its layout beside the types that the source declares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from bpf.layout import round_up
from probes.declarations import Declarations
from probes.fields import guess, is_number
from probes.syntax import Member

DType = np.dtype[Any]

_MAX_ALIASES = 32
_SIZES = {
    **{
        f"{prefix}{bits}{suffix}": bits // 8
        for bits in (8, 16, 32, 64)
        for prefix, suffix in (
            ("u", ""), ("s", ""), ("__u", ""), ("__s", ""), ("__be", ""), ("__le", ""),
            ("uint", "_t"), ("int", "_t"),
        )
    },
    "bool": 1, "_Bool": 1, "char": 1, "signed char": 1, "unsigned char": 1,
    "short": 2, "unsigned short": 2, "int": 4, "unsigned": 4, "unsigned int": 4,
    "long": 8, "unsigned long": 8, "long long": 8, "unsigned long long": 8,
    "__int128": 16, "unsigned __int128": 16,
}  # fmt: skip
"""Bytes of C types."""


class Meaning:
    """What is known of each path, such as `key.saddr` or `value.first[]`."""

    def __init__(self, declared: Declarations) -> None:
        self._declared = declared
        self.dtypes: dict[str, DType] = {}
        """Every path that there is."""
        self.fields: dict[str, str] = {}
        """Guesses, as in TableSchema; so are the following."""
        self.names: dict[str, dict[int, str]] = {}
        self.bits: dict[str, tuple[int, int]] = {}

    def add(self, path: str, member: Member, dtype: DType) -> None:
        """Add the field at `path`, declared as `member`, and those below it.

        `member.type` is empty where the declaration is not known.
        """
        self.dtypes[path] = dtype
        aliases, type_ = self._resolve(member.type)
        names = [member.name, *(a.removesuffix("_t") for a in aliases if a not in _SIZES)]
        if kind := guess(names, [*aliases, type_], dtype):
            self.fields[path] = kind
        if dtype.shape:
            # An element of `addrs` is an address.
            plural = member.name.endswith("s") and not member.name.endswith("ss")
            element = Member(member.name[:-1] if plural else member.name, type_)
            self.add(f"{path}[]", element, np.dtype((dtype.base, dtype.shape[1:])))
        elif dtype.names is not None:
            self._add_members(path, type_, dtype)
        elif (values := self._declared.enums.get(type_)) and is_number(dtype):
            self.names[path] = {number: name for name, number in reversed(list(values.items()))}

    def fits(self, member: Member, dtype: DType) -> bool:
        """Whether `dtype` may be what `member` is compiled to."""
        if (
            0 not in member.dimensions
            and member.dimensions != dtype.shape[: len(member.dimensions)]
        ):
            return False
        _, type_ = self._resolve(member.type)
        if type_ in self._declared.records:
            names = {each.name for each in self._members(type_)}
            return names.issuperset(dtype.base.names or (None,))
        return type_ not in _SIZES or _SIZES[type_] == dtype.base.itemsize

    def _resolve(self, type_: str) -> tuple[list[str], str]:
        """The typedefs and macros that lead to a type, and the type."""
        aliases: list[str] = []
        for _ in range(_MAX_ALIASES):
            if type_ in self._declared.typedefs:
                following = self._declared.typedefs[type_].type
            elif type_ in self._declared.defines:
                following = self._declared.defines[type_]
            else:
                break
            aliases.append(type_)
            type_ = following
        return aliases, type_

    def _members(self, type_: str) -> Iterator[Member]:
        """Of a record; an anonymous one's members are those of what encloses it."""
        for member in self._declared.records.get(type_, ()):
            if member.name or member.bits is not None:
                yield member
            elif " @" in member.type:
                yield from self._members(member.type)

    def _add_members(self, path: str, type_: str, dtype: DType) -> None:
        members = list(self._members(type_))
        for name in dtype.names or ():
            declared = (m for m in members if m.name == name and self.fits(m, dtype[name]))
            self.add(f"{path}.{name}", next(declared, Member(name, "")), dtype[name])
        # Of several branches of an #if only the compiler knows which it took.
        if [m.name for m in members if m.name] == list(dtype.names or ()):
            for name, place in self._bit_fields(type_, dtype, 0):
                self.bits[f"{path}.{name}"] = place

    def _bit_fields(
        self, type_: str, dtype: DType, start: int
    ) -> Iterator[tuple[str, tuple[int, int]]]:
        """Shift and width, as the compiler lays bit fields out from byte `start` on.

        One whose word is not where `dtype` has it is left out.
        """
        offsets = {name: found[1] for name, found in (dtype.fields or {}).items()}
        cursor: int | None = 8 * start  # bits; None: not known
        for member in self._declared.records.get(type_, ()):
            if type_.startswith("union "):
                cursor = 8 * start
            if member.bits is None and member.name:
                cursor = 8 * (offsets[member.name] + dtype[member.name].itemsize)
            elif member.bits is None:
                inner = [offsets[each.name] for each in self._members(member.type) if each.name]
                yield from self._bit_fields(member.type, dtype, min(inner, default=0))
                cursor = None  # it may end with padding
            elif cursor is not None:
                size = dtype[member.name].itemsize if member.name else _SIZES.get(member.type, 0)
                word = 8 * size
                if word and (member.bits == 0 or cursor % word + member.bits > word):
                    cursor = round_up(cursor, word)
                if word and member.name and cursor // word * size == offsets[member.name]:
                    yield member.name, (cursor % word, member.bits)
                cursor = cursor + member.bits if word else None
