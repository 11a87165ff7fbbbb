"""Loss, order and one-way delay between two hosts, from the digests of both.

Each host records the packets that a keyed hash chooses (`probes.segment`). A packet of the sender
and one of the receiver with the same digest are one packet. The comparison holds a packet as lost
if the receiver recorded everything for the whole horizon after the packet was sent, without the
packet. If the receiver lacks a part of that time, the packet is unknown, never lost.

Packets with the same bytes have the same digest: retransmissions with the same acknowledgement,
duplicate acknowledgements. They are counted as copies. Each arrival takes the oldest copy that was
sent within the horizon before it, which makes the number of arrivals that find a copy the largest
possible one; so the numbers of lost and of duplicated copies are the least that both tables admit.
Order and delay come from packets without copies.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from bpf.arrays import Array

Times = NDArray[np.int64]
MARGIN_NS = 20_000_000
"""A window's ends are uncertain by so much: a packet at a swap counts in either window."""
KEPT_DELAYS = 1 << 18
"""Delays of a direction from which a distribution is made, the newest ones."""
MOST_WAITING = 1 << 21
"""Packets of a host that wait for the tables of the other one; the oldest of more are unknown."""
_MOST_FLOWS = 1 << 16
_NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True, eq=False)
class DigestWindow:
    """The chosen packets of one direction on one host, in one window.

    Times are ns of a clock that the windows of one host have in common.
    """

    start_ns: int
    end_ns: int
    digests: NDArray[np.uint64]
    """(n,)"""
    times: Times
    """(n,)"""
    flows: NDArray[np.uint32]
    """(n,) hashes of the 5-tuple."""
    missing: int = 0
    """Chosen packets that the window lacks."""


@dataclass(frozen=True, slots=True)
class PassageCounts:
    """Chosen packets that went one way: `sent` is delivered + lost + unknown."""

    sent: int = 0
    """Packets of the sender whose fate is decided."""
    delivered: int = 0
    lost: int = 0
    unknown: int = 0
    """Packets that may have arrived while the receiver recorded only a part."""
    in_flight: int = 0
    """Packets that were sent within the horizon before the end, and have not arrived."""
    early: int = 0
    """Packets that were sent before the receiver recorded: they are not compared."""
    late: int = 0
    """Packets at the end that are not compared yet, beside those in flight."""
    duplicated: int = 0
    """Arrivals of a packet that had arrived before."""
    unsent: int = 0
    """Arrivals that the sender did not send within the horizon, though it recorded everything."""
    untold: int = 0
    """Arrivals that may have been sent while the sender recorded only a part."""
    missing: int = 0
    """Chosen packets that the tables of both hosts lack: they are in no other number."""
    reordered: int = 0
    """Arrivals after a packet of the same flow that was sent later (RFC 4737, section 3.3)."""
    ordered: int = 0
    """Arrivals whose order was compared."""

    @property
    def loss(self) -> float:
        """Lost packets by those that were delivered or lost; NaN without any."""
        decided = self.delivered + self.lost
        return self.lost / decided if decided else float("nan")


class Coverage:
    """The times in which a host recorded every chosen packet: spans that do not overlap."""

    def __init__(self) -> None:
        self._spans: deque[tuple[int, int]] = deque()
        self.start_ns = 0
        self.end_ns = 0
        """End of the newest window, whole or not; 0 before the first one."""

    def add(self, window: DigestWindow) -> None:
        if not self.end_ns:
            self.start_ns = window.start_ns
        self.end_ns = max(self.end_ns, window.end_ns)
        if window.missing:
            return
        if self._spans and abs(window.start_ns - self._spans[-1][1]) < MARGIN_NS:
            self._spans[-1] = self._spans[-1][0], window.end_ns
        else:
            self._spans.append((window.start_ns, window.end_ns))

    def forget(self, before_ns: int) -> None:
        while len(self._spans) > 1 and self._spans[0][1] < before_ns:
            self._spans.popleft()

    def holds(self, first: Times, last: Times) -> NDArray[np.bool_]:
        """Return whether each span from `first` (n,) to `last` (n,) was recorded completely."""
        held = np.zeros(len(first), bool)
        for start, end in self._spans:
            held |= (first >= start + MARGIN_NS) & (last <= end - MARGIN_NS)
        return held


