"""The length of a path and the hops that answer: longer, shorter, silent, answering."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from bpf.arrays import Array, Rows
from probes.path.analysis.changes import Changes
from probes.path.analysis.flows import Detector, Flows, HopBatch, address_ids
from probes.path.analysis.routes import is_silent
from probes.path.records import HOP, HOP_COUNT, PathRowKind, ProbeOutcome

SILENCE_NS = 1_500_000_000
"""A hop that answered more recently is not silent."""
REROUTED_NS = 10_000_000_000
"""A change of length belongs to a change of routers that is not older than this."""

_SETTLED_NS = 3_000_000_000
"""A path whose end is unchanged for so long is known in full."""
_OWN_MISSES = 3
_SHARED_MISSES = 8
"""A path ends after its last hop if so many probes of the flow, or of all flows by the same last
router, to the next hop were not answered."""
_MIN_ANSWERS = 3
_SOON_NS = 2_000_000_000
_END_NS = 1_000_000_000
"""A destination that answers from far behind the last hop is heard from nearer hops by then."""
_DESTINATION_WORDS = slice(0, 2)


@dataclass(slots=True)
class PathEnd:
    """A router that is the last one of some flows' paths."""

    missed: Array
    """Unanswered probes beyond it, guarded and whole ones: (2,)."""
    grown_ns: int = 0
    """When a hop behind it first answered, 0: never."""


