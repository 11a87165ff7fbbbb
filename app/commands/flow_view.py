"""Views of screen 3: one row a direction, or flows in groups."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from bpf.errors import UsageError, did_you_mean

DIRECTIONS = "directions"
OWNER_KINDS = {
    "processes": "process", "units": "unit", "containers": "container", "pods": "pod",
    "users": "user",
}  # fmt: skip
"""Kinds of groups by owner, and the column that groups them."""
NODES = "nodes"
"""Groups by the host of a fleet that saw the flows."""
INTERFACES = "interfaces"
"""Groups by the interface that counts the packets."""
LABEL_KINDS = {**OWNER_KINDS, NODES: "node", INTERFACES: "interface"}
"""Kinds of groups by a label of the flow, and the column that has it."""
GROUPED = ("conversations", "hosts", "services", "networks", *LABEL_KINDS)
"""KINDS of groups, then those by label."""
VIEWS = (DIRECTIONS, *GROUPED)
_ENDS = ("remote", "local")
_NOUNS = {DIRECTIONS: "flow", **{kind: kind[:-1] for kind in GROUPED}, **LABEL_KINDS}
GROUP_NOUNS = {noun: kind for kind, noun in _NOUNS.items() if kind != DIRECTIONS}
"""Views of groups, by the word for a row."""
QUIET_NS = 3_000_000_000
"""Without a packet for longer a flow counts as idle, and is muted."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """A view, and how it groups flows."""

    kind: str = GROUPED[0]
    near: bool = False
    """Whether hosts and networks are local ends."""
    prefixes: tuple[int, int] = (24, 64)
    """Lengths of networks' prefixes, of IPv4 and IPv6."""

    @property
    def noun(self) -> str:
        """A row, in a word."""
        return _NOUNS[self.kind]

    @property
    def is_grouped(self) -> bool:
        return self.kind != DIRECTIONS

    @property
    def is_by_label(self) -> bool:
        """Whether a group belongs to an owner, a host of a fleet, or an interface."""
        return self.kind in LABEL_KINDS

    @property
    def is_finest(self) -> bool:
        """Whether a row is one direction, or both, of the same two ends."""
        return self.kind in VIEWS[:2]

    def turned(self, by: int, labels: Collection[str] = ()) -> Grouping:
        """The view `by` places further in the cycle; of those by label, it has only `labels`."""
        views = [kind for kind in VIEWS if kind not in LABEL_KINDS or kind in (*labels, self.kind)]
        kind = views[(views.index(self.kind) + by) % len(views)]
        return Grouping(kind, prefixes=self.prefixes)

    def __str__(self) -> str:
        """The words that `parse` takes."""
        words = [self.kind]
        if self.kind in ("hosts", "networks") and self.near:
            words.append(_ENDS[1])
        if self.kind == "networks":
            words += map(str, self.prefixes)
        return " ".join(words)

    @classmethod
    def parse(cls, text: str) -> Grouping:
        """Parse a view, and the end or the lengths of prefixes after it: `networks local 16`.

        Of one length, up to 32 is for IPv4; of two, the second is for IPv6. Raises UsageError.
        """
        kind, *words = text.split()
        if kind not in VIEWS:
            raise UsageError(f"there is no view {kind!r}", hint=did_you_mean(kind, VIEWS))
        ends = _ENDS if kind in ("hosts", "networks") else ()
        near = bool(words) and words[0] == _ENDS[1] and bool(ends)
        if words and words[0] in ends:
            del words[0]
        if words and kind != "networks":
            hint = f"only {' or '.join(ends)}" if ends else "nothing"
            raise UsageError(f"{kind} take {hint}, not {words[0]!r}")
        return cls(kind, near, _prefixes(words))


def _prefixes(words: list[str]) -> tuple[int, int]:
    ipv4, ipv6 = Grouping().prefixes
    lengths = [int(w) for word in words if (w := word.removeprefix("/")).isdecimal()]
    if len(lengths) != len(words) or len(lengths) > 2:
        raise UsageError(f"{' '.join(words)!r} is no length of a prefix", hint="24, or 24 64")
    if len(lengths) == 2:
        ipv4, ipv6 = lengths
    elif lengths and lengths[0] <= 32:
        ipv4 = lengths[0]
    elif lengths:
        ipv6 = lengths[0]
    if not (ipv4 <= 32 and ipv6 <= 128):
        raise UsageError("prefixes have 32 bits at most, of IPv6 128")
    return ipv4, ipv6
