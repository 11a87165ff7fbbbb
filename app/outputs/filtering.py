"""The row filter of written tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from app.outputs.view import OwnedFlows
from app.outputs.views import VIEWS, built_in
from bpf.arrays import Array
from bpf.errors import TextError, UsageError
from probes.filter import Domain, Filter, RowTable, parts
from probes.filter.fields import Codes, Texts
from probes.filter.owners import EVENTS, event_table
from probes.flow.filter import OWNED_FLOWS, WINDOW_FLOWS
from probes.flow.kinds import KINDS, REPEATED
from probes.monitor import state
from probes.path.filter import ANSWERS, FINDINGS, answers_table, findings_table
from probes.snapshot import Event, Item, Snapshot
from probes.sockets.records import OWNER, OWNERS_TABLE, SOCKET, SOCKETS_TABLE, Owned

_POLICY = Texts("policy", "the policy's name")
_STATES = {each.label.replace(" ", "_"): int(each) for each in state.PolicyState}
_POLICIES = Domain(
    "policies",
    {"policy": _POLICY, "state": Codes("state", "the policy's state", "state", _STATES)},
)
_TRIGGERS = Domain("triggers", {"policy": _POLICY})


def passing(items: Sequence[Snapshot], text: str) -> list[Snapshot]:
    """Return tables of built-in probes with the rows that pass a filter. Raises UsageError.

    Terms about owners hold for rows of OwnedFlows; other flows have no owner.
    """
    if not text.strip():
        return list(items)
    views = ["" if item.is_metric else built_in(item).name for item in items]
    if "" in views:
        raise UsageError("there is no filter for tables of metrics")
    filtering = Filtering.of(text, views, {})
    kept = (filtering.kept(view, item) for view, item in zip(views, items, strict=True))
    return [item for item in kept if isinstance(item, Snapshot)]


def flow_table(item: Snapshot) -> RowTable:
    """Return a window of flows with the columns of OWNED_FLOWS; of OwnedFlows they have values."""
    rows, seconds = item.rows, max(item.seconds, 1e-9)
    tables = item.tables if isinstance(item, OwnedFlows) else {}

    def of(name: str, dtype: np.dtype[Any]) -> Array:
        return tables[name].rows if name in tables else np.empty(0, dtype)

    owned = Owned(rows, of(SOCKETS_TABLE, SOCKET), of(OWNERS_TABLE, OWNER))
    made = {
        "bit_rate": lambda: rows["bytes"] * (8 / seconds),
        "packet_rate": lambda: rows["packets"] / seconds,
    }
    return RowTable(rows, {**made, **owned.columns}, coded=owned.coded)


_FLOWS = ("flows", REPEATED, *KINDS)
_VIEWS: Mapping[str, tuple[Domain, Callable[[Any], RowTable]]] = {
    **dict.fromkeys(_FLOWS, (OWNED_FLOWS, flow_table)),
    "hops": (ANSWERS, lambda item: answers_table(item.rows)),
    "paths": (FINDINGS, lambda item: findings_table(item.rows)),
    "policies": (_POLICIES, lambda item: RowTable(item.rows)),
    "triggers": (_TRIGGERS, lambda item: RowTable(item.rows)),
    # Among several tables a single word does not search the text of events.
    "events": (replace(EVENTS, bare=(), text=""), lambda event: event_table([event])),
}


@dataclass(slots=True)
class Filtering:
    """The filter of a run's tables, and the count of rows that it left out."""

    text: str = ""
    filters: Mapping[str, Filter] = field(default_factory=dict)
    """By view."""
    needs_owners: bool = False
    """Whether no view knows a term without owners of flows."""
    left_out: int = 0
    total: int = 0
    """Rows before filtering."""
    _last: tuple[Item, Item | None] | None = None
    """The last window of flows, and its part that passes: views of groups take it, too."""

    @classmethod
    def of(
        cls, text: str, views: Sequence[str], saved: Mapping[str, str], owners: bool | None = None
    ) -> Filtering:
        """Filter the rows of `views`, each by the terms that it knows.

        `owners` says whether flows have owners; None: if a term needs them. Raises TextError for a
        wrong filter, also for a term that no view knows, and UsageError without a view to filter.
        """
        if not text.strip():
            return cls()
        owned = {name: domain for name, (domain, _) in _VIEWS.items() if name in views}
        if not owned:
            raise UsageError(f"there is no filter for {', '.join(views)}")
        plain = {name: WINDOW_FLOWS if name in _FLOWS else domain for name, domain in owned.items()}
        needs = False
        try:
            filters = parts(text, tuple((owned if owners else plain).values()), saved)
        except TextError as error:
            filters, needs = parts(text, tuple(owned.values()), saved), True
            if owners is False:
                raise TextError(
                    "the term needs owners of flows, and they are off", text, error.column,
                    hint="leave out --no-owners",
                ) from None  # fmt: skip
        return cls(text, dict(zip(owned, filters, strict=True)), needs)

    def words(self, views: Sequence[str]) -> str:
        """Return in words which of `views` know none of some terms; empty for none."""
        if not self.text:
            return ""
        whole: dict[str, list[str]] = {}
        for view in views:
            found = self.filters.get(view)
            terms = " ".join(found.missing) if found is not None else self.text.strip()
            if terms:
                whole.setdefault(terms, []).append(view)
        return "; ".join(f"{terms} does not filter {', '.join(of)}" for terms, of in whole.items())

    def kept(self, view: str, item: Item) -> Item | None:
        """Return the part of `item` that passes into a view; None for nothing."""
        shown = self.filters.get(view)
        if not shown or not VIEWS[view].takes(item):
            return item
        if self._last is not None and self._last[0] is item:
            return self._last[1]
        passed = shown.mask(_VIEWS[view][1](item))
        count = int(np.count_nonzero(passed))
        self.total += len(passed)
        self.left_out += len(passed) - count
        if isinstance(item, Event):
            return item if count else None
        part = item if count == len(passed) else replace(item, rows=item.rows[passed])
        self._last = item, part
        return part

    def __str__(self) -> str:
        """Return the summary at the end of a run; empty without a filter."""
        if not self.text:
            return ""
        return f"{self.left_out} of {self.total} rows did not pass {self.text.strip()}"
