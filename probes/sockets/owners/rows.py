"""Owners of the pairs of ends in a window: questions, answers, and the rows of its tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from bpf.arrays import Array, Rows
from bpf.sockets.diag import INFO, TCP, TUPLE, SocketState
from probes.flow.grouping import REQUESTS
from probes.flow.records import FLOW, FlowDirection, hash_keys
from probes.sockets.floors import Floors
from probes.sockets.limits import LIMITED, SYN, SocketLimits, vain
from probes.sockets.owners.known import EndedSockets, Known, Process
from probes.sockets.records import OWNER, OWNERSHIP, SOCKET, By, Reason, ends_of, swapped


@dataclass(frozen=True, slots=True, eq=False)
class Questions:
    """Different ends of a window's flows, (m,): those with most bytes first."""

    ends: Array
    """Words (m, 5) u8 of `ends_of`."""
    flows: Rows[FLOW]
    packets: Array
    bytes: Array
    packets_out: Array
    """Of those, packets that left."""
    flags_in: Array
    """TCP flags (m,) u1 of the far end; `flags` has both. Packets of two containers to each other
    all leave, so they are two questions: each has the flags of the other, too."""
    flags: Array
    first_ns: Array
    """The first packet (m,), of CLOCK_MONOTONIC."""
    asks: Array
    """Whether ICMP requests left (m,), so that a process of this host asks."""

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def protocol(self) -> NDArray[np.uint8]:
        return protocol_of(self.ends)

    @property
    def only_syn(self) -> NDArray[np.bool_]:
        """Whether only SYN came in, as of a scan or a flood, (m,)."""
        found: NDArray[np.bool_] = (self.protocol == TCP) & (self.flags_in == SYN)
        return found


def questions_of(rows: Rows[FLOW]) -> Questions:
    """Return the questions of flows (n,) of dtype FLOW."""
    ends = ends_of(rows)
    hashes = hash_keys(ends)
    order = np.argsort(hashes)
    ordered = hashes[order]
    begins = np.ones(len(rows), bool)
    begins[1:] = ordered[1:] != ordered[:-1]
    starts = np.flatnonzero(begins)
    rows = rows[order]
    leaves = rows["direction"] == FlowDirection.EGRESS
    flags = rows["tcp_flags"]

    def total(values: Array) -> Array:
        return np.add.reduceat(values, starts) if len(starts) else values

    def union(values: Array) -> Array:
        return np.bitwise_or.reduceat(values, starts) if len(starts) else values

    size = total(rows["bytes"])
    first = rows["first_ns"]
    back = union(np.where(leaves, 0, flags).astype("u1"))
    own = union(np.where(leaves, flags, 0).astype("u1"))
    ends, different = ends[order[starts]], ordered[starts]
    other = hash_keys(swapped(ends))
    at = np.searchsorted(different, other) % max(1, len(different))
    answered = different[at] == other
    back[answered] |= own[at[answered]]
    largest = np.argsort(-size.astype("i8"), kind="stable")
    return Questions(
        ends[largest],
        np.diff(starts, append=len(rows))[largest],
        total(rows["packets"])[largest],
        size[largest],
        total(rows["packets"] * leaves)[largest],
        back[largest],
        (union(flags) | back)[largest],
        (np.minimum.reduceat(first, starts) if len(starts) else first)[largest],
        union(leaves & _is_request(rows))[largest],
    )


def _is_request(rows: Rows[FLOW]) -> NDArray[np.bool_]:
    protocol, kind = rows["protocol"], rows["destination_port"] >> 8
    found = np.zeros(len(rows), bool)
    for number, types in REQUESTS.items():
        found |= (protocol == number) & np.isin(kind, tuple(types.values()))
    return found


def tuples_of(ends: Array) -> Rows[TUPLE]:
    """Return TUPLE (n,) of ends (n, 5)."""
    tuples = np.zeros(len(ends), TUPLE)
    raw = np.ascontiguousarray(ends[:, :4]).view("u1").reshape(len(ends), 32)
    tuples["near"], tuples["far"] = raw[:, :16], raw[:, 16:]
    last = ends[:, 4]
    tuples["near_port"], tuples["far_port"] = last & np.uint64(0xFFFF), far_port_of(ends)
    tuples["protocol"], tuples["version"] = protocol_of(ends), version_of(ends)
    return tuples


def near_port_of(ends: Array) -> NDArray[np.uint16]:
    return _field(ends, 0, 0xFFFF).astype("u2")


def far_port_of(ends: Array) -> NDArray[np.uint16]:
    return _field(ends, 16, 0xFFFF).astype("u2")


def protocol_of(ends: Array) -> NDArray[np.uint8]:
    return _field(ends, 32, 0xFF).astype("u1")


def version_of(ends: Array) -> NDArray[np.uint8]:
    return _field(ends, 40, 0xFF).astype("u1")


def _field(ends: Array, shift: int, mask: int) -> NDArray[np.uint64]:
    found: NDArray[np.uint64] = ends[:, 4] >> np.uint64(shift) & np.uint64(mask)
    return found


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


MOST_NUMBERS = 1 << 16
"""Owners that keep their number while they own nothing."""
_SAME = (
    "state", "cookie", "inode", "cgroup", "uid", "rtt_us", "min_rtt_us", "rttvar_us", "cwnd",
    "mss", "unacked", "notsent", "rqueue", "wqueue", "delivery_rate", "app_limited",
)  # fmt: skip
"""Fields that SOCKET copies from INFO."""


