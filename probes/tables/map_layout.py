"""Comparison of two map declarations."""

from __future__ import annotations

from bpf.compiler import CompiledMap
from bpf.maps.layout import CType, Member


def difference(old: CompiledMap, new: CompiledMap) -> str:
    """Return why `new` can't replace `old`; empty if it can."""
    was, now = old.spec, new.spec
    for what, before, after in (
        ("kind", was.type.name.lower(), now.type.name.lower()),
        ("key bytes", was.key_size, now.key_size),
        ("value bytes", was.value_size, now.value_size),
        ("size", was.max_entries, now.max_entries),
        ("flags", int(was.flags), int(now.flags)),
    ):
        if before != after:
            return f"{what} {after}, was {before}"
    for what, one, other in (
        ("key", old.key_type, new.key_type),
        ("value", old.value_type, new.value_type),
    ):
        if not _same(one, other):
            return f"{what} {_names(other)}, was {_names(one)}"
    return ""


def _same(one: CType | None, other: CType | None) -> bool:
    """Return whether two types have the same fields and offsets; typedefs may differ."""
    if one is None or other is None:
        return one is other
    return (
        one.dtype == other.dtype
        and [m.bits for m in one.members.values()] == [m.bits for m in other.members.values()]
        and all(_same(m.type, other.members[name].type) for name, m in one.members.items())
        and _same(one.element, other.element)
    )


def _names(type_: CType | None) -> str:
    """Return such as `{packets uint64, bytes uint64, flag uint8:1}`."""
    if type_ is None or not type_.members:
        return str(type_ and type_.dtype)
    return "{" + ", ".join(_field(name, m) for name, m in type_.members.items()) + "}"


def _field(name: str, member: Member) -> str:
    return f"{name} {_names(member.type)}" + (f":{member.bits[1]}" if member.bits else "")
