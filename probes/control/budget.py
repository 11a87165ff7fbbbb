"""The CPU budget of a run: a governor that steps down while the run uses more, and up again.

`Governor` has no clock and reads no kernel: `budget_keeper.py` gives it both, and has the steps.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

from bpf.quantities import percent
from probes.reports import BudgetUse
from probes.snapshot import Event

H = TypeVar("H")
SOURCE = "budget"
"""Source of the events."""
OVER_S = 5.0
"""Seconds over which the use is measured, and within which it must stay in the budget."""
_LATEST_S = 1.5
"""A use that ended before these last seconds needs no step."""
_HOLD_S = 3.0
"""From one step down to the next: until then, the first one shows its effect."""
_CALM = 0.6
"""Share of the budget below which a run is calm."""
_ROOM = 0.9
"""Share of the budget that a step up may lead to."""
_PATIENCE_S = (10.0, 640.0)
"""Seconds of calm before a step up: at first, and after steps up that did not last."""
_TRUSTED = 6
"""Times the patience after which a step up is tried, whatever it may cost by the estimate."""
_LASTS_S = 30.0
"""A step up that is taken back within this time did not last."""
_ROW_S = 20e-6
"""Seconds of a row of flows until it is measured, with all outputs: of a CSV file."""
_FEWEST_ROWS = 64
"""Rows that a window has in any case."""
_MEASURED_ROWS = 1000
"""Rows within OVER_S that are enough to measure the seconds of one."""
_USUAL = 2.0
"""Windows may have this many times their usual rows until the step `largest` is taken."""


class Resource(StrEnum):
    """A part of the use; each has the whole budget."""

    USER = "user space"
    KERNEL = "programs in the kernel"


@dataclass(frozen=True, slots=True)
class Step(Generic[H]):
    """A reduction of the use."""

    name: str
    down: str
    """Words of the event at its begin."""
    up: str
    """Words of the event at its end."""
    relieves: frozenset[Resource]
    applies: Callable[[H], bool]
    """Whether the run has this to reduce."""
    turn: Callable[[H, bool], None]
    """Step down, or up again."""
    limits_rows: bool = False
    """Whether this step lets a window have as few rows as the budget needs."""


@dataclass(slots=True)
class _Taken(Generic[H]):
    """A step that is in force."""

    step: Step[H]
    used: dict[Resource, float]
    """The use before the step."""
    load: float
    """Packets a second then; 0: unknown."""


@dataclass(slots=True)
class _Uses:
    """CPU seconds over time."""

    _points: deque[tuple[float, float]] = field(default_factory=deque)
    """Moments and totals, in seconds."""

    def add(self, now: float, total: float) -> None:
        self._points.append((now, total))
        while len(self._points) > 2 and self._points[1][0] <= now - OVER_S:
            self._points.popleft()

    def spent(self, seconds: float) -> float:
        """CPU seconds in the last `seconds`."""
        if len(self._points) < 2:
            return 0.0
        now, total = self._points[-1]
        began, before = self._points[0]
        for at, sum_then in self._points:
            if at > now - seconds:
                break
            began, before = at, sum_then
        return (total - before) * min(1.0, seconds / max(now - began, 1e-9))


class Governor(Generic[H]):
    """Keeps a run within its budget. Any thread may call it."""

    def __init__(
        self, host: H, share: float, steps: Sequence[Step[H]], publish: Callable[[Event], None]
    ) -> None:
        """`share` of one core is the budget, of each resource; `steps` are in their order."""
        self._host = host
        self._share = share
        self._steps = steps
        self._publish = publish
        self._lock = threading.RLock()
        self._uses = _Uses()
        self._kernel: float | None = None
        self._rows: deque[tuple[float, int]] = deque()
        """Ends of windows and their rows, within OVER_S."""
        self._row_s = _ROW_S
        self._usual = 0.0
        """Rows of a usual window."""
        self._load = 0.0
        self._cut = False
        """Whether a window lacked rows since the last tick."""
        self._taken: list[_Taken[H]] = []
        self._stepped = self._busy = -_LASTS_S
        """Times of the last step down, and when the run was not calm."""
        self._raised: dict[str, float] = {}
        """When each step was last taken back."""
        self._patience = _PATIENCE_S[0]

    def state(self) -> BudgetUse:
        with self._lock:
            used = self._uses.spent(OVER_S) / OVER_S
            steps = tuple(each.step.name for each in self._taken)
            return BudgetUse(self._share, used, self._kernel, steps)

    def most_rows(self, now: float, total: float) -> int:
        """Return how many rows a window that ends now may have, so that their cost fits.

        `total` are the CPU seconds of user space so far.
        """
        with self._lock:
            self._uses.add(now, total)
            # Half of the rest: the windows that follow need some, too.
            left = (self._share * OVER_S - self._uses.spent(OVER_S)) / 2
            free = any(each.step.limits_rows for each in self._taken)
            least = _FEWEST_ROWS if free else max(_FEWEST_ROWS, round(_USUAL * self._usual))
            return max(least, int(left / self._row_s))

    def window(self, now: float, rows: int, packets: float, *, cut: bool) -> None:
        """Take a window of flows, with all `packets` a second; `cut`: rows were left out."""
        with self._lock:
            self._rows.append((now, rows))
            self._load = packets
            self._cut |= cut
            if not cut:
                self._usual = max(rows, 0.9 * self._usual)

    def tick(self, now: float, total: float, kernel: float | None = None) -> None:
        """Take the use and perhaps a step. Called about once a second.

        `total` are CPU seconds of user space so far; `kernel` is a new measurement of the share of
        a core that programs use, if there is one.
        """
        with self._lock:
            self._uses.add(now, total)
            if kernel is not None:
                self._kernel = kernel
            spent = self._uses.spent(OVER_S)
            self._measure_rows(now, spent)
            used = {Resource.USER: spent / OVER_S, Resource.KERNEL: self._kernel or 0.0}
            latest = self._uses.spent(_LATEST_S) / _LATEST_S
            over = [each for each, share in used.items() if share > self._share]
            if latest <= self._share and Resource.USER in over:
                over.remove(Resource.USER)
            cut, self._cut = self._cut, False
            if cut or max(used.values()) > _CALM * self._share:
                self._busy = now
            if cut and not any(each.step.limits_rows for each in self._taken):
                self._cut_short(now, used)
            elif over and now >= self._stepped + _HOLD_S:
                self._down(now, used, over)
            elif now >= self._busy + self._patience and now >= self._stepped + self._patience:
                self._up(now, used)

    def _measure_rows(self, now: float, spent: float) -> None:
        while self._rows and self._rows[0][0] <= now - OVER_S:
            self._rows.popleft()
        if (rows := sum(count for _, count in self._rows)) >= _MEASURED_ROWS:
            self._row_s += (spent / rows - self._row_s) / 2

    def _possible(self) -> Iterable[Step[H]]:
        taken = {each.step.name for each in self._taken}
        return (step for step in self._steps if step.name not in taken and step.applies(self._host))

    def _cut_short(self, now: float, used: dict[Resource, float]) -> None:
        """Take all steps up to the one that limits rows: a window had too many."""
        for step in tuple(self._possible()):
            if Resource.USER in step.relieves:
                words = f"used {self._of(used[Resource.USER])}; more flows come than that allows"
                self._take(now, step, used, words)
            if step.limits_rows:
                return

    def _down(self, now: float, used: dict[Resource, float], over: Sequence[Resource]) -> None:
        for step in self._possible():
            if exceeded := [each for each in over if each in step.relieves]:
                who = "" if exceeded[0] is Resource.USER else f"{exceeded[0]} "
                self._take(now, step, used, f"{who}used {self._of(used[exceeded[0]])}")
                return

    def _take(self, now: float, step: Step[H], used: dict[Resource, float], words: str) -> None:
        if now < self._raised.get(step.name, -_LASTS_S) + _LASTS_S:
            self._patience = min(2 * self._patience, _PATIENCE_S[1])
        step.turn(self._host, True)
        self._taken.append(_Taken(step, dict(used), self._load))
        self._stepped, self._kernel = now, None
        value = 100 * max(used[each] for each in step.relieves)
        text = f"{words}: {step.down}"
        self._publish(Event.now("warning", SOURCE, text, step.name, "begin", value, "%"))

    def _up(self, now: float, used: dict[Resource, float]) -> None:
        if not self._taken:
            if now > self._stepped + 4 * self._patience:
                self._patience = _PATIENCE_S[0]
            return
        last = self._taken[-1]
        # The use before the step, of as many packets as now: unless packets were not its cause.
        load = self._load / last.load if last.load else 0.0
        would = max(max(used[each], last.used[each] * load) for each in last.step.relieves)
        trusted_until = max(self._busy, self._stepped) + _TRUSTED * self._patience
        if would > _ROOM * self._share and now < trusted_until:
            return
        last.step.turn(self._host, False)
        self._taken.pop()
        self._raised[last.step.name] = self._stepped = now
        text = f"uses {self._of(used[Resource.USER])}: {last.step.up}"
        value = 100 * used[Resource.USER]
        self._publish(Event.now("info", SOURCE, text, last.step.name, "end", value, "%"))

    def _of(self, used: float) -> str:
        return f"{percent(used)} of a core over {OVER_S:g} s, of {percent(self._share)}"
