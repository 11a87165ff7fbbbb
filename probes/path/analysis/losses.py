"""Loss that begins at a hop: all later hops and the destination lose, too (S3.20).

Loss counts if it is certain, by cumulative sums of log-likelihood ratios (E. S. Page, 1954) of a
loss of 2.5 % against one of 0.3 %. All hops behind a link lose what it loses, so their sums add up:
together they must reach _TOGETHER, and without the one that loses most _HALF; the destination alone
must reach _SURE. A loss of 3 % takes some 350 probes of all these hops together. The link is the
one that parts the hops most likely.

A lost datagram of TCP is sent again, a lost acknowledgement is not: so a destination that is timed
by TCP tells on which way packets are lost.

A router that limits its answers loses nothing. So its silence counts only at a rate of probes at
which it has answered before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from dataclasses import dataclass, field
from math import log

import numpy as np

from bpf.arrays import Array, Rows
from probes.path.analysis.changes import Changes
from probes.path.analysis.flows import Detector, Flows, HopBatch, series_of
from probes.path.analysis.statistics import loss_interval
from probes.path.records import (
    DESTINATION_HOP,
    HOP_COUNT,
    PATH,
    MeasuredBy,
    PathRowKind,
    ProbeOutcome,
    QueueSide,
)

_USUAL, _LOSS = 0.003, 0.025
_LOST, _ANSWERED = log(_LOSS / _USUAL), log((1 - _LOSS) / (1 - _USUAL))
_SURE = 18.0
_HALF = _SURE / 2
_TOGETHER = 15.0
_SOME = 3.0
"""Score from which on a hop seems to lose."""
_IN_POLL = 3
"""No more lost probes of a poll count together: an outage has edges."""
_DOUBT = 3.0
"""Links that are less likely than the best one by this logarithm are not the place."""
_PATIENT = 1.5 * _SURE
"""Score up to which a loss waits for nearer hops whose own loss is uncertain."""
_RUN = 4
"""No more of successive lost probes count: a short outage is no rate of loss."""
_MARGIN_NS = 250_000_000
"""Time between a timeout and the poll that reports it."""
_RECENT_NS = 5_000_000_000
_POLLS = 240
"""Polls whose outcomes are kept: a minute. Since the begin of a loss, they tell its place."""
_STRETCH_NS = 5_000_000_000
_STRETCH = 100
"""A router is able to answer at a rate if it did so for so long, and for so many probes: routers
that limit answers let some pass at once."""
_CLEAN = 0.01
_FASTER = 1.25
"""It is able to answer so many times as often."""

_TCP = (MeasuredBy.TCP_HANDSHAKE, MeasuredBy.TCP_ACK, MeasuredBy.TCP_TIMESTAMP)

_WAITING = np.dtype([("sent_ns", "i8"), ("series", "i4"), ("lost", "?")])
HOP_LOSS = np.dtype([
    ("score", "f8"), ("run", "i8"), ("lost", "i8"), ("ended", "i8"), ("since_ns", "i8"),
    ("last_ns", "i8"), ("recent_lost", "f8"), ("recent", "f8"), ("stretch", "i8"),
    ("stretch_lost", "i8"), ("stretch_ns", "i8"), ("rate", "f8"),
])  # fmt: skip
"""A hop for all flows of a destination. `score` is the sum that must become certain, `lost` of
`ended` probes since it was zero at `since_ns`; `run` the lost ones at the end; `last_ns` when the
last answered one was sent; `recent` outcomes are those since the begin of the clearest loss. In the
`stretch` since `stretch_ns` few are lost; `rate` is the highest rate, probes a second, of such a
stretch."""


@dataclass(slots=True, eq=False)
class _Loss:
    """A reported loss."""

    hop: int
    before: int
    """The last hop before it that loses less; 0: this host."""
    since_ns: int
    lost: int
    ended: int
    worst: float
    """A rate of loss that would be the reported one."""
    side: QueueSide
    answered: int = 0
    """Probes since the last lost one."""
    over: float = 0.0
    """The sum that must become certain for the loss to be over."""


@dataclass(slots=True, eq=False)
class _State:
    """The loss on the way to one destination."""

    hops: Rows[HOP_LOSS] = field(default_factory=lambda: np.zeros(HOP_COUNT, HOP_LOSS))
    waiting: Array = field(default_factory=lambda: np.empty(0, _WAITING))
    """Outcomes, held until all earlier probes have an outcome."""
    past: deque[tuple[int, Array]] = field(default_factory=lambda: deque(maxlen=_POLLS))
    """Lost and all probes by hop (2, HOP_COUNT) of each poll, and until when they were sent."""
    loss: _Loss | None = None
    by_tcp: bool = False
    """Whether packets of TCP time the destination."""


class Losses(Detector):
    """Follows the loss on the way to each destination. Rows are of LOSS and LOSS_OVER."""

    def __init__(self, flows: Flows, changes: Changes, timeout_ns: int) -> None:
        super().__init__(flows)
        self._changes = changes
        self._timeout_ns = timeout_ns
        self._answered_ns = self.by_hop("i8")
        """When the last answered probe was sent."""
        self._states: dict[int, _State] = self.by_destination({})

    def drop(self, places: Array) -> None:
        super().drop(places)
        for state in self._states.values():
            state.waiting = state.waiting[~np.isin(state.waiting["series"], series_of(places))]

    def add(
        self, batch: HopBatch, rerouted: Rows[PATH], looping: Container[int] = ()
    ) -> Rows[PATH]:
        """Rows (n,) of dtype PATH. `rerouted` (n,) of dtype PATH are new changes of routers.
        `looping` are destinations (address ids) that a routing loop cuts off: their packets are
        not lost on a link."""
        answered = batch.rows["outcome"] <= ProbeOutcome.UNREACHABLE
        np.maximum.at(self._answered_ns, batch.series[answered], batch.rows["sent_ns"][answered])
        known = batch.rows["outcome"] <= ProbeOutcome.UNANSWERED
        new = np.empty(int(known.sum()), _WAITING)
        new["sent_ns"], new["series"] = batch.rows["sent_ns"][known], batch.series[known]
        new["lost"] = batch.rows["outcome"][known] == ProbeOutcome.UNANSWERED
        destinations = self._flows.destinations[new["series"] // HOP_COUNT]
        for destination in np.unique(destinations).tolist():
            state = self._states.setdefault(destination, _State())
            mine = new[destinations == destination]
            methods = batch.rows["measured_by"][known][destinations == destination]
            if (timed := mine["series"] % HOP_COUNT == DESTINATION_HOP).any():
                state.by_tcp = bool(np.isin(methods[timed], _TCP).all())
            state.waiting = np.concatenate((state.waiting, mine))
        places = self._flows.places(rerouted)
        for place, hop in zip(places.tolist(), rerouted["hop"].tolist(), strict=True):
            known_state = self._states.get(int(self._flows.destinations[place]))
            if known_state:
                # Another router, with other limits.
                known_state.hops[hop] = np.zeros((), HOP_LOSS)
        found = []
        for destination, state in self._states.items():
            if destination in looping:
                state.hops[:] = np.zeros((), HOP_LOSS)
                state.waiting = state.waiting[:0]
            if len(state.waiting):
                self._release(state, batch.now_ns)
                found += self._judge(destination, state, batch.now_ns)
        return np.concatenate([np.empty(0, PATH), *found], dtype=PATH)

    def _release(self, state: _State, now_ns: int) -> None:
        """Count the outcomes of probes that were sent before every probe in flight."""
        waiting = state.waiting
        due = waiting["sent_ns"] <= now_ns - self._timeout_ns - _MARGIN_NS
        # Without a later answer the hop is silent or gone.
        there = ~waiting["lost"] | (waiting["sent_ns"] < self._answered_ns[waiting["series"]])
        counted = waiting[due & there]
        state.waiting = waiting[~due]
        counted = counted[np.argsort(counted["sent_ns"], kind="stable")]
        hops = counted["series"] % HOP_COUNT
        counts = [np.bincount(each, minlength=HOP_COUNT) for each in (hops[counted["lost"]], hops)]
        state.past.append((now_ns - self._timeout_ns - _MARGIN_NS, np.array(counts)))
        for hop in np.unique(hops).tolist():
            _count(state.hops[hop : hop + 1], counted[hops == hop])
            if state.loss and state.loss.hop == hop:
                _follow(state.loss, counted[hops == hop])

    def _judge(self, destination: int, state: _State, now_ns: int) -> list[Array]:
        if loss := state.loss:
            if loss.over < _HALF:
                return []
            state.loss = None
            state.hops["score"] = state.hops["lost"] = state.hops["ended"] = 0
            return [self._row(PathRowKind.LOSS_OVER, destination, loss, now_ns)]
        if not (state.hops["score"] >= _SOME).any():
            return []
        since_ns = int(state.hops["since_ns"][state.hops["score"].argmax()])
        polls = np.array([counts for until_ns, counts in state.past if until_ns > since_ns])
        state.hops["recent_lost"], state.hops["recent"] = polls.sum(axis=0)
        state.loss = _found(state.hops, polls, by_tcp=state.by_tcp)
        if state.loss is None:
            return []
        return [self._row(PathRowKind.LOSS, destination, state.loss, now_ns)]

    def _row(self, kind: PathRowKind, destination: int, loss: _Loss, now_ns: int) -> Array:
        places = self._flows.to(destination)
        active = places[self._flows.seen_ns[places] > now_ns - _RECENT_NS]
        place = int((active if len(active) else places)[0])
        row = self._flows.rows(kind, np.array([place * HOP_COUNT + loss.hop]), now_ns)
        responders = self._changes.facts["responder"][place * HOP_COUNT :]
        row["responder"], row["previous"] = responders[loss.hop], responders[loss.before]
        if not loss.before:
            row["previous"] = 0
        row["other_hop"], row["since_ns"] = loss.before, loss.since_ns
        row["flows"], row["side"] = max(1, len(active)), loss.side
        row["lost"], row["answered"] = loss.lost, loss.ended - loss.lost
        lost, ended = np.array([loss.lost]), np.array([loss.ended])
        row["loss_low"], row["loss_high"] = loss_interval(lost, ended)
        return row


def _count(hop: Rows[HOP_LOSS], rows: Rows[_WAITING]) -> None:
    """Add outcomes, in order of sending, to a hop, dtype HOP_LOSS (1,)."""
    lost, sent = rows["lost"], rows["sent_ns"]
    count, number = len(rows), int(lost.sum())
    answered = np.flatnonzero(~lost)
    if len(answered):
        hop["last_ns"] = max(int(hop["last_ns"][0]), int(sent[answered[-1]]))
    score = float(hop["score"][0])
    weights = np.where(_is_counted(lost, int(hop["run"][0])), _LOST, 0.0)
    weights = np.where(lost, weights, _ANSWERED)
    hop["run"] = count - 1 - answered[-1] if len(answered) else hop["run"] + count
    sums = np.cumsum(weights)
    least = np.minimum.accumulate(sums)
    hop["score"] = sums[-1] - min(-score, float(least[-1]))
    begin = 0
    if float(least[-1]) <= -score:  # it was zero in between
        begin = int(np.flatnonzero(sums == least[-1])[-1]) + 1
        hop["lost"] = hop["ended"] = 0
    if begin < count:
        if not hop["ended"][0]:
            hop["since_ns"] = sent[begin]
        hop["lost"] += int(lost[begin:].sum())
        hop["ended"] += count - begin
    _stretch(hop, count, number, sent)


def _stretch(hop: Rows[HOP_LOSS], count: int, lost: int, sent: Array) -> None:
    """Find out the rate at which the hop answers."""
    if hop["score"][0] > _HALF / 2 or not hop["stretch"][0]:
        hop["stretch"] = hop["stretch_lost"] = 0
        hop["stretch_ns"] = sent[0]
        if hop["score"][0] > _HALF / 2:
            return
    hop["stretch"] += count
    hop["stretch_lost"] += lost
    took = int(sent[-1]) - int(hop["stretch_ns"][0])
    number = int(hop["stretch"][0])
    if number >= _STRETCH and took >= _STRETCH_NS:
        if hop["stretch_lost"][0] <= _CLEAN * number:
            hop["rate"] = max(float(hop["rate"][0]), number / took * 1e9)
        hop["stretch"] = 0


def _is_counted(lost: Array, run: int) -> Array:
    """Which losses (n,) bool are among the first of their run; `run` precede them."""
    places = np.arange(len(lost))
    last_answer = np.maximum.accumulate(np.where(lost, -1 - run, places))
    return lost & (places - last_answer <= _RUN)


def _follow(loss: _Loss, rows: Array) -> None:
    """Take in later outcomes of a reported loss."""
    lost = rows["lost"]
    over = loss.over
    none, some = log((1 - _USUAL) / (1 - loss.worst)), log(_USUAL / loss.worst)
    for each in lost.tolist():
        over = max(0.0, over + (some if each else none))
        if over >= _HALF:
            break
    loss.over = over
    loss.answered += len(lost)
    if lost.any():
        after = len(lost) - 1 - int(np.flatnonzero(lost)[-1])
        loss.lost += int(lost.sum())
        loss.ended += loss.answered - after
        loss.answered = after


def _found(hops: Rows[HOP_LOSS], polls: Array, *, by_tcp: bool = False) -> _Loss | None:
    """The loss that is certain now, if there is one, from hops (HOP_COUNT,) of dtype HOP_LOSS.
    `polls` (n, 2, HOP_COUNT) are lost and all probes of each poll since it may have begun.
    `by_tcp`: packets of TCP time the destination."""
    newest, scores = int(hops["last_ns"].max()), hops["score"]
    known = (hops["last_ns"] > newest - _RECENT_NS) & (hops["recent"] > 0)
    took = (hops["last_ns"] - hops["since_ns"]).clip(1) / 1e9
    # Few probes may come closer together by chance.
    able = (hops["ended"] - _RUN) / took <= _FASTER * hops["rate"]
    able[DESTINATION_HOP] = True
    low, high = loss_interval(hops["recent_lost"], hops["recent"])
    if scores[DESTINATION_HOP] >= _HALF:  # what the destination loses, routers may lose
        able |= low <= high[DESTINATION_HOP]
    places = np.flatnonzero(known & (able | (scores < _SOME)))
    # TCP's data is not lost if only answers and acknowledgements are.
    timed = by_tcp and bool(known[DESTINATION_HOP])
    clean = timed and scores[DESTINATION_HOP] < _SOME
    places = places[places != DESTINATION_HOP] if clean else places
    lost, ended = hops["recent_lost"][places], hops["recent"][places]
    likely = _likelihoods(lost, ended)
    if not len(places):
        return None
    near, far = np.flatnonzero(likely >= likely.max() - _DOUBT)[[0, -1]]
    behind = places[far:]
    worst = behind[scores[behind].argmax()]
    total = _evidence(polls[:, :, behind])
    alone = behind.tolist() == [DESTINATION_HOP] and scores[worst] >= _SURE
    rest = _evidence(polls[:, :, behind[behind != worst]])
    if not (alone or (total >= _TOGETHER and rest >= _HALF)):
        return None
    if near < far and total < _PATIENT:
        return None
    # Later hops that lose less show that the others only answer seldom.
    least = loss_interval(lost[far:].sum(keepdims=True), ended[far:].sum(keepdims=True))[0]
    if (high[behind] < least).any() or (clean and high[DESTINATION_HOP] >= least):
        return None
    side = QueueSide.BACK if clean else QueueSide.THERE if timed else QueueSide.EITHER
    # The hop that loses most has chosen the begin: its share would be too high.
    others = behind if alone else behind[behind != worst]
    count, of = (int(hops[name][others].sum()) for name in ("recent_lost", "recent"))
    before = int(places[near - 1]) if near else 0
    since_ns = int(hops["since_ns"][worst])
    return _Loss(int(behind[0]), before, since_ns, count, of, max(_LOSS, count / of / 2), side)


def _evidence(polls: Array) -> float:
    """The sum of log-likelihood ratios of hops from their outcomes by poll (n, 2, hops).

    A poll without most of its probes is an outage, and its neighbours may be its edges."""
    lost, ended = polls.sum(axis=2).T
    lost, ended = lost[2 * lost <= ended], ended[2 * lost <= ended]
    return float(lost.clip(max=_IN_POLL).sum() * _LOST + (ended - lost).sum() * _ANSWERED)


def _likelihoods(lost: Array, ended: Array) -> Array:
    """The logarithms (n,) of the likelihoods that the loss begins at each of n hops, which lost
    `lost` (n,) of `ended` probes: hops before it lose _USUAL, later ones alike."""
    before = lost.cumsum() - lost, ended.cumsum() - ended
    later = lost.sum() - before[0], ended.sum() - before[1]
    share = (later[0] / later[1].clip(1)).clip(_USUAL, 0.9999)
    return _logarithm(before, _USUAL) + _logarithm(later, share)


def _logarithm(counts: tuple[Array, Array], share: Array | float) -> Array:
    """Of the likelihoods of lost and all probes, if a share of them is lost."""
    lost, ended = counts
    found: Array = lost * np.log(share) + (ended - lost) * np.log1p(-np.asarray(share))
    return found
