"""OwnerAnswers to a window's questions, and the sources that a search asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from bpf.arrays import Array, Rows
from bpf.sockets.diag import INFO
from probes.sockets.joined import swapped
from probes.sockets.owners.known import EndedSockets, Known, Process
from probes.sockets.owners.questions import Questions, version_of
from probes.sockets.records import By, Reason


class SocketSources(Protocol):
    """Sources that tell of the sockets in the network namespaces of the host.

    A namespace has the inode as its number.
    """

    @property
    def home(self) -> int:
        """Number of the own namespace."""

    @property
    def unreadable(self) -> bool:
        """Whether the host has further namespaces, and this process may not enter them."""

    @property
    def losing(self) -> bool:
        """Whether closed sockets were lost lately, as their queue was full."""

    @property
    def since_s(self) -> float:
        """Time from which all sources see sockets close, CLOCK_MONOTONIC."""

    def locate(self, addresses: Array, versions: Array) -> Array:
        """Return the namespaces (n,) u4 of addresses (n, 2) u8; 0: not of this host."""

    def ask(self, number: int, tuples: Array) -> Array:
        """Return INFO (n,) of the sockets of TUPLE (n,) in a namespace. Raises OSError."""

    def ended(self, number: int) -> EndedSockets:
        """Return the closed sockets of a namespace."""

    def inner(self, tuples: Array) -> tuple[Array, Array]:
        """Return which of TUPLE (n,) the own namespace translates, and TUPLE behind that.

        Raises OSError.
        """

    def search(self, known: Known, inodes: Sequence[int], tgids: Sequence[int]) -> None:
        """Take in which of some processes and of their descendants hold sockets."""

    def listen(self, known: Known) -> None:
        """Take in everything that the sources told since the last call."""


@dataclass(slots=True, eq=False)
class OwnerAnswers:
    """OwnerAnswers to the questions of a window, (m,) each."""

    questions: Questions
    ends: Array
    """As the packets show them, with the end of this host near."""
    space: Array
    """Namespace of the near end, u4; 0: no end is of this host."""
    inside: Array
    """Namespace of the socket, u4: another one behind address translation."""
    reason: Array
    by: Array
    holders: Array
    nat: Array
    info: Rows[INFO]
    """dtype INFO; zero without a socket."""
    listed: Array
    """Whether the answer has a row in the table."""
    owner: list[Process | None] = field(default_factory=list)

    @classmethod
    def of(cls, questions: Questions, sources: SocketSources) -> OwnerAnswers:
        """Say which end of each question is on this host, and where."""
        count = len(questions)
        near = locate(sources, questions.ends, far=False)
        far = locate(sources, questions.ends, far=True)
        turned = (near == 0) & (far > 0)
        space = np.where(turned, far, near)
        return cls(
            questions,
            np.where(turned[:, None], swapped(questions.ends), questions.ends),
            space,
            space.copy(),
            np.full(count, Reason.NOT_ASKED, "u1"),
            np.zeros(count, "u1"),
            np.zeros(count, "u2"),
            np.zeros(count, bool),
            np.zeros(count, INFO),
            np.zeros(count, bool),
            [None] * count,
        )

    def own(
        self,
        at: int,
        who: Process | None,
        by: By = By.NONE,
        holders: int = 0,
        reason: Reason = Reason.OWNED,
    ) -> None:
        """Answer a question."""
        self.owner[at] = who
        self.by[at], self.holders[at], self.reason[at] = by, min(holders, 0xFFFF), reason

    def leave(self, at: int, reason: Reason) -> None:
        """Answer that nobody is known."""
        self.own(at, None, reason=reason)

    def own_held(
        self,
        at: int,
        holders: tuple[Process, ...],
        opener: Process | None,
        by: By = By.HOLDS,
        *,
        sure: bool = True,
    ) -> None:
        """Choose among the holders: the one that opened the socket, or else the eldest.

        If it is not `sure` that no other process has the socket, the reason is SEVERAL. The opener
        that holds the socket needs no such certainty.
        """
        eldest = min(holders, key=lambda each: (each.start_ns, each.tgid))
        opens = opener in holders
        owned = sure or (opens and by == By.HOLDS)
        owned &= opens or len(holders) == 1
        reason = Reason.OWNED if owned else Reason.SEVERAL
        self.own(at, opener if opens else eldest, by, len(holders), reason)


def locate(sources: SocketSources, ends: Array, *, far: bool) -> Array:
    """Return the namespaces (n,) of one end of `ends` (n, 5); 0: not of this host."""
    addresses = ends[:, 2:4] if far else ends[:, :2]
    return sources.locate(addresses, version_of(ends))
