"""A condition: parsed once, evaluated after each window."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from probes.monitor.condition.logic import ConditionOutcome, Logic
from probes.monitor.condition.series import WindowSeries
from probes.monitor.condition.syntax import parse
from probes.monitor.condition.terms import WindowSelection


@dataclass(frozen=True, slots=True)
class Condition:
    """See the package's docstring for the language."""

    text: str
    """In one way of writing it."""
    span: float
    """Seconds: the longest time that it asks for; 0 where it is of the last window only."""
    _root: Logic = field(repr=False, compare=False)

    @classmethod
    def parse(cls, text: str, where: str = "condition") -> Condition:
        """Read one. ConditionError, with the column and `where` before it, for what is none."""
        root, span = parse(text, where)
        return cls(str(root), span, root)

    def evaluate(self, series: WindowSeries, quiet: WindowSeries | None = None) -> ConditionOutcome:
        """What comes of it in the last window of `series`.

        `quiet` has what is usual: the windows before this one in which the policy was not active
        and its condition did not hold; None: all windows of `series` before this one. A baseline is
        of the last ones in it, however long ago they were, so that it stays as it was for as long
        as the policy is active. Both keep as many windows as this takes from now on.
        """
        for windows in (series, quiet):
            if windows is not None:
                windows.keep(self.span)
        with np.errstate(all="ignore"):
            judged = self._root.judge(WindowSelection(series, quiet, -1 if len(series) else None))
        certain = judged.holds is not None and judged.sure is judged.holds
        return ConditionOutcome(judged.holds, certain, judged.comparisons, judged.reasons)
