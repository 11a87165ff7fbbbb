"""The hops whose probes of TCP and echo are whole packets of their flow, and hops that need them to
be.

Address translation and stateful firewalls drop guarded probes. Whole probes pass them. Probes of
UDP are always guarded: a path may become shorter at any moment, and a whole datagram that reaches
the destination reaches its application.
"""

from __future__ import annotations

from socket import IPPROTO_UDP

import numpy as np

from bpf.arrays import Array, Rows
from probes.path.options import MAX_HOPS, Guard, Guarded, PathOptions
from probes.path.probing_plan import hops_of, mask_of, mask_within
from probes.path.records import DESTINATION_HOP, HOP, HOP_COUNT, ProbeOutcome

_SURE = 9.2
"""-ln of the highest probability at which chance leaves all guarded probes unanswered."""
_KNOWN_NS = 30_000_000_000
"""Guarded probes pass if one was answered within this time, at the same hop or a later one."""
_RECHECK_NS = 30_000_000_000
"""Time between two tries of guarded probes where they fail."""


class GuardPlan:
    """Chooses the hops of one destination, from the answers to guarded and to whole probes."""

    def __init__(self, options: PathOptions) -> None:
        self._options = options
        shape = (2, HOP_COUNT)
        self._heard_ns = np.zeros(shape, "i8")
        """When a guarded probe was last answered at each hop or a later one: of TCP and echo (0),
        and of UDP (1). The next three arrays count probes since then."""
        self._unanswered = np.zeros(shape, "i8")
        """Guarded probes without an answer."""
        self._sent = np.zeros(shape, "i8")
        """Whole probes of all protocols, and requests of the finder."""
        self._answered = np.zeros(shape, "i8")
        self._turn = 0
        """Hops beyond the path whose next try is whole."""
        self._failing = [0, 0]
        """Hops at which guarded probes fail, and whole ones do not."""
        self._recheck_ns = 0
        self.whole = mask_within(1, MAX_HOPS) if options.guard is Guard.NONE else 0
        """Hops with whole probes of TCP and echo."""

    @property
    def stateful_hop(self) -> int:
        """The hop behind which guarded probes fail and whole ones do not; 0: there is none."""
        failing = hops_of(self._failing[0] | self._failing[1])
        if not failing:
            return 0
        passed = np.flatnonzero(self._heard_ns[:, : failing[0]].max(axis=0))
        return max(1, int(passed.max(initial=0)))

    def take(self, rows: Rows[HOP], now_ns: int) -> None:
        """Take in new rows of dtype HOP, except for answers of the destination itself."""
        rows = rows[(rows["outcome"] <= ProbeOutcome.UNANSWERED) & (rows["hop"] != DESTINATION_HOP)]
        kinds, hops = _kinds(rows), rows["hop"]
        whole, answered = rows["whole"] > 0, rows["outcome"] != ProbeOutcome.UNANSWERED
        passed = answered & ~whole
        for kind in np.unique(kinds[passed]).tolist():
            until = slice(int(hops[passed & (kinds == kind)].max()) + 1)
            self._heard_ns[kind, until] = now_ns
            for counts in (self._unanswered, self._sent, self._answered):
                counts[kind, until] = 0
        np.add.at(self._unanswered, (kinds[~whole & ~answered], hops[~whole & ~answered]), 1)
        self._sent += np.bincount(hops[whole], minlength=HOP_COUNT)
        self._answered += np.bincount(hops[whole & answered], minlength=HOP_COUNT)
        sure = self._answered * np.log1p(self._unanswered / np.maximum(self._sent, 1)) >= _SURE
        sure &= self._unknown(now_ns)
        self._failing = [mask_of(np.flatnonzero(each)) for each in sure]

    def say_nothing(self, rows: Rows[HOP]) -> Array:
        """Which rows (n,) of dtype HOP tell nothing if they are unanswered: guarded ones at hops
        from which no guarded probe was ever answered, or at which they fail."""
        kinds, hops = _kinds(rows), rows["hop"]
        failing = np.array(self._failing)[kinds] >> hops.astype("i8") & 1
        fail: Array = (self._heard_ns[kinds, hops] == 0) | (failing > 0)
        fail &= (rows["whole"] == 0) & (hops != DESTINATION_HOP)
        return fail

    def decide(self, once: int, length: int, now_ns: int) -> None:
        """Update `whole`. `once`: hops to be probed once, as in HopSchedule. `length`: the farthest
        router that answers."""
        if self._options.guard is Guard.NONE or self._options.guarded is Guarded.ALL:
            return
        path = mask_within(1, length)
        self._turn = (self._turn ^ once) & ~path
        self.whole = path | self._turn
        failing = self._failing[0] & path
        if failing and now_ns - self._recheck_ns >= _RECHECK_NS:
            if self._recheck_ns:
                # Until the next poll. The farthest hop decides for those before it.
                self.whole &= ~(1 << failing.bit_length() - 1)
            self._recheck_ns = now_ns

    def _unknown(self, now_ns: int) -> Array:
        """Whether no guarded probe was answered lately, by kind and hop."""
        return (self._heard_ns == 0) | (now_ns - self._heard_ns > _KNOWN_NS)


def _kinds(rows: Rows[HOP]) -> Array:
    kinds: Array = (rows["protocol"] == IPPROTO_UDP).astype("i8")
    return kinds
