"""What a replacement keeps and what it loses, found out before it is made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bpf.compiler import CompiledMap
from bpf.ctype import CType, Member
from probes.config import Side
from probes.plane import Compatibility, Fate, MapFate
from probes.program.loading import CompiledSide, LoadedSide
from probes.program.metrics import made_spec

AnySide = CompiledSide | LoadedSide


def keeps(old: LoadedSide, new: CompiledSide) -> dict[str, int]:
    """The maps, by name, that a new program takes over from the old one; the old one's."""
    private = _private(new)
    return {
        name: fd
        for name, fd in old.shared.items()
        if name in new.declared
        and name not in private
        and not _difference(old.declared[name], new.declared[name])
    }


def compare(
    old: Sequence[AnySide], new: Sequence[AnySide], *, returns: bool = False
) -> Compatibility:
    """The report of a replacement of `old` by `new`, or of a return to `new`."""
    before = {side.side: side for side in old}
    after = {side.side: side for side in new}
    sides = [*after, *(side for side in before if side not in after)]
    fates = [f for side in sides for f in _fates(side, before.get(side), after.get(side), returns)]
    had = [f"{side.side}.{m.name}" for side in old for m in side.config.metrics]
    has = [f"{side.side}.{m.name}" for side in new for m in side.config.metrics]
    return Compatibility(
        tuple(fates),
        tuple(name for name in had if name not in has),
        tuple(name for name in has if name not in had),
        tuple(_warnings(before, after)),
    )


def _fates(
    side: Side, old: AnySide | None, new: AnySide | None, returns: bool
) -> Iterator[MapFate]:
    declared = new.declared if new else {}
    private = _private(new) if new else set()
    were_private = _private(old) if old else set()
    for name, found in declared.items():
        line = new.lines.get(name, 0) if new else 0
        fate, reason = Fate.KEPT, ""
        if old is None or name not in old.declared:
            fate = Fate.AS_IT_WAS if returns and name not in private else Fate.NEW
        elif name in private and name in were_private:
            fate, reason = Fate.WINDOW, _difference(old.declared[name], found)
        elif name in private or name in were_private:
            fate, reason = Fate.EMPTY, "only one of the two is a snapshot metric's"
        elif reason := _difference(old.declared[name], found):
            fate = Fate.EMPTY
        if returns and fate is Fate.EMPTY and name not in private:
            fate = Fate.AS_IT_WAS
        yield MapFate(side, name, fate, reason, line)
    for name in old.declared if old else ():
        if name not in declared:
            yield MapFate(side, name, Fate.GONE, "", 0)


def _private(side: AnySide) -> set[str]:
    """Maps that each clone has for itself."""
    return {m.name for m in side.metric_maps if m.private}


def _difference(old: CompiledMap, new: CompiledMap) -> str:
    """Why one map can't be in the place of the other; empty if it can."""
    was, now = made_spec(old), made_spec(new)
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
    """Whether two types have the same fields at the same places; typedefs may differ."""
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


def _warnings(before: Mapping[Side, AnySide], after: Mapping[Side, AnySide]) -> Iterator[str]:
    for side, old in before.items():
        new = after.get(side)
        if new is None:
            yield f"{side} is no longer watched"
        elif new.place != old.place:
            where = f"{new.interface.name}, {new.hook.value}"
            yield f"{side} moves from {old.interface.name}, {old.hook.value} to {where}"