class Description(NamedTuple):
    """Names of an owner, as in OWNER."""

    uid: int
    user: str = ""
    unit: str = ""
    container: str = ""
    pod: str = ""
    cgroup: int = 0
    """Id of its cgroup; 0: unknown."""


Describe = Callable[[Process], Description]


class OwnerRows:
    """Numbers owners and follows connections, from window to window."""

    def __init__(self, describe: Describe) -> None:
        """`describe` returns the names of an owner."""
        self._describe = describe
        self._numbers: dict[tuple[int, int], int] = {}
        self._next = 1
        self._limits = SocketLimits()
        self.floors = Floors()
        # Connections that begin from now on count from their begin.
        self._limits.window(np.zeros(0, INFO), time.monotonic(), np.zeros(0, "u4"))

    def of(self, answers: OwnerAnswers, at_s: float) -> tuple[Array, Array, Array]:
        """Return rows of SOCKET, OWNER and OWNERSHIP; the kernel was asked at `at_s`."""
        listed = np.flatnonzero(answers.listed)
        numbers, owners, cgroups = self._owners(answers)
        sockets = np.zeros(len(listed), SOCKET)
        tuples, info = tuples_of(answers.ends[listed]), answers.info[listed]
        for name in tuples.dtype.names or ():
            sockets[name] = tuples[name]
        for name in ("by", "nat", "holders", "reason"):
            sockets[name] = getattr(answers, name)[listed]
        for name in _SAME:
            sockets[name] = info[name]
        sockets["asked"] = info["last_sent_ms"] < info["last_received_ms"]
        sockets["asked"] |= (info["bytes_sent"] > 0) & (info["bytes_received"] == 0)
        sockets["owner"], sockets["netns"] = numbers[listed], answers.inside[listed]
        self._follow(sockets, info, answers.questions, listed, at_s)
        _begin(sockets, answers.questions, listed)
        # The socket's own cgroup is its maker's: of an accepted one the listener's.
        known = cgroups[listed] > 0
        sockets["cgroup"][known] = cgroups[listed][known]
        return sockets, owners, _ownership(answers)

    def _follow(
        self, sockets: Rows[SOCKET], info: Rows[INFO], asked: Questions, listed: Array, at_s: float
    ) -> None:
        """Fill in the verdicts, and the differences since the last window."""
        far, netns = sockets["far"], sockets["netns"]
        self.floors.note(far, info["min_rtt_us"], at_s, netns)
        opened = asked.flags[listed] & SYN > 0
        opened_s = np.where(opened, asked.first_ns[listed] / 1e9, 0)
        limited = self._limits.window(info, at_s, self.floors.of(far, netns), opened_s)
        for name in LIMITED.names or ():
            sockets[name] = limited[name]

    def _owners(self, answers: OwnerAnswers) -> tuple[Array, Array, Array]:
        """Return the numbers (m,) of the owners, rows of OWNER, and the cgroups (m,); 0: none."""
        different = {who: self._number(who) for who in answers.owner if who is not None}
        owners = {number: who for who, number in different.items()}
        numbers = np.array([different[who] if who else 0 for who in answers.owner], "u4")
        rows, cgroups = np.zeros(len(owners), OWNER), np.zeros(len(owners) + 1, "u8")
        for row, number in enumerate(sorted(owners)):
            names = self._describe(owners[number])
            _fill(rows[row : row + 1], number, owners[number], names)
            cgroups[row] = names.cgroup
        place = np.where(numbers, np.searchsorted(rows["number"], numbers), len(rows))
        owned = numbers > 0
        for name in ("flows", "packets", "bytes"):
            np.add.at(rows[name], place[owned], getattr(answers.questions, name)[owned])
        rows["netns"][place[owned]] = answers.inside[owned]
        return numbers, rows, cgroups[place]

    def _number(self, who: Process) -> int:
        key = who.tgid, who.start_ns
        number = self._numbers.pop(key, 0)
        if not number:
            number, self._next = self._next, self._next + 1
            if len(self._numbers) >= MOST_NUMBERS:
                del self._numbers[next(iter(self._numbers))]
        # The last used ones stay.
        self._numbers[key] = number
        return number


def _begin(sockets: Rows[SOCKET], questions: Questions, listed: Array) -> None:
    """Fill in the verdicts of connections that this host wanted to open in the window, in vain."""
    back = questions.flags_in[listed]
    over = np.isin(sockets["state"], (0, SocketState.CLOSE))
    found = vain(questions.flags[listed], back, back == 0, over)
    decided = (found > 0) & (sockets["protocol"] == TCP)
    sockets["limit"][decided], sockets["limit_s"][decided] = found[decided], 0


def _fill(row: Rows[OWNER], number: int, who: Process, names: Description) -> None:
    row["number"], row["tgid"], row["comm"], row["uid"] = number, who.tgid, who.comm, names.uid
    row["start_ns"] = who.start_ns if who.tgid else 0
    for name in ("user", "unit", "container", "pod"):
        row[name] = cut(getattr(names, name), OWNER[name].itemsize)


def cut(text: str, size: int) -> bytes:
    """Return a text as UTF-8 of at most `size` bytes, cut at a character."""
    return text.encode()[:size].decode(errors="ignore").encode()


def _ownership(answers: OwnerAnswers) -> Rows[OWNERSHIP]:
    reasons, place = np.unique(answers.reason, return_inverse=True)
    rows = np.zeros(len(reasons), OWNERSHIP)
    rows["reason"] = reasons
    for name in ("flows", "packets", "bytes"):
        np.add.at(rows[name], place, getattr(answers.questions, name))
    return rows
