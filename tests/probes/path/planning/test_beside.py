"""Hops of UDP that only the finder can measure: its answers are rows of the flow."""

from __future__ import annotations

import numpy as np
import pytest

from bpf.arrays import Array
from probes.path.active.finder import FinderAnswer
from probes.path.options import PathOptions
from probes.path.planning.extent import PathExtent
from probes.path.records import DESTINATION_HOP, HOP, HOP_COUNT, MeasuredBy, ProbeOutcome, no_rows
from tests.probes.path.planning.test_hidden_hops import SECOND, TO, Finder

UDP = 17
END = 5
"""The hop of the destination; routers behind hop 1 get no guarded probe."""


class Path:
    """A flow of UDP behind a translation, polled four times a second."""

    def __init__(self, *, is_silent: bool) -> None:
        self.finder = Finder()
        self.extent = PathExtent(TO, self.finder, PathOptions())
        self._is_silent = is_silent
        self._now = 100 * SECOND
        self._sent = np.zeros(HOP_COUNT, "u8")

    def run(self, seconds: float, *, lost: int = 0) -> Array:
        """Return the rows beside the flow. A request to the hop `lost` gets no answer."""
        found = [no_rows(HOP)]
        for _ in range(round(seconds * 4)):
            self._now += SECOND // 4
            for hop in (hop for hops in self.finder.asked for hop in hops):
                answers = hop not in (lost, self._is_silent)
                at_end = hop >= END
                responder = TO.address if at_end else bytes([hop]).ljust(16, b"\0")
                received = self._now if answers else 0
                responder = responder if answers else bytes(16)
                self.extent.hear(
                    FinderAnswer(TO, hop, at_end and answers, responder, self._now - 9, received)
                )
            self.finder.asked.clear()
            self._poll()
            found.append(self.extent.beside)
        return np.concatenate(found, dtype=HOP)

    def _poll(self) -> None:
        rows = np.zeros(1, HOP)
        rows["destination"] = np.frombuffer(TO.address, "u1")
        rows["protocol"], rows["version"], rows["source_port"], rows["hop"] = UDP, 4, 4000, 1
        rows["sent_ns"] = self._now - SECOND // 8
        rows["outcome"] = ProbeOutcome.UNANSWERED
        if not self._is_silent:
            rows["outcome"], rows["responder"] = ProbeOutcome.ANSWERED, [1, *[0] * 15]
            rows["received_ns"] = self._now
        self._sent[1] += 1
        self.extent.judge(rows, no_rows(HOP), no_rows(HOP), 0, self._now)
        self.extent.decide(rows, self._sent, 0, 0, self._now)


@pytest.mark.parametrize("is_silent", [False, True], ids=["first answers", "first is silent"])
def test_every_hop_is_measured_beside_the_flow_within_two_seconds(is_silent: bool) -> None:
    path = Path(is_silent=is_silent)
    rows = path.run(2)
    assert set(rows["hop"].tolist()) == {2, 3, 4, DESTINATION_HOP}
    assert set(rows["outcome"]) == {ProbeOutcome.ANSWERED}
    assert set(rows["measured_by"]) == {MeasuredBy.ECHO_BESIDE_THE_FLOW}
    assert set(zip(rows["protocol"], rows["source_port"], strict=True)) == {(UDP, 4000)}
    assert rows["responder"][rows["hop"] == DESTINATION_HOP][0].tobytes() == TO.address
    notes = list(path.extent.notes())
    assert ("the first router does not answer" in notes) == is_silent
    assert notes[-1].startswith("UDP is measured beside the flow from hop 2 on, by ICMP echo")


def test_a_hop_that_answered_before_loses_its_request() -> None:
    path = Path(is_silent=False)
    path.run(2)
    rows = path.run(4, lost=3)
    outcomes = {hop: set(rows["outcome"][rows["hop"] == hop].tolist()) for hop in (2, 3, 4)}
    lost, answered = {int(ProbeOutcome.UNANSWERED)}, {int(ProbeOutcome.ANSWERED)}
    assert outcomes == {2: answered, 3: lost, 4: answered}


def test_a_path_whose_routers_answer_is_not_measured_beside_it() -> None:
    path = Path(is_silent=False)
    path.extent.hidden.answered(2, True)
    assert len(path.run(5)) == 0
    assert list(path.extent.notes()) == []
