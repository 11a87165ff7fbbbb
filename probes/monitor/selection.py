"""Match+action tables: which policies a packet's flow is of (S2.9).

A table has one mask, and rules that say what the masked flow key must be; each rule's action is the
set of policies that it is of. A packet visits every table, and what matched in each adds up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from bpf.errors import UsageError
from bpf.syscall import map_delete, map_update
from probes.flow.filter import EVERYTHING, FlowFilter, Match
from probes.monitor.programs import MATCH_TABLES
from probes.monitor.records import Array

MAX_RULES = 16384


def matches_of(select: Sequence[str]) -> tuple[Match, ...]:
    """What a policy's filters, of which one must pass, select; nothing said is everything.

    Raises UsageError for a filter that is none, or can't select.
    """
    found = dict.fromkeys(m for text in select for m in FlowFilter.parse(text).matches())
    return (EVERYTHING,) if not found or EVERYTHING in found else tuple(found)


class Rules:
    """The rules of all policies, in the kernel's tables. Each change of a rule is one write."""

    def __init__(self, rules_fd: int, control: Array) -> None:
        """`control` is the kernel's own, of dtype CONTROL, shape ()."""
        self._fd = rules_fd
        self._control = control
        self._policies: dict[Match, int] = {}
        """Bits of the policies that a rule is of."""
        self._masks: list[bytes | None] = []
        """By table; None: not in use."""
        self._rules: Counter[bytes] = Counter()
        """How many there are with a mask."""

    def add(self, bit: int, matches: Sequence[Match]) -> None:
        """Have `matches` select for a policy too.

        UsageError where they don't fit, and then nothing is changed.
        """
        new = [match for match in matches if match != EVERYTHING]
        self._refuse_too_many(new)
        if len(new) < len(matches):
            self._control["everything"] |= np.uint32(1 << bit)
        for match in new:
            self._write(match, self._policies.get(match, 0) | 1 << bit)

    def remove(self, bit: int, matches: Iterable[Match]) -> None:
        """Have them do so no more."""
        for match in matches:
            if match == EVERYTHING:
                self._control["everything"] &= ~np.uint32(1 << bit)
            else:
                self._write(match, self._policies[match] & ~(1 << bit))

    def _refuse_too_many(self, new: Sequence[Match]) -> None:
        masks = {*filter(None, self._masks), *(match.mask for match in new)}
        if len(masks) > MATCH_TABLES:
            raise UsageError(
                f"selections that look at {len(masks)} different sets of header fields",
                hint=f"the router has {MATCH_TABLES} tables, one for each set",
            )
        if len({*self._policies, *new}) > MAX_RULES:
            raise UsageError(f"more than {MAX_RULES} rules")

    def _write(self, match: Match, policies: int) -> None:
        table = self._table_of(match.mask)
        key = match.value + table.to_bytes(8, "little")
        if policies:
            map_update(self._fd, key, policies.to_bytes(4, "little"))
            self._rules[match.mask] += match not in self._policies
            self._policies[match] = policies
            return
        map_delete(self._fd, key)
        del self._policies[match]
        self._rules[match.mask] -= 1
        if not self._rules[match.mask]:
            self._masks[table] = None  # packets go on looking there, and find nothing

    def _table_of(self, mask: bytes) -> int:
        """The table with that mask; a free one becomes it."""
        if mask in self._masks:
            return self._masks.index(mask)
        if None in self._masks:
            table = self._masks.index(None)
            self._masks[table] = mask
        else:
            table = len(self._masks)
            self._masks.append(mask)
        self._control["masks"][table] = np.frombuffer(mask, "u8")
        self._control["tables"] = len(self._masks)
        return table
