"""Keeps the selections of policies that know owners up to date, window by window."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from bpf.errors import UsageError
from probes.filter.conjunction import Conjunction, merged
from probes.monitor.owners.ports import OwnSockets
from probes.monitor.owners.text import is_of_owners
from probes.monitor.owners.window import OwnerWindow
from probes.monitor.policy.model import Policy
from probes.monitor.router import PolicyRouter
from probes.monitor.selected import Estimate, SelectedMetric
from probes.monitor.selection import conjunctions_of
from probes.monitor.state import PROBE
from probes.snapshot import Event

FRESH_NS = 10_000_000_000
"""Age up to which a window of owners counts: longer than two windows of usual length."""
PATIENCE = 5
"""Windows without owners before an event reports it."""


@dataclass(frozen=True, slots=True)
class _Followed:
    """A policy that knows owners, and its selection in the kernel."""

    policy: Policy
    applications: tuple[str, ...]
    sockets: Mapping[str, OwnSockets]
    """By filter of owners."""
    selected: tuple[Conjunction, ...] = ()


class OwnerFollower:
    """Policies of a router; some select packets by owner. Protected by the monitor's lock."""

    def __init__(self, router: PolicyRouter) -> None:
        self._router = router
        self.look: Callable[[], OwnerWindow | None] = lambda: None
        """Returns the last window of the socket probe."""
        self._followed: dict[str, _Followed] = {}
        self._window: OwnerWindow | None = None
        self._missing = 0
        """Windows without owners, though a policy knows some."""
        self._refused: dict[str, str] = {}
        """By policy, why its selection was not renewed."""
        self._events: list[Event] = []

    def set_policy(self, policy: Policy, applications: Sequence[str]) -> None:
        """As `PolicyRouter.set_policy`; a policy of owners selects the present owners."""
        self._window = self.look()
        sockets = {text: OwnSockets() for text in policy.select if is_of_owners(text)}
        new = self._renewed(_Followed(policy, tuple(applications), sockets))
        self._router.set_policy(policy.name, applications, new.selected)
        self._followed.pop(policy.name, None)
        self._refused.pop(policy.name, None)
        if policy.knows_owners:
            self._followed[policy.name] = new

    def remove_policy(self, name: str) -> None:
        self._router.remove_policy(name)
        self._followed.pop(name, None)
        self._refused.pop(name, None)

    def end_window(
        self, metrics: Iterable[SelectedMetric], seconds: float
    ) -> dict[SelectedMetric, Estimate]:
        """Renew the selections by the last owners. Return the metrics of owners in that
        window; empty if the window is unknown."""
        if not self._followed:
            return {}
        window = self.look()
        stale = window is None or time.monotonic_ns() - window.end_ns > FRESH_NS
        self._missing = self._missing + 1 if stale else 0
        if self._missing == PATIENCE:
            names = ", ".join(self._followed)
            text = f"{names}: owners are unknown: the probe sockets does not run, or is cut (--cpu)"
            self._events.append(Event.now("warning", PROBE, text))
        if window is None or stale:
            return {}
        if window is not self._window:
            self._window = window
            self._renew()
        return {metric: window.value(metric, seconds) for metric in metrics if metric.of_owners}

    def events(self) -> list[Event]:
        """Return the events since the last call."""
        found, self._events = self._events, []
        return found

    def _renew(self) -> None:
        for name, old in self._followed.items():
            new = self._renewed(old)
            if new.selected == old.selected:
                continue
            try:
                self._router.set_policy(name, new.applications, new.selected)
            except UsageError as error:
                if self._refused.get(name) != error.message:
                    self._refused[name] = error.message
                    text = f"{name}: its owners are selected as before: {error}"
                    self._events.append(Event.now("warning", PROBE, text))
                continue
            self._refused.pop(name, None)
            self._followed[name] = new

    def _renewed(self, old: _Followed) -> _Followed:
        """Return a policy with the selection for the owners of now."""
        window, packets = self._window, [x for x in old.policy.selected if x not in old.sockets]
        found = list(conjunctions_of(packets)) if packets or not old.sockets else []
        for text, sockets in old.sockets.items():
            if window:
                own = window.owned_by(text)[1]
                rows = window.sockets
                found += sockets.conjunctions(rows[own], rows[~own], window.end_ns)
        return replace(old, selected=merged(found))