@dataclass(slots=True)
class _Packets:
    """Packets in the order of their times."""

    digests: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, "u8"))
    times: Times = field(default_factory=lambda: np.empty(0, "i8"))
    flows: NDArray[np.uint32] = field(default_factory=lambda: np.empty(0, "u4"))
    arrivals: Times = field(default_factory=lambda: np.empty(0, "i8"))
    """Of sent packets: the time at the receiver, or _NEVER."""
    single: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, bool))
    """Of sent packets: it was delivered, and there is no copy."""

    def __len__(self) -> int:
        return len(self.digests)

    def add(self, window: DigestWindow) -> None:
        count = len(window.digests)
        for name, more in (
            ("digests", window.digests),
            ("times", window.times),
            ("flows", window.flows),
            ("arrivals", np.full(count, _NEVER)),
            ("single", np.zeros(count, bool)),
        ):
            setattr(self, name, np.concatenate([getattr(self, name), more]))
        if (np.diff(self.times) < 0).any():
            self.keep(np.argsort(self.times, kind="stable"))

    def keep(self, chosen: Array) -> _Packets:
        """Keep the chosen packets, by index or mask."""
        for name in ("digests", "times", "flows", "arrivals", "single"):
            setattr(self, name, getattr(self, name)[chosen])
        return self

    def take(self, count: int) -> _Packets:
        """Take out the first packets."""
        names = ("digests", "times", "flows", "arrivals", "single")
        taken = _Packets(*(getattr(self, name)[:count] for name in names))
        self.keep(np.arange(count, len(self)))
        return taken


