"""Match+action tables: the policies that select a packet's flow (S2.9).

A table has one mask and rules with values of the masked flow key. A rule's action is a set of
policies. A packet visits every table, and the matches add up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from bpf.errors import UsageError
from bpf.syscall import map_delete, map_update
from probes.filter.match import EVERYTHING, Match
from probes.flow.filter import FlowFilter
from probes.monitor.programs import MATCH_TABLES
from probes.monitor.records import Array

MAX_RULES = 16384


def matches_of(select: Sequence[str]) -> tuple[Match, ...]:
    """The matches of a policy's filters; a packet must pass one filter. No filters: everything.

    Raises UsageError if a filter is invalid or cannot select packets.
    """
    found = dict.fromkeys(m for text in select for m in FlowFilter.parse(text).matches())
    return (EVERYTHING,) if not found or EVERYTHING in found else tuple(found)


class Rules:
    """The rules of all policies in the kernel's tables. Each change of a rule is one write."""

    def __init__(self, rules_fd: int, control: Array) -> None:
        """`control` is the kernel's own, of dtype CONTROL, shape ()."""
        self._fd = rules_fd
        self._control = control
        self._policies: dict[Match, int] = {}
        """Bits of each rule's policies."""
        self._masks: list[bytes | None] = []
        """Mask of each table; None: free."""
        self._rules: Counter[bytes] = Counter()
        """Number of rules with each mask."""

    def add(self, bit: int, matches: Sequence[Match]) -> None:
        """Let `matches` select packets for a policy, too.

        Raises UsageError if they do not fit, and then changes nothing.
        """
        new = [match for match in matches if match != EVERYTHING]
        self._refuse_too_many(new)
        if len(new) < len(matches):
            self._control["everything"] |= np.uint32(1 << bit)
        for match in new:
            self._write(match, self._policies.get(match, 0) | 1 << bit)

    def remove(self, bit: int, matches: Iterable[Match]) -> None:
        """Stop `matches` from selecting packets for a policy."""
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
            self._masks[table] = None  # packets still look there, and find nothing

    def _table_of(self, mask: bytes) -> int:
        """The table with this mask; a free one gets it."""
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
