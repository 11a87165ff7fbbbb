"""Hops that the finder measures beside a flow: its answers as rows of the flow's hops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from probes.path.active.echo import SMALLEST
from probes.path.active.finder import FinderAnswer
from probes.path.records import DESTINATION_HOP, FLOW_KEY, HOP, Array, MeasuredBy, ProbeOutcome


def rows_beside(answers: Sequence[FinderAnswer], end: int, flow: Array) -> Array:
    """Return a row of dtype HOP for each answer, or request without one. `end` is the destination's
    hop. `flow` is a row of a flow to the same destination, which gets them."""
    rows = np.zeros(len(answers), HOP)
    for name, *_ in FLOW_KEY:
        rows[name] = flow[name]
    rows["hop"] = [DESTINATION_HOP if each.ttl == end else each.ttl for each in answers]
    rows["sent_ns"] = [each.sent_ns for each in answers]
    rows["received_ns"] = [each.received_ns for each in answers]
    for row, each in zip(rows, answers, strict=True):
        row["responder"] = np.frombuffer(each.responder, "u1")
    unanswered = rows["received_ns"] == 0
    rows["outcome"] = np.where(unanswered, ProbeOutcome.UNANSWERED, ProbeOutcome.ANSWERED)
    rows["measured_by"], rows["whole"] = MeasuredBy.ECHO_BESIDE_THE_FLOW, 1
    rows["packet_bytes"] = SMALLEST[int(flow["version"])]
    return rows
