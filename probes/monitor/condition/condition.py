"""A condition: parsed once, evaluated after each window, without the metrics of trusted hosts."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from bpf.errors import TextError
from probes.filter.domain import NONE
from probes.monitor.condition.logic import ConditionOutcome, Logic, comparisons
from probes.monitor.condition.selection import canonical
from probes.monitor.condition.series import WindowSeries
from probes.monitor.condition.syntax import MAX_LENGTH, MAX_STORED, parse
from probes.monitor.condition.terms import (
    UNSEEN,
    Expression,
    MetricTerm,
    Number,
    Over,
    Rate,
    WindowSelection,
    parts,
)
from probes.monitor.owners.text import is_of_owners
from probes.monitor.selected import UNITS, SelectedMetric

_KINDS = {
    "tcp": "tcp",
    "udp": "udp",
    "icmp": "proto:icmp,icmp6",
    "syn": "flags:S !flags:A",
    "syn_ack": "flags:SA",
    "fin": "flags:F",
    "rst": "flags:R",
}
"""Filters of the metrics of all packets, by the first part of their names."""


def shaped(term: MetricTerm, names: Mapping[str, str], trusted: Sequence[str]) -> MetricTerm:
    """Return a metric with the name of its filter in its text. `names` are by canonical text."""
    if term.selection in names:
        term = replace(term, text=f"{term.name} on @{names[term.selection]}")
    return _without(term, trusted) if trusted else term


def _without(term: MetricTerm, trusted: Sequence[str]) -> MetricTerm:
    """Return a metric that packets of trusted networks do not count in, with the same text.

    A trusted host is the source, of outgoing packets the destination, and of answers either end.
    """
    metric = SelectedMetric(term.name, term.selection)
    if metric.of_owners or is_of_owners(term.selection):
        return term
    end = "dst" if metric.outgoing else "net" if metric.leaves else "src"
    kind, _, unit = term.name.rpartition("_")
    name, selection = term.name, f"({term.selection})" if term.selection else ""
    if not selection and kind in _KINDS:
        name, selection = unit, _KINDS[kind]
    if name not in UNITS:
        return term
    try:
        selection = canonical(f"{selection} !{end}:{','.join(trusted)}", NONE)
    except TextError:  # It selects trusted hosts only.
        return term
    return replace(term, name=name, selection=selection, text=str(term))


@dataclass(frozen=True)
class Condition:
    """A parsed condition; docs/monitor.md describes the language."""

    text: str
    """The condition in normalised spelling."""
    span: float
    """The longest time in it in seconds; 0 if it needs the last window only."""
    metrics: frozenset[SelectedMetric]
    """Metrics of selections that it needs."""
    _root: Logic = field(repr=False, compare=False)

    @classmethod
    def parse(
        cls, text: str, saved: Mapping[str, str] = NONE,
        limit: int = MAX_LENGTH, names: Mapping[str, str] = NONE, trusted: Sequence[str] = (),
    ) -> Condition:  # fmt: skip
        """Parse a condition, which may name `saved` filters; `limit` is its greatest length. Texts
        have `names` instead of these canonical filters, and `trusted` networks do not count.

        Raises TextError, with the column.
        """
        shape = functools.partial(shaped, names=names, trusted=trusted)
        root, span, metrics = parse(text, saved, limit, shape)
        return cls(str(root), span, metrics, root)

    @classmethod
    @functools.lru_cache(maxsize=256)
    def stored(
        cls, text: str, names: tuple[tuple[str, str], ...] = (), trusted: tuple[str, ...] = ()
    ) -> Condition:
        """Parse the condition of a policy, which has the texts of named filters. `names` has pairs
        of a text and a name."""
        return cls.parse(text, limit=MAX_STORED, names=dict(names), trusted=trusted)

    def evaluate(
        self, series: WindowSeries, quiet: WindowSeries | None = None,
        bursts: WindowSeries | None = None, whole: bool = True,
    ) -> ConditionOutcome:  # fmt: skip
        """Evaluate the condition in the last window of `series`.

        `quiet` has the windows for baselines: before this one, without those in which the policy
        was active or the condition held; None: all windows of `series` before this one. Baselines
        use its last windows, however old, and so stay the same while the policy is active. `bursts`
        has further windows that are usual: a baseline is at least their median. From now on all
        series keep as many windows as this needs. Without `whole`, the outcome has the deciding
        comparison, and may lack those behind it.
        """
        for windows in (series, quiet, bursts):
            if windows is not None:
                windows.keep(self.span)
        with np.errstate(all="ignore"):
            key = -1 if len(series) else None
            judged = self._root.judge(WindowSelection(series, quiet, key, bursts), whole)
        certain = judged.holds is not None and judged.sure is judged.holds
        return ConditionOutcome(judged.holds, certain, judged.comparisons, judged.reasons)

    @cached_property
    def _terms(self) -> list[Expression]:
        return [term for each in comparisons(self._root) for term in each.terms]

    @cached_property
    def named(self) -> frozenset[SelectedMetric]:
        """All metrics that it names, with and without a selection."""
        found = (term for term in self._terms if isinstance(term, MetricTerm))
        return frozenset(SelectedMetric(term.name, term.selection) for term in found)

    @cached_property
    def inputs(self) -> frozenset[SelectedMetric] | None:
        """The metrics that the outcome depends on while all baselines are at their floors. None if
        it also depends on other windows, or if zeros would not make it independent of the length
        of the window."""
        for term in self._terms:
            if isinstance(term, Over) and not term.has_floor:
                return None
            if isinstance(term, Rate) and any(isinstance(part, Number) for part in parts(term)):
                return None
        return self.named

    def is_low(
        self, outcome: ConditionOutcome, series: WindowSeries, quiet: WindowSeries
    ) -> bool:  # fmt: skip
        """Whether the baselines of an outcome are at their floors; arguments as in `evaluate`."""
        windows = WindowSelection(series, quiet, -1)
        return all(
            each.is_low(windows) for found in outcome.comparisons for each in found.of.baselines
        )

    @functools.lru_cache(1024)  # noqa: B019 - conditions are few, and stay
    def never_holds(self, most: float, recent: float) -> bool:
        """Whether the condition holds in no window of a second with at most `most` packets,
        whatever windows came before. `recent` is the limit of the metrics in RECENT."""
        unseen = UNSEEN._replace(history=False, most=most, recent=recent)
        with np.errstate(all="ignore"):
            return self._root.judge(unseen).holds is False
