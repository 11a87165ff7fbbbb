"""Comparison of two generations: the maps and metrics that a replacement keeps and loses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from probes.config.model import Side
from probes.program.compiled import CompiledSide
from probes.program.loading import LoadedSide
from probes.reports import Compatibility, Fate, MapFate
from probes.tables.map_layout import difference

AnySide = CompiledSide | LoadedSide


def keeps(old: LoadedSide, new: CompiledSide) -> dict[str, int]:
    """Return the old program's maps, by name, that a new one takes over."""
    return {
        name: fd
        for name, fd in old.shared.items()
        if name in new.declared
        and name not in new.private
        and not new.declared[name].is_constant
        and not _difference(name, old, new)
    }


def compare(
    old: Sequence[AnySide], new: Sequence[AnySide], *, returns: bool = False
) -> Compatibility:
    """Return the report of a replacement of `old` by `new`; `returns`: of a roll-back to `new`."""
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
    private = new.private if new else set()
    were_private = old.private if old else set()
    for name in declared:
        assert new is not None
        if declared[name].is_constant:
            continue
        fate, reason = Fate.KEPT, ""
        if old is None or name not in old.declared:
            fate = Fate.AS_IT_WAS if returns and name not in private else Fate.NEW
        elif name in private and name in were_private:
            fate, reason = Fate.WINDOW, _difference(name, old, new)
        elif name in private or name in were_private:
            fate, reason = Fate.EMPTY, "only one of the two is a snapshot metric's"
        elif reason := _difference(name, old, new):
            fate = Fate.EMPTY
        if returns and fate is Fate.EMPTY and name not in private:
            fate = Fate.AS_IT_WAS
        yield MapFate(side, name, fate, reason, new.declared[name].line)
    for name in old.declared if old else ():
        assert old is not None
        if name not in declared and not old.declared[name].is_constant:
            yield MapFate(side, name, Fate.GONE, "", 0)


def _difference(name: str, old: AnySide, new: AnySide) -> str:
    """Return why the new program does not take over a map of the old one; empty if it does."""
    was, now = (o.share if (o := side.options.get(name)) else "" for side in (old, new))
    if was != now:
        return f"shared as {now!r}" if now else "no longer shared"
    return difference(old.declared[name], new.declared[name])


def _warnings(before: Mapping[Side, AnySide], after: Mapping[Side, AnySide]) -> Iterator[str]:
    for side, old in before.items():
        new = after.get(side)
        if new is None:
            yield f"{side} is no longer watched"
        elif new.hook_key != old.hook_key:
            where = f"{new.interface.name}, {new.hook.value}"
            yield f"{side} moves from {old.interface.name}, {old.hook.value} to {where}"
