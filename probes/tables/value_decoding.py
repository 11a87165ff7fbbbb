"""The meaning of fields in a map's keys and values, from their C types and names."""

from __future__ import annotations

from typing import Any

import numpy as np

from bpf.compiler import CompiledMap
from bpf.maps.kinds import Shape
from bpf.maps.layout import CType, Member
from probes.tables.field_types import FIELD_TYPES, guess

DType = np.dtype[Any]


class Meaning:
    """Types, names and bit fields of each path, such as `key.saddr` or `value.first[]`."""

    def __init__(self, found: CompiledMap) -> None:
        self.dtypes: dict[str, DType] = {}
        """C types by path; a bit field has its declared type."""
        self.fields: dict[str, str] = {}
        """As in TableSchema, like the following."""
        self.names: dict[str, dict[int, str]] = {}
        self.bits: dict[str, tuple[int, int]] = {}
        key, value = found.key_type, found.value_type
        if key is not None and found.spec.kind.shape != Shape.ARRAY:
            self._add("key", key)
            if found.spec.kind.shape == Shape.LPM and FIELD_TYPES["prefix"].takes(key.dtype):
                self.fields["key"] = "prefix"
        if value is not None:
            self._add("value", value)

    def _add(self, path: str, type_: CType, name: str = "", inside: str = "") -> None:
        """Add the field `name` of the struct `inside`, and the fields below it."""
        self.dtypes[path] = type_.dtype
        if kind := guess(type_, name, inside):
            self.fields[path] = kind
        self._add_names(path, type_)
        if type_.element is not None:
            # An element of `addrs` is an address.
            plural = name.endswith("s") and not name.endswith("ss")
            self._add(f"{path}[]", type_.element, name[:-1] if plural else name, inside)
        for each, member in type_.members.items():
            where = f"{path}.{each}"
            if member.bits is None:
                self._add(where, member.type, each, name)
            else:
                self.bits[where] = member.bits
                self._add_bits(where, member)

    def _add_bits(self, path: str, member: Member) -> None:
        """Add a bit field: a number, a truth value or an enumerator."""
        type_ = member.type
        self.dtypes[path] = np.dtype("u1") if type_.dtype.kind == "b" else type_.dtype
        if type_.dtype.kind == "b":
            self.fields[path] = "bool"
        elif member.dtype.kind == "V" and ("__int128" in type_.names or type_.dtype.kind == "i"):
            self.fields[path] = "signed"
        self._add_names(path, type_)

    def _add_names(self, path: str, type_: CType) -> None:
        if type_.enumerators:
            # If two enumerators have one number, the first counts.
            pairs = reversed(list(type_.enumerators.items()))
            self.names[path] = {number: name for name, number in pairs}
