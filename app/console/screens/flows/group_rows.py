"""Rows of groups: sorted arrays, formatted only in view."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from app.commands.flow_view import LABEL_KINDS, OWNER_KINDS
from app.console.host_names import Names
from app.console.screens.flows.columns import WAYS
from app.console.screens.flows.group import Group, GroupLook
from app.console.screens.flows.group_columns import GROUPS, OWNED
from app.console.screens.flows.grouped import GroupedFlows
from app.console.screens.flows.owners.ranks import code_texts, text_ranks
from app.console.tables.columns import Cells, columns, tone
from app.console.tables.spec import TableSpec
from probes.flow.records import Array
from widgets.sparkline import round_scale
from widgets.table.rows import Column, Tones, Value
from widgets.tones import Tone

SPECS: dict[str, TableSpec[Group]] = {
    **{spec.name: spec for spec in GROUPS},
    **dict.fromkeys(LABEL_KINDS, OWNED),
}
"""By kind of groups."""
TONED = ("conversations", *OWNER_KINDS)
"""Kinds of groups with columns of owners."""
OWNED_BY_DEFAULT = ("process", "limit")
OWNED_FROM = 100
"""Columns of owners on tables of so many cells or more."""
_BAR, _LOCAL = 8, 17
"""Usual width of a rate with a bar, and of local ends with addresses."""
_WIDTHS = ((160, {"in": 16, "out": 16, "rate": 8, "service": 14, "local": 8}),
           (100, {"in": 11, "out": 11, "rate": 7, "service": 9, "local": 8}))  # fmt: skip
"""Least widths of a table, and widths of columns that are wider there."""


def widths_of(width: int) -> Mapping[str, int]:
    """Return the widths of columns in a table of `width` cells, if not the usual ones."""
    return next((widths for least, widths in _WIDTHS if width >= least), {})


def group_columns(groups: GroupedFlows, width: int, *, traced: bool) -> tuple[Column[Any], ...]:
    """Return the columns of groups in a table of `width` cells.

    Columns for VLANs, tunnels, lower bounds and RTTs appear if a group needs them, and columns of
    owners if they fit.
    """
    rows, has_ends = groups.rows, groups.by.kind == "conversations" and groups.has_other_ends
    needed = [name for name in ("vlan", "tunnel", "tunnel_id") if rows[name].any()]
    needed += ["node"] * (groups.view.node_of is not None)
    needed += ["rtt"] * traced + ["totals"] * bool(rows["at_least"].any())
    if len(groups.table.owned.sockets) and width >= OWNED_FROM:
        needed += OWNED_BY_DEFAULT
    return _columns(groups.by.kind, width, tuple(needed), has_ends=has_ends)


@lru_cache(maxsize=64)
def _columns(
    kind: str, width: int, needed: tuple[str, ...], *, has_ends: bool
) -> tuple[Column[Any], ...]:
    changes: dict[str, dict[str, Any]] = {
        name: {"width": cells} for name, cells in widths_of(width).items()
    }
    if width >= _WIDTHS[-1][0] and has_ends:
        changes["local"] = {"width": _LOCAL}
    for name in needed:
        changes.setdefault(name, {})["hidden"] = False
    if kind in LABEL_KINDS:
        changes["owner"] = {"title": LABEL_KINDS[kind].capitalize()}
    spec = SPECS[kind]
    return columns(spec, **{name: of for name, of in changes.items() if name in spec.names})


class GroupRows:
    """A ValueSource over GroupedFlows."""

    def __init__(
        self, groups: GroupedFlows, look: GroupLook, order: Sequence[int] | Array | None = None
    ) -> None:
        """`order` has places of groups (m,); None: all of them."""
        self.groups, self._look = groups, look
        self.spec = SPECS[groups.by.kind]
        self.order = np.arange(len(groups.rows)) if order is None else np.asarray(order)
        """Places of the rows in `groups`, (m,)."""

    @classmethod
    def of(cls, groups: GroupedFlows, names: Names | None = None, width: int = 80) -> GroupRows:
        """Return all groups, for a table of `width` cells."""
        scales = {way: round_scale(float(groups.column(way).max(initial=0))) for way in WAYS}
        return cls(groups, GroupLook(names, widths_of(width).get("in", _BAR), scales))

    @property
    def end(self) -> str:
        """The end whose address is the group's."""
        return "near" if self.groups.by.near else "far"

    def ordered(self, position: int, *, descending: bool) -> GroupRows:
        values = self._numbers(self.spec.columns[position])[self.order]
        if descending and values.dtype.kind == "f":
            values = np.where(np.isnan(values), -np.inf, values)
        order = self.order[np.argsort(values, kind="stable")]
        return self.at(order[::-1] if descending else order)

    def at(self, order: Sequence[int] | Array) -> GroupRows:
        """Return the groups at some places, in their order."""
        return GroupRows(self.groups, self._look, order)

    def _numbers(self, column: Column[Group]) -> Array:
        found: Array = column.numbers(self) if column.numbers else self.groups.column(column.id)
        return found

    @property
    def rows(self) -> int:
        return len(self.order)

    def key(self, index: int) -> Hashable:
        return int(self.groups.rows["id"][self.order[index]])

    def index(self, key: Hashable) -> int | None:
        at = self.groups.place(key) if isinstance(key, int) else None
        if at is None:
            return None
        return int(np.flatnonzero(self.order == at)[0])

    def group(self, index: int) -> Group:
        return Group(self.groups, int(self.order[index]), self._look)

    def cells(self, index: int) -> Cells[Group]:
        return Cells(self.spec, self.group(index))

    def tones(self, index: int) -> Tones:
        group = self.group(index)
        if group.is_quiet:
            return Tone.MUTED
        if not len(self.groups.table.owned.sockets) or group.kind not in TONED:
            return Tone.NORMAL
        return [tone(column, group) for column in self.spec.columns]

    # Values of the rows, in their order, for files

    def values(self, position: int) -> Sequence[Value]:
        column = self.spec.columns[position]
        if column.values is not None:
            return column.values(self)
        values = self._numbers(column)[self.order]
        if values.dtype.kind == "f":
            values = values.round(1)
        return values.tolist()  # type: ignore[no-any-return]

    def texts(self, text: Callable[[Group], str]) -> list[str]:
        return [text(self.group(index)) for index in range(self.rows)]

    def seconds(self, name: str, unit: float) -> list[float]:
        """A column of times in `unit`, with three decimals."""
        return (self.groups.column(name)[self.order] / unit).round(3).tolist()  # type: ignore[no-any-return]

    def times(self, field: str) -> list[str]:
        """`first_ns` or `last_ns` as UTC, in ISO 8601."""
        from probes.tables.utc import iso_all

        found = self.groups.column(field)[self.order] + self.groups.view.to_utc_ns
        return iso_all(found)

    def owner_ranks(self, name: str) -> Array:
        """Ranks (m,) of all groups by a column of owners; without an owner the last ones."""
        return self.groups.of_flows(text_ranks(self.groups.table, name))

    def owner_numbers(self, name: str) -> Array:
        """A column (m,) of the sockets' numbers, of all groups."""
        return self.groups.of_flows(self.groups.table[name])

    def owner_texts(self, name: str) -> list[str]:
        """The texts of a column of owners, in the order of the rows."""
        groups = self.groups
        flows = groups.of_flows(np.arange(len(groups.view.rows)))
        return code_texts(groups.table, name, flows[self.order])

    @property
    def label_ranks(self) -> Array:
        """Ranks (m,) of all groups by their labels."""
        labels = [self.groups.labels[number] for number in self.groups.rows["id"].tolist()]
        order = sorted(range(len(labels)), key=lambda at: labels[at].casefold())
        return np.argsort(order)

    def ranks(self, end: str) -> Array:
        """Places (m,) of all groups by version, address and port of the `near` or `far` end."""
        rows = self.groups.rows
        address = np.ascontiguousarray(rows[end]).view(">u8").reshape(-1, 2)
        order = np.lexsort((rows[f"{end}_port"], address[:, 1], address[:, 0], rows["version"]))
        ranks = np.empty(len(rows), "i8")
        ranks[order] = np.arange(len(rows))
        return ranks
