"""Types of the running kernel, by its BTF: offsets of members, numbers of functions, enumerators.

Programs get the offsets as macros, in place of CO-RE's relocations. Reading takes some 40 ms of
CPU time, once for a process: call `kernel_types` in a worker.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Container, Iterator
from pathlib import Path

import numpy as np

from bpf.errors import KernelError
from bpf.maps.btf import EACH_BYTES, FIXED_BYTES, QUALIFIERS, TypeKind, sections

VMLINUX = Path("/sys/kernel/btf/vmlinux")
_OFFSET = re.compile(r"\bKERNEL_OFFSET\(\s*(\w+)\s*,\s*([\w.]+)\s*\)")
_QUALIFIERS = frozenset((*QUALIFIERS, TypeKind.TYPEDEF))
_DERIVED = _QUALIFIERS | {TypeKind.PTR, TypeKind.ARRAY}
_ENUMERATORS = {TypeKind.ENUM: struct.Struct("<Ii"), TypeKind.ENUM64: struct.Struct("<IiI")}
_DECLARED = (TypeKind.STRUCT, TypeKind.UNION, TypeKind.TYPEDEF, *_ENUMERATORS)
_TYPE_WORDS = 3
_MEMBER = struct.Struct("<III")


class KernelTypes:
    """An index of the types in a BTF blob, which a kernel has many of (126,000)."""

    def __init__(self, data: bytes) -> None:
        """Read a blob. Raises ValueError for a malformed one."""
        self._types, self._strings = sections(data)
        words = np.frombuffer(self._types, "<u4")
        # Words after which the next type would begin, were this word the first of a type.
        lengths = np.zeros(len(words), np.uint32)
        kinds = words[1:] >> 24 & 31
        fixed, each = np.zeros(32, np.uint32), np.zeros(32, np.uint32)
        for kind in TypeKind:
            fixed[kind] = FIXED_BYTES.get(kind, 0) // 4
            each[kind] = EACH_BYTES.get(kind, 0) // 4
        lengths[:-1] = _TYPE_WORDS + fixed[kinds] + each[kinds] * (words[1:] & 0xFFFF)
        steps = memoryview(lengths.data)
        at, end = 0, len(words)
        begins: list[int] = []
        while at < end:
            begins.append(at)
            at += steps[at] or end
        self._begins = np.array(begins)
        self._names = words[self._begins]
        self._kinds = words[self._begins + 1] >> 24 & 31

    def number(self, name: str, kind: TypeKind) -> int:
        """Return the number of a type, from 1. Raises KernelError if the kernel lacks it."""
        place = self._strings.find(b"\0" + name.encode() + b"\0") + 1
        found = np.flatnonzero((self._names == place) & (self._kinds == kind))
        if not place or not len(found):
            raise KernelError(f"the kernel has no {kind.name.lower()} {name}")
        return int(found[0]) + 1

    def function(self, name: str) -> int:
        """Return the number of a function. Raises KernelError if the kernel lacks it."""
        return self.number(name, TypeKind.FUNC)

    def offset(self, struct_name: str, path: str) -> int:
        """Return the byte offset of a member, such as `ns.inum` of `net`.

        Raises KernelError if the kernel lacks it.
        """
        number, total = self.number(struct_name, TypeKind.STRUCT), 0
        for part in path.split("."):
            found = self._member(number, part)
            if found is None:
                raise KernelError(f"the kernel has no {struct_name}.{path}")
            offset, number = found
            total += offset
        return total

    def enumerators(self, name: str) -> dict[int, str]:
        """Return the names of an enum's values. Raises KernelError if the kernel lacks it."""
        at, info, _ = self._entry(self.number(name, TypeKind.ENUM))
        layout = _ENUMERATORS[TypeKind.ENUM]
        data = self._types[at : at + layout.size * (info & 0xFFFF)]
        return {value: self._text(word) for word, value in layout.iter_unpack(data)}

    def needed(self, words: Container[str]) -> list[int]:
        """Return the numbers of the types that a source with these words can use.

        They are the types and enumerators that it names, and the types behind pointers whose
        members it names.
        """
        found = {
            number for name, all_ in self._declared.items() if name in words for number in all_
        }
        waiting = list(found)
        while waiting:
            for word, type_, _ in self._members(waiting.pop()):
                number, is_pointer = self._target(type_)
                is_used = not is_pointer or self._text(word) in words
                if number and is_used and number not in found:
                    found.add(number)
                    waiting.append(number)
        return sorted(found)

    @functools.cached_property
    def _declared(self) -> dict[str, list[int]]:
        """The numbers of types by their names, and of enums by their enumerators'."""
        found: dict[str, list[int]] = {}
        for index in map(int, np.flatnonzero(np.isin(self._kinds, _DECLARED))):
            words = [int(self._names[index])]
            at, info, _ = self._entry(index + 1)
            if layout := _ENUMERATORS.get(self._kinds[index]):
                data = self._types[at : at + layout.size * (info & 0xFFFF)]
                words += [each[0] for each in layout.iter_unpack(data)]
            for word in filter(None, words):
                found.setdefault(self._text(word), []).append(index + 1)
        return found

    def _member(self, number: int, name: str) -> tuple[int, int] | None:
        """Return a member's byte offset and type, also of a member of an anonymous member."""
        for word, type_, offset in self._members(number):
            if word and self._text(word) == name:
                return offset, type_
            if not word and (found := self._member(type_, name)):
                return offset + found[0], found[1]
        return None

    def _members(self, number: int) -> Iterator[tuple[int, int, int]]:
        """Yield name, type and byte offset of each member of a struct or union."""
        at, info, _ = self._entry(self._target(number, _QUALIFIERS)[0])
        if info >> 24 & 31 in (TypeKind.STRUCT, TypeKind.UNION):
            data = self._types[at : at + _MEMBER.size * (info & 0xFFFF)]
            for word, type_, place in _MEMBER.iter_unpack(data):
                yield word, type_, (place & 0xFFFFFF if info >> 31 else place) // 8

    def _target(self, number: int, through: Container[int] = _DERIVED) -> tuple[int, bool]:
        """Return the type behind types of the kinds `through`, and whether a pointer was among
        them."""
        is_pointer = False
        while number:
            at, info, other = self._entry(number)
            if (kind := info >> 24 & 31) not in through:
                break
            is_pointer |= kind == TypeKind.PTR
            number = (
                struct.unpack_from("<I", self._types, at)[0] if kind == TypeKind.ARRAY else other
            )
        return number, is_pointer

    def _entry(self, number: int) -> tuple[int, int, int]:
        """Return the place of a type's further data, its info, and its size or other type."""
        at = int(self._begins[number - 1]) * 4
        _, info, other = struct.unpack_from("<III", self._types, at)
        return at + 4 * _TYPE_WORDS, info, other

    def _text(self, at: int) -> str:
        return self._strings[at : self._strings.index(b"\0", at)].decode(errors="replace")


def resolve_offsets(source: str) -> str:
    """Return `source` with KERNEL_OFFSET(type, member) replaced by offsets in the running kernel.

    Raises KernelError if the kernel lacks a type or a member, or does not describe its types.
    """
    return _OFFSET.sub(lambda match: str(kernel_types().offset(match[1], match[2])), source)


@functools.cache
def kernel_types() -> KernelTypes:
    """Return the types of the running kernel, read once.

    Raises KernelError if the kernel has no BTF (CONFIG_DEBUG_INFO_BTF), or one of an unknown form.
    """
    try:
        return KernelTypes(VMLINUX.read_bytes())
    except OSError as error:
        raise KernelError(
            f"the kernel does not describe its types: no {VMLINUX} ({error.strerror})",
            hint="--drops and probes of kernel functions need it; CONFIG_DEBUG_INFO_BTF has it",
        ) from None
    except (ValueError, IndexError) as error:
        raise KernelError(f"{VMLINUX} is not understood: {error}") from None