class Reach(Detector):
    """Follows how far answers come from. Returns rows of LONGER, SHORTER, SILENT and ANSWERS."""

    def __init__(self, flows: Flows, changes: Changes) -> None:
        super().__init__(flows)
        self._changes = changes
        self._unanswered = self.by_hop("i8")
        """Successive unanswered probes, up to the last one."""
        self._silent_ns = self.by_hop("i8")
        """Of a silent hop, when its last answered probe was sent; else 0."""
        self._reported = self.by_hop(bool)
        self._top = self.by_flow("i8")
        """The last hop that answers."""
        self._top_ns = self.by_flow("i8")
        self._settled = self.by_flow(bool)
        self._longer_ns = self.by_flow("i8")
        """When the path was last reported as longer: its new hops do not answer all at once."""
        self._unsure: dict[int, tuple[int, int]] = {}
        """By place: the last hop of a path that is longer by an unknown number of hops, and when
        the destination was heard from behind it."""
        self._refused = self.by_flow(bool)
        """Whether the destination itself was the last hop of the flow."""
        self._missed = self.by_flow("i8", 2)
        """As `missed` of PathEnd, of one flow."""
        self._end_of = self.by_flow("u8", 3)
        """The key in `_ends` under which the flow's last unanswered probe counts."""
        self._ends: dict[tuple[int, ...], PathEnd] = self.by_destination(
            defaultdict(lambda: PathEnd(np.zeros(2, "i8")))
        )
        """By destination, hop and router (address ids)."""

    def drop(self, places: Array) -> None:
        super().drop(places)
        for place in places.tolist():
            self._unsure.pop(place, None)

    def add(
        self, batch: HopBatch, answered: Array, lost: Array, beyond: Array, shortened: Array
    ) -> list[Array]:
        """Rows of dtype PATH. `answered` and `lost` (MAX_SERIES,) are recent outcomes, older ones
        with less weight. `beyond` and `shortened` are rows of dtype HOP: probes beyond the path,
        and the new ends of shorter paths as FlowLengths.take returns them."""
        found = self._answering(batch)
        found += self._growing(batch)
        found += self._ended(batch)
        found += self._found_ends(batch.now_ns)
        found += self._shrinking(shortened, batch.now_ns)
        found += self._falling_silent(batch, answered, lost)
        self._miss(beyond)
        return found

    def _answering(self, batch: HopBatch) -> list[Array]:
        answers = batch.answers
        sent = answers.rows["sent_ns"][answers.last]
        newest = sent == self._changes.facts["last_ns"][answers.which]
        which, first = answers.which[newest], answers.rows["sent_ns"][answers.starts[newest]]
        self._unanswered[which] = 0
        back = self._silent_ns[which] > 0
        reported = back & self._reported[which]
        rows = self._flows.rows(PathRowKind.ANSWERS, which[reported], batch.now_ns)
        rows["responder"] = self._changes.facts["responder"][which[reported]]
        rows["since_ns"] = first[reported]
        rows["amount_ns"] = first[reported] - self._silent_ns[which[reported]]
        self._silent_ns[which[back]] = 0
        self._reported[which[back]] = False
        return [rows]

    def _growing(self, batch: HopBatch) -> list[Array]:
        """Take in answers from beyond the last hop."""
        answers = batch.answers
        which, whole = answers.which, answers.rows["whole"][answers.starts]
        beyond = np.flatnonzero(which % HOP_COUNT > self._top[which // HOP_COUNT])
        # The last one of each flow: series ascend.
        ends = beyond[np.flatnonzero(np.diff(which[beyond] // HOP_COUNT, append=-1))]
        return [
            row
            for series, is_whole in zip(which[ends].tolist(), whole[ends].tolist(), strict=True)
            for row in self._grown(series // HOP_COUNT, series % HOP_COUNT, is_whole, batch.now_ns)
        ]

    def _grown(self, place: int, hop: int, whole: int, now_ns: int) -> list[Array]:
        facts = self._changes.facts
        series, top = place * HOP_COUNT + hop, int(self._top[place])
        at_end, refused = self._is_destination(place, hop), bool(self._refused[place])
        if top and at_end and self._is_destination(place, top):
            return []  # The destination answers every hop limit that reaches it.
        made = []
        if self._is_settled(place, now_ns):
            soon = now_ns - facts["first_ns"][series] <= _SOON_NS
            often = facts["answers"][series] >= _MIN_ANSWERS
            if soon and not often and not self._rerouted(place, now_ns - REROUTED_NS):
                return []  # The hop may answer rarely.
            grows = refused or now_ns - self._longer_ns[place] <= _SOON_NS
            if soon and (grows or (not at_end and self._ended_before(place, whole, now_ns))):
                self._longer_ns[place] = now_ns
                if at_end and hop > top + 1:
                    # The destination answers from every hop behind the end of the path.
                    self._unsure[place] = top, now_ns
                else:
                    before, _ = self._unsure.pop(place, (top, 0))
                    made = [self._row(PathRowKind.LONGER, series, hop - before, now_ns)]
        self._top[place], self._top_ns[place] = hop, now_ns
        self._refused[place] |= at_end
        self._missed[place] = 0
        return made

    def _ended_before(self, place: int, whole: int, now_ns: int) -> bool:
        """Whether the flow's path surely ended at its last hop until now."""
        end = self._ends[tuple(self._end_of[place].tolist())]
        end.grown_ns = end.grown_ns or now_ns
        if self._rerouted(place, now_ns - REROUTED_NS) and self._missed[place].any():
            return True
        missed = self._missed[place, whole] >= _OWN_MISSES or end.missed[whole] >= _SHARED_MISSES
        # Some flows by this router went on long ago: this one had just not been probed there.
        return bool(missed and now_ns - end.grown_ns <= REROUTED_NS)

    def _miss(self, beyond: Rows[HOP]) -> None:
        """Count unanswered probes to the hop after the last one of their flow."""
        if not len(beyond):
            return
        places = self._flows.places(beyond)
        tops = self._top[places]
        counted = np.flatnonzero((places >= 0) & (tops > 0) & (beyond["hop"] == tops + 1))
        places, whole = places[counted], beyond["whole"][counted]
        np.add.at(self._missed, (places, whole), 1)
        tops = tops[counted]
        routers = self._changes.facts["responder"][places * HOP_COUNT + tops].view("u8")
        keys = np.column_stack(
            (self._flows.destinations[places], tops, address_ids(routers.reshape(-1, 2)))
        ).astype("u8")
        self._end_of[places] = keys
        for key, kind in zip(keys.tolist(), whole.tolist(), strict=True):
            self._ends[tuple(key)].missed[kind] += 1

    def _shrinking(self, shortened: Array, now_ns: int) -> list[Array]:
        """Take in the new ends of paths that lack their last hops."""
        found = []
        for place, row in zip(self._flows.places(shortened).tolist(), shortened, strict=True):
            end, top = int(row["hop"]), int(self._top[place])
            if place < 0 or end >= top:
                continue
            settled = self._is_settled(place, now_ns)
            tail = place * HOP_COUNT + np.arange(end + 1, top + 1)
            if self._rerouted(place, int(row["sent_ns"]) - REROUTED_NS):
                self._changes.drop_hops(tail)
                self._unanswered[tail] = self._silent_ns[tail] = 0
                self._reported[tail] = False
                self._top[place], self._top_ns[place] = end, now_ns
                self._missed[place] = _OWN_MISSES
                kind, series, amount = PathRowKind.SHORTER, place * HOP_COUNT + end, top - end
                found += [self._row(kind, series, amount, now_ns)] if settled else []
                continue
            new = tail[(self._silent_ns[tail] == 0) & (self._changes.facts["answers"][tail] > 0)]
            if settled and len(new):
                self._fall_silent(new, 0)
                found.append(self._silence(int(new[0]), len(new), now_ns))
        return found

    def _ended(self, batch: HopBatch) -> list[Array]:
        """Take in answers of the destination itself from before the last hop."""
        facts, answers = self._changes.facts, batch.answers
        which, sent = answers.which, answers.rows["sent_ns"][answers.starts]
        responders = facts["responder"][which].view("u8").reshape(-1, 2)
        places, hops = np.divmod(which, HOP_COUNT)
        ending = (responders == self._flows.keys[places, _DESTINATION_WORDS]).all(axis=1)
        ending &= hops < self._top[places]
        found = []
        for place in np.unique(places[ending]).tolist():
            at = int(np.flatnonzero(ending & (places == place))[0])
            hop, top = int(hops[at]), int(self._top[place])
            # A router answered from here on; otherwise the destination was heard from too far away.
            router = facts["first_ns"][which[at]] < sent[at] or not all(
                self._is_destination(place, each)
                for each in range(hop + 1, top + 1)
                if facts["answers"][place * HOP_COUNT + each]
            )
            if router and self._is_settled(place, batch.now_ns):
                series = place * HOP_COUNT + hop
                found.append(self._row(PathRowKind.SHORTER, series, top - hop, batch.now_ns))
            self._top[place], self._top_ns[place] = hop, batch.now_ns
            self._refused[place] = True
        return found

    def _found_ends(self, now_ns: int) -> list[Array]:
        """Report the longer paths whose end is known."""
        found = []
        for place, (before, since_ns) in list(self._unsure.items()):
            top = int(self._top[place])
            if top > before + 1 and now_ns - since_ns < _END_NS:
                continue
            del self._unsure[place]
            if top > before:
                series = place * HOP_COUNT + top
                found.append(self._row(PathRowKind.LONGER, series, top - before, now_ns))
        return found

    def _falling_silent(self, batch: HopBatch, answered: Array, lost: Array) -> list[Array]:
        facts = self._changes.facts
        at = np.flatnonzero(batch.rows["outcome"] == ProbeOutcome.UNANSWERED)
        series, sent = batch.series[at], batch.rows["sent_ns"][at]
        after = (facts["answers"][series] > 0) & (sent > facts["last_ns"][series])
        series, sent = series[after], sent[after]
        np.add.at(self._unanswered, series, 1)
        # Ordered by series and time: the last of each series is the newest.
        newest = np.flatnonzero(np.diff(series, append=-1))
        series, sent = series[newest], sent[newest]
        count = self._unanswered[series]
        silent = is_silent(count, answered[series], np.maximum(lost[series] - count, 0))
        silent &= (self._silent_ns[series] == 0) & (facts["answers"][series] >= _MIN_ANSWERS)
        silent &= sent - facts["last_ns"][series] >= SILENCE_NS
        return [
            row
            for at in np.flatnonzero(silent).tolist()
            for row in self._fell_silent(int(series[at]), int(sent[at]), batch.now_ns)
        ]

    def _fell_silent(self, series: int, sent_ns: int, now_ns: int) -> list[Array]:
        """Report a silent hop, together with all hops behind it if none of them answers."""
        if self._silent_ns[series]:
            return []  # Reported with another hop just now.
        place, facts = series // HOP_COUNT, self._changes.facts
        top = int(self._top[place])
        hops = place * HOP_COUNT + np.arange(1, top + 1)
        known = hops[facts["answers"][hops] > 0]
        # Hops that fell silent together were not probed at the same moment.
        dark = facts["last_ns"][known] <= sent_ns - SILENCE_NS // 2
        dark |= self._silent_ns[known] > 0
        alive = known[~dark]
        tail = known[known > (alive[-1] if len(alive) else 0)]
        if series not in tail:
            if self._answers_others(series, sent_ns):
                return []
            self._fall_silent(np.array([series]), 0)
            return [self._silence(series, 1, now_ns)]
        new = tail[self._silent_ns[tail] == 0]
        self._fall_silent(new, 0)
        return [self._silence(int(new[0]), len(new), now_ns)]

    def _answers_others(self, series: int, sent_ns: int) -> bool:
        """Whether another flow got an answer of the hop's router: it limits them, and is not
        silent."""
        facts = self._changes.facts
        peers = facts[series % HOP_COUNT :: HOP_COUNT]
        recent = peers["responder"][peers["last_ns"] > sent_ns - SILENCE_NS]
        return bool((recent == facts["responder"][series]).all(axis=1).any())

    def _fall_silent(self, series: Array, reported: int) -> None:
        self._silent_ns[series] = self._changes.facts["last_ns"][series]
        self._reported[series[reported]] = True

    def _silence(self, series: int, hops: int, now_ns: int) -> Array:
        row = self._row(PathRowKind.SILENT, series, hops, now_ns)
        row["since_ns"] = self._silent_ns[series]
        return row

    def _row(self, kind: PathRowKind, series: int, amount: int, now_ns: int) -> Array:
        row = self._flows.rows(kind, np.array([series]), now_ns)
        row["responder"] = self._changes.facts["responder"][series]
        row["since_ns"] = self._changes.facts["first_ns"][series]
        row["amount"] = amount
        return row

    def _rerouted(self, place: int, since_ns: int) -> bool:
        return bool(self._changes.rerouted_ns[place] > max(0, since_ns))

    def _is_settled(self, place: int, now_ns: int) -> bool:
        """Whether the path is known up to its end; if so, it stays settled."""
        top = int(self._top[place])
        steady = top > 0 and now_ns - self._top_ns[place] >= _SETTLED_NS
        if steady and self._changes.facts["answers"][place * HOP_COUNT + top] >= _MIN_ANSWERS:
            self._settled[place] = True
        return bool(self._settled[place])

    def _is_destination(self, place: int, hop: int) -> bool:
        responder = self._changes.facts["responder"][place * HOP_COUNT + hop].view("u8")
        return bool((responder == self._flows.keys[place, _DESTINATION_WORDS]).all())
