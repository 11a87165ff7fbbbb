"""Filters of what is written: which rows of which tables, and which tables know a term."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from app.outputs.view import is_table
from app.outputs.views import VIEWS, built_in
from bpf.errors import UsageError
from probes.filter import Domain, Filter, RowTable, parts
from probes.filter.events import EVENTS, event_table
from probes.filter.fields import Codes, Texts
from probes.flow.filter import WINDOW_FLOWS
from probes.monitor import state
from probes.path.filter import ANSWERS, FINDINGS, answers_table, findings_table
from probes.snapshot import Event, Item, Snapshot

_POLICY = Texts("policy", "the policy's name")
_STATES = {each.label.replace(" ", "_"): int(each) for each in state.PolicyState}
_POLICIES = Domain(
    "policies",
    {"policy": _POLICY, "state": Codes("state", "the policy's state", "state", _STATES)},
)
_TRIGGERS = Domain("triggers", {"policy": _POLICY})


def passing(items: Sequence[Snapshot], text: str) -> list[Snapshot]:
    """Tables of a built-in probe with the rows that pass a filter; each goes by the terms that it
    knows. Raises UsageError."""
    if not text.strip():
        return list(items)
    views = ["" if item.is_metric else built_in(item).name for item in items]
    if "" in views:
        raise UsageError("there is no filter for tables of metrics")
    filtering = Filtering.of(text, views, {})
    kept = (filtering.kept(view, item) for view, item in zip(views, items, strict=True))
    return [item for item in kept if isinstance(item, Snapshot)]


def _window_flows(item: Snapshot) -> RowTable:
    rows, seconds = item.rows, max(item.seconds, 1e-9)
    made = {
        "bit_rate": lambda: rows["bytes"] * (8 / seconds),
        "packet_rate": lambda: rows["packets"] / seconds,
    }
    return RowTable(rows, made)


def _rows(item: Snapshot) -> RowTable:
    return RowTable(item.rows)


@dataclass(frozen=True, slots=True)
class _Written:
    """A view that can be filtered."""

    domain: Domain
    of: Callable[[Snapshot], RowTable]


# Of several tables a word by itself is not the events'.
_EVENTS = replace(EVENTS, bare=(), text="")
_VIEWS = {
    "flows": _Written(WINDOW_FLOWS, _window_flows),
    "hops": _Written(ANSWERS, lambda item: answers_table(item.rows)),
    "paths": _Written(FINDINGS, lambda item: findings_table(item.rows)),
    "policies": _Written(_POLICIES, _rows),
    "triggers": _Written(_TRIGGERS, _rows),
}


@dataclass(slots=True)
class Filtering:
    """Which rows of the views of a run are written, and how many are not."""

    text: str = ""
    filters: Mapping[str, Filter] = field(default_factory=dict)
    """By view."""
    left_out: int = 0
    """Rows."""
    total: int = 0
    """Rows that were looked at."""

    @classmethod
    def of(cls, text: str, views: Sequence[str], saved: Mapping[str, str]) -> Filtering:
        """Have rows of `views` pass a filter: each view those terms that it knows.

        TextError where it is none; UsageError where it is of none of the views.
        """
        if not text.strip():
            return cls()
        domains = {name: written.domain for name, written in _VIEWS.items() if name in views}
        if "events" in views:
            domains["events"] = _EVENTS
        if not domains:
            raise UsageError(f"there is no filter for {', '.join(views)}")
        filters = parts(text, tuple(domains.values()), saved)
        return cls(text, dict(zip(domains, filters, strict=True)))

    def words(self, views: Sequence[str]) -> str:
        """Which of `views` are written whole, for want of what is asked for; empty for none."""
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
        """What is written of `item` into a view; None for nothing."""
        shown = self.filters.get(view)
        if not shown:
            return item
        if isinstance(item, Event):
            table = event_table([item]) if view == "events" else None
        else:
            written = _VIEWS.get(view)
            ours = is_table(item, VIEWS[view].probe, VIEWS[view].table)
            table = written.of(item) if written is not None and ours else None
        if table is None:
            return item
        passed = shown.mask(table)
        count = int(np.count_nonzero(passed))
        self.total += len(passed)
        self.left_out += len(passed) - count
        if count == len(passed):
            return item
        if isinstance(item, Event):
            return None
        return replace(item, rows=item.rows[passed])

    def __str__(self) -> str:
        """What is said at the end; empty without a filter."""
        if not self.text:
            return ""
        return f"{self.left_out} of {self.total} rows did not pass {self.text.strip()}"
