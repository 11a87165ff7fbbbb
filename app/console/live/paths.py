"""Paths over the last minutes: series, responders, samples and changes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from app.console.live.flows import places_of
from bpf.arrays import Array, Rows
from probes.flow.records import hash_keys
from probes.path.analysis.flows import SERIES_MASK, address_ids, words_of
from probes.path.analysis.statistics import group_starts
from probes.path.records import (
    DESTINATION_HOP,
    FLOW_KEY,
    HOP,
    PATH,
    PATHS_TABLE,
    TRACES_TABLE,
    PathRowKind,
    ProbeOutcome,
    no_rows,
)
from probes.snapshot import Snapshot

_COUNTS = ("answered", "lost", "dropped")
SERIES = np.dtype(
    [*FLOW_KEY, ("hop", "u1"), ("cleared", "u1"), ("id", "u8")]
    + [(name, "i8") for name in ("first_ns", "seen_ns", "last_ns")]
    + [(name, "u8") for name in _COUNTS]
    + [("queue_ns", "i8"), ("methods", "u8")]
)
"""A series: one hop of one flow, or the flow's own round trips (DESTINATION_HOP). `id` stays the
same until the series leaves; `first_ns` is its begin, `seen_ns` the end of its last probe;
`last_ns` is the last round-trip time, or -1; counts begin at `first_ns`; bit n of `methods` is set
if a round trip was measured by MeasuredBy(n); `queue_ns` is the delay of a queue at this hop, or 0;
`cleared` is a field of the last summary."""

RESPONDER = np.dtype(
    [("id", "u8"), ("series", "u8"), ("responder", "u1", (16,)), ("labels", "u4", (4,))]
    + [(name, "u1") for name in ("label_count", "tos", "quoted_tos")]
    + [("altered", "u2"), ("answers", "u8"), ("first_ns", "i8"), ("last_ns", "i8")]
)
"""A router that answered at a hop: `series` is that hop's id; the labels, the sent and the quoted
TOS, and the altered fields are of its last answer."""

SAMPLE = np.dtype([("id", "u8"), ("sent_ns", "i8"), ("rtt_ns", "i8")])
"""A probe of the series `id`; `rtt_ns` is -1 if it was lost, UNTIMED for an answer without time."""
UNTIMED = -2

BIN = np.dtype([("rtt_ns", "f8"), ("answered", "u4"), ("lost", "u4"), ("untimed", "u4")])
"""The probes of a series that were sent within one second; `rtt_ns` is the sum of the answered;
`untimed` ones were answered without a time."""

SECONDS = 240
"""Seconds of bins."""
BLOCK = 4
"""Seconds of a block of bins: views share unchanged blocks, and each has a copy of the newest."""
IDLE_NS = 60_000_000_000
"""A series without a probe for this long leaves; samples last as long."""
OWN_NS = 3_000_000_000
"""Own traffic is over if no table of it came for so long."""
MAX_SERIES = 2048
MAX_RESPONDERS = 4 * MAX_SERIES
MAX_SAMPLES = 1 << 20
MAX_CHANGES = 500
SECOND_NS = 1_000_000_000

_BLOCKS = SECONDS // BLOCK
_COUNTED = (
    ProbeOutcome.ANSWERED, ProbeOutcome.UNREACHABLE, ProbeOutcome.UNANSWERED, ProbeOutcome.DROPPED,
)  # fmt: skip
"""Outcomes of a probe that say something of the path."""
_Chunk = tuple[int, Array]
"""End of the last sample, and samples (n,) ascending by id."""


@dataclass(frozen=True, slots=True, eq=False)
class PathView:
    """Paths at a moment; immutable: the next view has other arrays."""

    series: Rows[SERIES]
    """dtype SERIES, (n,), ascending by `id`."""
    bins: tuple[Array, ...]
    """dtype BIN, each (n, BLOCK): second s is column s % BLOCK of number s % SECONDS // BLOCK."""
    responders: Rows[RESPONDER]
    """dtype RESPONDER, (m,)."""
    changes: Rows[PATH]
    """dtype PATH, (k,): everything but summaries, oldest first."""
    now_ns: int = 0
    """End of the last window, CLOCK_MONOTONIC."""
    utc_offset_ns: int = 0
    """Nanoseconds from that clock to UTC."""
    own_bits: float = 0.0
    """Own probes and their answers in the last second, bits per second; no part of flows."""
    generation: int = 0
    """Incremented when series come or leave."""
    _chunks: tuple[_Chunk, ...] = ()

    @property
    def second(self) -> int:
        """The newest second of the bins, by CLOCK_MONOTONIC."""
        return self.now_ns // SECOND_NS

    @property
    def arrived(self) -> Array:
        """Whether the last answer to the probes of a series came from the destination, (n,)."""
        series, known = self.series, self.responders[np.argsort(self.responders["last_ns"])]
        at = np.searchsorted(series["id"], known["series"])
        arrived = np.zeros(len(series), bool)
        # The newest responder of a series is stored last.
        arrived[at] = (known["responder"] == series["destination"][at]).all(axis=1)
        arrived &= series["hop"] != DESTINATION_HOP
        return arrived

    def recent(self, places: Array, seconds: int) -> Rows[BIN]:
        """Return bins (len(places), seconds) of the series at `places`, of the last seconds.

        Bins of forgotten seconds are empty.
        """
        wanted = max(0, seconds)
        kept = min(wanted, SECONDS)
        begin = self.second + 1 - kept
        first = begin // BLOCK
        last = max(first, self.second // BLOCK)
        blocks = [self.bins[number % _BLOCKS][places] for number in range(first, last + 1)]
        result = np.zeros((len(places), wanted), BIN)
        known = np.concatenate(blocks, axis=1)[:, begin - first * BLOCK :]
        result[:, wanted - kept :] = known[:, :kept]
        return result

    def samples(self, ids: Array) -> Rows[SAMPLE]:
        """Return samples of the series `ids` (n,), ascending, of the last minute, dtype SAMPLE.

        They stand series after series, in the order in which the probes ended.
        """
        found = ((chunk, *_found(chunk, ids)) for _, chunk in self._chunks)
        return _in_order(no_rows(SAMPLE), [(chunk[at], places) for chunk, at, places in found])[0]


class RecentTimes:
    """Round-trip times of some series in the last minute; it keeps those of known chunks."""

    def __init__(self, ids: Array) -> None:
        """`ids` (n,), ascending, identify the series."""
        self.ids = ids
        self._found: dict[int, tuple[Array, Array, Array]] = {}
        """By `id` of a chunk: the chunk, which keeps its `id` taken, then its times and places."""

    def of(self, view: PathView) -> tuple[Array, Array]:
        """Return times (m,) in ns, -1 for a loss, and the places in `ids` (m,) of their series,
        in the order of PathView.samples."""
        before = self._found
        self._found = {id(of): before.get(id(of)) or self._times(of) for _, of in view._chunks}
        found = [(times, places) for _, times, places in self._found.values()]
        return _in_order(np.empty(0, "i8"), found)

    def _times(self, chunk: Array) -> tuple[Array, Array, Array]:
        at, places = _found(chunk, self.ids)
        return chunk, chunk["rtt_ns"][at], places


def _found(chunk: Array, ids: Array) -> tuple[Array, Array]:
    """Return the places of samples of the series `ids` in a chunk, and of their series, (m,)."""
    known = np.ascontiguousarray(chunk["id"])
    first = known.searchsorted(ids, "left")
    counts = known.searchsorted(ids, "right") - first
    before = np.cumsum(counts) - counts
    at = np.repeat(first - before, counts) + np.arange(counts.sum())
    return at, np.repeat(np.arange(len(ids), dtype="u2"), counts)


def _in_order(none: Array, parts: Iterable[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Return rows of chunks, series after series, and the places of their series.

    `parts` has both for each chunk, (m,); `none` is an empty array of the rows' dtype.
    """
    found, places = zip((none, np.empty(0, "u2")), *parts, strict=True)
    of = np.concatenate(places)
    # Small numbers are sorted by radix.
    order = np.argsort(of, kind="stable")
    return np.concatenate(found)[order], of[order]


class LivePaths:
    """Builds PathViews from the tables of the probe `path`; its thread calls `add`, any `view`.

    A series without a probe for a minute leaves. Above MAX_SERIES the longest idle ones leave.
    Callers compute medians and the like from samples of the series that they show.
    """

    def __init__(self) -> None:
        self._series = no_rows(SERIES)
        self._bins = [np.zeros((0, BLOCK), BIN)] * _BLOCKS
        """Views share these arrays: they are replaced, never changed."""
        self._responders = no_rows(RESPONDER)
        self._changes = no_rows(PATH)
        self._chunks: deque[_Chunk] = deque()
        self._samples = 0
        self._now_ns = 0
        self._utc_offset_ns = 0
        self._generation = 0
        self._own = 0, 0.0
        """End of the last period of own traffic, and its bits per second."""
        self._view: PathView | None = None
        """The present view; None since the last table."""
        self._lock = threading.Lock()

    def view(self) -> PathView:
        """Return the present view; the same object until the next table."""
        with self._lock:
            if self._view is None:
                ended_ns, own_bits = self._own
                own_bits = own_bits if self._now_ns - ended_ns < OWN_NS else 0.0
                self._view = PathView(
                    self._series.copy(), tuple(self._bins), self._responders.copy(), self._changes,
                    self._now_ns, self._utc_offset_ns, own_bits, self._generation,
                    tuple(self._chunks),
                )  # fmt: skip
            return self._view

    def add(self, snapshot: Snapshot) -> None:
        """Add a window's table, `hops` or `paths`."""
        with self._lock:
            self._view = None
            self._utc_offset_ns = snapshot.end_utc_ns - snapshot.end_ns
            self._advance(max(self._now_ns, snapshot.end_ns))
            if snapshot.metric == TRACES_TABLE:
                own = snapshot.rows["probe_bytes"] + snapshot.rows["answer_bytes"]
                took_ns = int((snapshot.end_ns - snapshot.rows["since_ns"]).max(initial=0))
                self._own = snapshot.end_ns, 8e9 * float(own.sum()) / max(took_ns, 10**8)
            elif snapshot.metric == PATHS_TABLE:
                self._find_out(snapshot.rows)
            elif len(rows := snapshot.rows[np.isin(snapshot.rows["outcome"], _COUNTED)]):
                self._probe(rows)

    def _advance(self, now_ns: int) -> None:
        before, now = self._now_ns // SECOND_NS, now_ns // SECOND_NS
        self._now_ns = now_ns
        if before == now:
            return
        for second in range(max(before + 1, now - SECONDS + 1), now + 1):
            self._block_of(second)[:, second % BLOCK] = np.zeros((), BIN)
        self._keep(self._series["seen_ns"] > now_ns - IDLE_NS)
        while self._chunks and self._chunks[0][0] < now_ns - IDLE_NS:
            self._samples -= len(self._chunks.popleft()[1])

    def _keep(self, kept: Array) -> None:
        if kept.all():
            return
        self._series = self._series[kept]
        self._bins = [block[kept] for block in self._bins]
        self._responders = self._responders[np.isin(self._responders["series"], self._series["id"])]
        self._generation += 1

    def _probe(self, rows: Rows[HOP]) -> None:
        """Add ended probes, dtype HOP."""
        # The last one of each series is then the one with the last answer, if any.
        ids = _series_ids(rows)
        order = np.lexsort((rows["received_ns"], ids))
        ids = ids[order]
        places, known = places_of(ids, self._series["id"])
        if not known.all():
            new = np.flatnonzero(~known)
            new = new[group_starts(ids[new])]
            self._meet(ids[new], rows.take(order[new]))
            places, known = places_of(ids, self._series["id"])
            ids, order, places = ids[known], order[known], places[known]
        if not len(ids):
            return
        # Rows are long: only the needed fields are sorted.
        sent, received, outcome = (
            rows[name][order] for name in ("sent_ns", "received_ns", "outcome")
        )
        answered = received > 0
        untimed = (outcome <= ProbeOutcome.UNREACHABLE) & ~answered
        rtt = np.where(answered, received - sent, np.where(untimed, UNTIMED, -1))
        lost = outcome == ProbeOutcome.UNANSWERED

        masks = (answered | untimed, lost, outcome == ProbeOutcome.DROPPED)
        for name, mask in zip(_COUNTS, masks, strict=True):
            count = np.bincount(places[mask], minlength=len(self._series))
            self._series[name] += count.astype("u8")
        starts = group_starts(ids)
        methods = np.left_shift(1, rows["measured_by"][order]).astype("u8")
        self._series["methods"][places[starts]] |= np.bitwise_or.reduceat(methods, starts)
        ends = np.append(starts[1:], len(ids)) - 1
        self._series["seen_ns"][places[ends]] = self._now_ns
        ends = ends[answered[ends]]
        self._series["last_ns"][places[ends]] = rtt[ends]

        self._fill(places, sent // SECOND_NS, rtt, answered, lost, untimed)
        self._hear(ids[answered], rows, order[answered])
        self._store(ids, sent, rtt, answered | lost | untimed)

    def _meet(self, ids: Array, rows: Rows[HOP]) -> None:
        """Begin series `ids` (n,), ascending, of `rows` (n,) of dtype HOP."""
        fresh = np.zeros(len(rows), SERIES)
        for name in (*(part[0] for part in FLOW_KEY), "hop"):
            fresh[name] = rows[name]
        fresh["id"] = ids
        fresh["first_ns"] = fresh["seen_ns"] = self._now_ns
        fresh["last_ns"] = -1
        series = np.concatenate((self._series, fresh), dtype=SERIES)
        order = np.argsort(series["id"])
        self._series = series[order]
        none = np.zeros((len(fresh), BLOCK), BIN)
        self._bins = [np.concatenate((block, none))[order] for block in self._bins]
        self._generation += 1
        if len(series) > MAX_SERIES:
            kept = np.zeros(len(series), bool)
            kept[np.argsort(-self._series["seen_ns"], kind="stable")[:MAX_SERIES]] = True
            self._keep(kept)

    def _fill(
        self, places: Array, seconds: Array, rtt: Array, answered: Array, lost: Array,
        untimed: Array,
    ) -> None:  # fmt: skip
        """Add probes to the bins of the seconds in which they were sent."""
        newest = self._now_ns // SECOND_NS
        kept = (seconds > newest - SECONDS) & (seconds <= newest)
        for begin in np.unique(seconds[kept] // BLOCK).tolist():
            within = kept & (seconds // BLOCK == begin)
            into = self._block_of(begin * BLOCK).reshape(-1)
            cells = places * BLOCK + seconds % BLOCK
            for name, of, weights in (
                ("rtt_ns", answered, rtt), ("answered", answered, None), ("lost", lost, None),
                ("untimed", untimed, None),
            ):  # fmt: skip
                mask = within & of
                weights = None if weights is None else weights[mask]
                into[name] += np.bincount(cells[mask], weights, len(into)).astype(BIN[name])

    def _block_of(self, second: int) -> Array:
        """Return a writable copy of the bins (n, BLOCK) of a second."""
        number = second % SECONDS // BLOCK
        self._bins[number] = block = self._bins[number].copy()
        return block

    def _hear(self, ids: Array, rows: Rows[HOP], at: Array) -> None:
        """Count responders of rows of dtype HOP at places `at` (n,), of the series `ids` (n,)."""
        responders = rows["responder"][at].view("u8")
        pairs = ids + address_ids(responders)
        pairs, first, inverse = np.unique(pairs, return_index=True, return_inverse=True)
        known = places_of(pairs, self._responders["id"])[1]
        if not known.all():
            source = first[~known]
            fresh = np.zeros(len(source), RESPONDER)
            fresh["id"], fresh["series"] = pairs[~known], ids[source]
            fresh["responder"] = rows["responder"][at[source]]
            fresh["first_ns"] = fresh["last_ns"] = rows["received_ns"][at[source]]
            table = np.concatenate((self._responders, fresh))
            table = table[np.argsort(-table["last_ns"], kind="stable")[:MAX_RESPONDERS]]
            self._responders = table[np.argsort(table["id"])]
        places, known = places_of(pairs, self._responders["id"])
        counts = np.bincount(inverse, minlength=len(pairs)).astype("u8")
        self._responders["answers"][places[known]] += counts[known]
        last = np.zeros(len(pairs), "i8")
        last[inverse] = at
        newest = rows.take(last[known])
        self._responders["last_ns"][places[known]] = newest["received_ns"]
        for name in ("labels", "label_count", "tos", "quoted_tos", "altered"):
            self._responders[name][places[known]] = newest[name]

    def _store(self, ids: Array, sent_ns: Array, rtt: Array, kept: Array) -> None:
        chunk = np.empty(int(kept.sum()), SAMPLE)
        chunk["id"], chunk["sent_ns"], chunk["rtt_ns"] = ids[kept], sent_ns[kept], rtt[kept]
        self._samples += len(chunk)
        if self._chunks and self._chunks[-1][0] // SECOND_NS == self._now_ns // SECOND_NS:
            # Windows may be short; fewer chunks are searched faster.
            chunk = np.concatenate((self._chunks.pop()[1], chunk))
            chunk = chunk[np.argsort(chunk["id"], kind="stable")]
        chunk.flags.writeable = False
        self._chunks.append((self._now_ns, chunk))
        while self._samples > MAX_SAMPLES and len(self._chunks) > 1:
            self._samples -= len(self._chunks.popleft()[1])

    def _find_out(self, rows: Rows[PATH]) -> None:
        """Add findings of the analysis, dtype PATH."""
        places, known = places_of(_series_ids(rows), self._series["id"])
        rows_known, places = rows[known], places[known]
        queues = self._series["queue_ns"]
        said = rows_known["kind"] == PathRowKind.SUMMARY
        self._series["cleared"][places[said]] = rows_known["cleared"][said]
        growing = said & (queues[places] > 0) & (rows_known["amount_ns"] > 0)
        queues[places[growing]] = rows_known["amount_ns"][growing]
        begun = rows_known["kind"] == PathRowKind.QUEUE
        queues[places[begun]] = np.maximum(rows_known["amount_ns"][begun], 1)
        queues[places[rows_known["kind"] == PathRowKind.QUEUE_OVER]] = 0
        told = rows[rows["kind"] != PathRowKind.SUMMARY]
        if len(told):
            self._changes = np.concatenate((self._changes, told), dtype=PATH)[-MAX_CHANGES:]


def _series_ids(rows: Rows[HOP] | Rows[PATH]) -> Array:
    """Return hashes (n,) of flow and hop of rows of dtype HOP or PATH."""
    return hash_keys(words_of(rows)[:, : len(SERIES_MASK)] & SERIES_MASK)
