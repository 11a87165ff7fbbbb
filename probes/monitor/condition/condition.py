"""A condition: parsed once, evaluated after each window."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from probes.filter.domain import NONE
from probes.monitor.condition.logic import ConditionOutcome, Logic
from probes.monitor.condition.series import WindowSeries
from probes.monitor.condition.syntax import MAX_LENGTH, MAX_STORED, parse
from probes.monitor.condition.terms import WindowSelection
from probes.monitor.condition.trust import shaped
from probes.monitor.records import Array
from probes.monitor.selected import Estimate, SelectedMetric


@dataclass(frozen=True, slots=True)
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
        bursts: WindowSeries | None = None,
    ) -> ConditionOutcome:  # fmt: skip
        """Evaluate the condition in the last window of `series`.

        `quiet` has the windows for baselines: before this one, without those in which the policy
        was active or the condition held; None: all windows of `series` before this one. Baselines
        use its last windows, however old, and so stay the same while the policy is active. `bursts`
        has further windows that are usual: a baseline is at least their median. From now on all
        series keep as many windows as this needs.
        """
        for windows in (series, quiet, bursts):
            if windows is not None:
                windows.keep(self.span)
        with np.errstate(all="ignore"):
            key = -1 if len(series) else None
            judged = self._root.judge(WindowSelection(series, quiet, key, bursts))
        certain = judged.holds is not None and judged.sure is judged.holds
        return ConditionOutcome(judged.holds, certain, judged.comparisons, judged.reasons)

    def never_holds_in(self, row: Array, selected: Mapping[SelectedMetric, Estimate]) -> bool:
        """Whether the condition does not hold in such a window, whatever windows came before."""
        window = WindowSeries()
        window.append(row, 10**9, 1.0, selected)
        with np.errstate(all="ignore"):
            return self._root.judge(WindowSelection(window, None, -1, history=False)).holds is False