class OneWay:
    """The packets from one host to the other."""

    def __init__(self, horizon_ns: int) -> None:
        self._horizon_ns = horizon_ns
        self.counts = PassageCounts()
        self._sent, self._received = _Packets(), _Packets()
        self._from, self._to = Coverage(), Coverage()
        self._delays: deque[Times] = deque()
        self._newest: dict[int, int] = {}
        """By flow, when the newest packet that arrived was sent."""

    def add_sent(self, window: DigestWindow) -> None:
        self._from.add(window)
        self._sent.add(window)
        surplus = max(0, len(self._sent) - MOST_WAITING)
        unknown = int((self._sent.take(surplus).arrivals == _NEVER).sum())
        delivered = surplus - unknown
        self._count(missing=window.missing, sent=surplus, delivered=delivered, unknown=unknown)

    def add_received(self, window: DigestWindow) -> None:
        self._to.add(window)
        self._received.add(window)
        surplus = max(0, len(self._received) - MOST_WAITING)
        self._received.take(surplus)
        self._count(missing=window.missing, untold=surplus)

    def delays(self) -> Times:
        """Return receiver's minus sender's times, ns, of the newest packets without copies."""
        return np.concatenate([np.empty(0, "i8"), *self._delays])

    def advance(self, offset_ns: int, error_ns: int) -> None:
        """Decide the fate of packets, as far as the tables of both hosts allow.

        `offset_ns`: the receiver's clock minus the sender's, at most `error_ns` from the true one.
        """
        if not self._from.end_ns or not self._to.end_ns:
            self._count(late=len(self._sent) - self.counts.late)
            return
        # By the sender's clock, as all times from here on.
        slack = error_ns + MARGIN_NS
        known = min(self._from.end_ns, self._to.end_ns - offset_ns) - slack
        self._match(known, offset_ns, error_ns)
        decided = int(np.searchsorted(self._sent.times, known - self._horizon_ns - slack))
        self._decide(self._sent.take(decided), offset_ns, slack)
        waiting = self._sent.arrivals == _NEVER
        in_flight = int(waiting.sum())
        self._count(
            in_flight=in_flight - self.counts.in_flight,
            late=len(waiting) - in_flight - self.counts.late,
        )
        oldest = known - 3 * (self._horizon_ns + slack)
        self._from.forget(oldest)
        self._to.forget(oldest + offset_ns)

    def _match(self, known: int, offset_ns: int, error_ns: int) -> None:
        """Find the packets of the arrivals until `known`, and count arrivals without one."""
        come = int(np.searchsorted(self._received.times, known + offset_ns, side="right"))
        received, sent = self._received.take(come), self._sent
        times = received.times - offset_ns
        order = np.argsort(sent.digests, kind="stable")
        ordered = sent.digests[order]
        first = np.searchsorted(ordered, received.digests, side="left")
        copies = np.searchsorted(ordered, received.digests, side="right") - first
        _, inverse, arrivals = np.unique(received.digests, return_inverse=True, return_counts=True)
        alone = (copies == 1) & (arrivals[inverse] == 1)
        copied = (copies > 0) & ~alone
        sent.single[np.isin(sent.digests, received.digests[copied])] = False

        found = np.full(come, -1)
        at = order[first[alone]]
        late = times[alone] - sent.times[at]
        fits = (late >= -error_ns) & (late <= self._horizon_ns + error_ns)
        fits &= sent.arrivals[at] == _NEVER
        found[np.flatnonzero(alone)[fits]] = at[fits]
        sent.single[at[fits]] = True
        self._compare_order(received.flows[alone][fits], sent.times[at[fits]])

        # The oldest copy on its way. Copies before `skipped` have arrived, or are too old.
        skipped: dict[int, int] = {}
        free = sent.arrivals == _NEVER
        for number in np.flatnonzero(copied).tolist():
            begin, time = int(first[number]), int(times[number])
            place, end = skipped.get(begin, begin), begin + int(copies[number])
            oldest = time - self._horizon_ns - error_ns
            while place < end and not (free[order[place]] and sent.times[order[place]] >= oldest):
                place += 1
            if place < end and sent.times[order[place]] <= time + error_ns:
                found[number] = order[place]
                place += 1
            skipped[begin] = place

        hit = found >= 0
        sent.arrivals[found[hit]] = received.times[hit]
        self._blame(times[~hit], copies[~hit] > 0, error_ns)

    def _blame(self, times: Times, known: NDArray[np.bool_], error_ns: int) -> None:
        """Count arrivals without a packet; `known`: a packet with that digest was sent."""
        slack = error_ns + MARGIN_NS
        earliest = times - self._horizon_ns - slack
        # Arrivals that may have been sent before the sender's first window are no finding.
        measured = earliest >= self._from.start_ns + MARGIN_NS
        held = self._from.holds(earliest, times + slack)
        self._count(
            duplicated=int(known.sum()),
            unsent=int((~known & held).sum()),
            untold=int((~known & ~held & measured).sum()),
        )

    def _decide(self, sent: _Packets, offset_ns: int, slack: int) -> None:
        earliest = sent.times + offset_ns - slack
        # Packets that may have arrived before the receiver's first window are no finding.
        measured = earliest >= self._to.start_ns + MARGIN_NS
        self._count(early=int((~measured).sum()))
        sent, earliest = sent.keep(measured), earliest[measured]
        delivered = sent.arrivals != _NEVER
        whole = self._to.holds(earliest, earliest + self._horizon_ns + 2 * slack)
        lost = int((~delivered & whole).sum())
        self._count(
            sent=len(sent),
            delivered=int(delivered.sum()),
            lost=lost,
            unknown=int((~delivered).sum()) - lost,
        )
        sent.keep(sent.single)
        self._delays.append(sent.arrivals - sent.times)
        while sum(map(len, self._delays)) - len(self._delays[0]) >= KEPT_DELAYS:
            self._delays.popleft()

    def _compare_order(self, flows: NDArray[np.uint32], sent: Times) -> None:
        """Count reordered packets: `flows` and times of sending (n,), in order of arrival."""
        if not len(sent):
            return
        by_flow = np.argsort(flows, kind="stable")
        flows, times = flows[by_flow], sent[by_flow]
        starts = np.flatnonzero(np.r_[True, flows[1:] != flows[:-1]])
        reordered = 0
        for part, flow in zip(np.split(times, starts[1:]), flows[starts].tolist(), strict=True):
            before = np.maximum.accumulate(np.r_[self._newest.get(flow, _NEVER), part])
            reordered += int((part < before[:-1]).sum())
            self._newest[flow] = int(before[-1])
        if len(self._newest) > _MOST_FLOWS:
            oldest = int(sent.max()) - self._horizon_ns
            self._newest = {flow: at for flow, at in self._newest.items() if at > oldest}
        self._count(reordered=reordered, ordered=len(sent))

    def _count(self, **more: int) -> None:
        now = {name: getattr(self.counts, name) + count for name, count in more.items()}
        self.counts = replace(self.counts, **now)
