"""Loss that begins at a hop: all later hops and the destination lose, too (S3.20).

Loss counts if it is certain, by cumulative sums of log-likelihood ratios (E. S. Page, 1954) of a
loss of 2.5 % against one of 0.5 %. Two hops, or a hop and the destination, must each reach half of
_SURE, or the destination alone all of it. So if every hop loses 0.5 %, independently, at most one
in e**18 probes, 60 million, raises a false alarm. A loss of 5 % takes some 150 probes of each hop.

A router that limits its answers loses nothing. So its silence counts only at a rate of probes at
which it has answered before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log

import numpy as np

from probes.path.analysis.changes import Changes
from probes.path.analysis.flows import MAX_SERIES, Flows, HopBatch, series_of
from probes.path.analysis.statistics import loss_interval
from probes.path.records import DESTINATION_HOP, HOP_COUNT, PATH, Array, PathRowKind, ProbeOutcome

_USUAL, _LOSS = 0.005, 0.025
_LOST, _ANSWERED = log(_LOSS / _USUAL), log((1 - _LOSS) / (1 - _USUAL))
_SURE = 18.0
_HALF = _SURE / 2
_PATIENT = 1.5 * _SURE
"""Score up to which a loss waits for nearer hops whose own loss is uncertain."""
_RUN = 5
"""No more of successive lost probes count: a short outage is no rate of loss."""
_MARGIN_NS = 250_000_000
"""Time between a timeout and the poll that reports it."""
_RECENT_NS = 5_000_000_000
_FADE_NS = 10e9
"""Half-life of recent outcomes, which tell whether a hop has less loss than another."""
_STRETCH_NS = 5_000_000_000
_STRETCH = 100
"""A router is able to answer at a rate if it did so for so long, and for so many probes: routers
that limit answers let some pass at once."""
_CLEAN = 0.01
_FASTER = 1.25
"""It is able to answer so many times as often."""

_WAITING = np.dtype([("sent_ns", "i8"), ("series", "i4"), ("lost", "?")])
HOP_LOSS = np.dtype([
    ("score", "f8"), ("run", "i8"), ("lost", "i8"), ("ended", "i8"), ("since_ns", "i8"),
    ("last_ns", "i8"), ("recent_lost", "f8"), ("recent", "f8"), ("stretch", "i8"),
    ("stretch_lost", "i8"), ("stretch_ns", "i8"), ("rate", "f8"),
])  # fmt: skip
"""A hop for all flows of a destination. `score` is the sum that must become certain, `lost` of
`ended` probes since it was zero at `since_ns`; `run` the lost ones at the end; `last_ns` when the
last answered one was sent; `recent` outcomes fade. In the `stretch` since `stretch_ns` few are
lost; `rate` is the highest rate, probes a second, of such a stretch."""


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
    answered: int = 0
    """Probes since the last lost one."""
    over: float = 0.0
    """The sum that must become certain for the loss to be over."""


@dataclass(slots=True, eq=False)
class _State:
    """The loss on the way to one destination."""

    hops: Array = field(default_factory=lambda: np.zeros(HOP_COUNT, HOP_LOSS))
    waiting: Array = field(default_factory=lambda: np.empty(0, _WAITING))
    """Outcomes, held until all earlier probes have an outcome."""
    now_ns: int = 0
    loss: _Loss | None = None


class Losses:
    """Follows the loss on the way to each destination. Rows are of LOSS and LOSS_OVER."""

    def __init__(self, flows: Flows, changes: Changes, timeout_ns: int) -> None:
        self._flows = flows
        self._changes = changes
        self._timeout_ns = timeout_ns
        self._answered_ns = np.zeros(MAX_SERIES, "i8")
        """When the last answered probe was sent."""
        self._states: dict[int, _State] = {}

    def drop(self, places: Array) -> None:
        series = series_of(places)
        self._answered_ns[series] = 0
        for state in self._states.values():
            state.waiting = state.waiting[~np.isin(state.waiting["series"], series)]

    def forget(self, destination: int) -> None:
        """Forget the loss to an address (its address id)."""
        self._states.pop(destination, None)

    def add(self, batch: HopBatch, rerouted: Array, looping: frozenset[int] = frozenset()) -> Array:
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
        state.hops["recent_lost"] *= 0.5 ** ((now_ns - state.now_ns) / _FADE_NS)
        state.hops["recent"] *= 0.5 ** ((now_ns - state.now_ns) / _FADE_NS)
        state.now_ns = now_ns
        hops = counted["series"] % HOP_COUNT
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
        if not (state.hops["score"] >= _HALF).any():
            return []
        state.loss = _found(state.hops)
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
        row["flows"] = max(1, len(active))
        row["lost"], row["answered"] = loss.lost, loss.ended - loss.lost
        lost, ended = np.array([loss.lost]), np.array([loss.ended])
        row["loss_low"], row["loss_high"] = loss_interval(lost, ended)
        return row


def _count(hop: Array, rows: Array) -> None:
    """Add outcomes, in order of sending, to a hop, dtype HOP_LOSS (1,)."""
    lost, sent = rows["lost"], rows["sent_ns"]
    count, number = len(rows), int(lost.sum())
    hop["recent"] += count
    hop["recent_lost"] += number
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


def _stretch(hop: Array, count: int, lost: int, sent: Array) -> None:
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
    result: Array = lost & (places - last_answer <= _RUN)
    return result


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


def _found(hops: Array) -> _Loss | None:
    """The loss that is certain now, if there is one, from hops (HOP_COUNT,) of dtype HOP_LOSS."""
    newest = int(hops["last_ns"].max())
    known = np.flatnonzero((hops["last_ns"] > newest - _RECENT_NS) & (hops["recent"] > 0))
    took = (hops["last_ns"] - hops["since_ns"]).clip(1) / 1e9
    able = hops["ended"] / took <= _FASTER * hops["rate"]
    able[DESTINATION_HOP] = True
    low, high = loss_interval(hops["recent_lost"], hops["recent"])
    if hops["score"][DESTINATION_HOP] >= _HALF:  # what the destination loses, routers may lose
        able |= low <= high[DESTINATION_HOP]
    sure = able & (hops["score"] >= _HALF)
    losing = [hop for hop in known.tolist() if sure[hop]]
    if not losing:
        return None
    # Hops with less loss, and all before them, are before the loss.
    least = min(low[hop] for hop in losing)
    clean = max((hop for hop in known.tolist() if high[hop] < least), default=0)
    losing = [hop for hop in losing if hop > clean]
    scores = hops["score"][losing]
    if not (len(losing) > 1 or (losing == [DESTINATION_HOP] and scores[0] >= _SURE)):
        return None
    first = losing[0]
    # Later hops that seem to lose nothing are waited for, and others for some time.
    often = hops["recent"] >= min(hops["recent"][losing]) / 2
    if any(often[hop] and hops["score"][hop] < _HALF / 2 for hop in known if hop > first):
        return None
    unsure = any(clean < hop < first for hop in known.tolist())
    if unsure and scores.max() < _PATIENT:
        return None
    state = hops[first]
    lost, ended = int(state["lost"]), int(state["ended"])
    worst = max(_LOSS, lost / ended / 2)
    return _Loss(first, clean, int(state["since_ns"]), lost, ended, worst)
