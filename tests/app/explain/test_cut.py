"""Explanations of conversations that the CPU budget, or a stream, leaves out of windows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.explain import choose, lines, nothing_passes
from bpf.errors import ProbedeckError
from probes.flow.records import FlowDirection
from probes.snapshot import NOT_COUNTED, NOT_SENT, Rest, Snapshot
from probes.sockets.limits import FIN, SYN
from probes.sockets.records import Limit
from tests.app.explain.made import SECOND, probes, upload
from tests.app.explain.test_explain import NEAR_MS, explained

IDLE = {"limit": Limit.APPLICATION}
CUT: Mapping[str, Any] = {"cut": True}
REST: Mapping[str, Any] = {"rest": (Rest("egress", 1, 1, 60),)}
"""Fields of a window of a stream that sends only the largest flows."""
LACKING = pytest.mark.parametrize(("lacking", "why"), [(CUT, NOT_COUNTED), (REST, NOT_SENT)])


def left_out(
    items: list[Snapshot], since: int, lacking: Mapping[str, Any], until: int = 99
) -> list[Snapshot]:
    """The items without rows in the windows from `since` on, and before `until`."""
    return [
        replace(each, rows=each.rows[:0].copy(), **lacking)
        if since <= each.window < until
        else each
        for each in timed(items)
    ]


def timed(items: list[Snapshot]) -> list[Snapshot]:
    """Give flows the times of their windows."""
    for each in items:
        if each.probe == "flow":
            each.rows.flags.writeable = True
            each.rows["first_ns"], each.rows["last_ns"] = each.start_ns, each.end_ns
    return items


@LACKING
def test_a_conversation_that_is_left_out_is_not_idle(lacking: Mapping[str, Any], why: str) -> None:
    idle = explained(*left_out(upload(numbers=IDLE), 7, {}))
    assert idle.sentence == "nginx (web.service) is idle: the flow sends nothing, since 6 s"
    found = explained(*left_out(upload(numbers=IDLE), 7, lacking))
    assert found.sentence == (
        f"nginx (web.service) may send or rest: its packets are {why}, since 6 s"
    )
    assert (found.why.limit, found.why.rest, found.at_least) == ("", "cut", True)
    text = "\n".join(lines(found))
    assert "at least" in text
    assert "idle" not in text


def test_whole_windows_after_a_cut_tell_that_it_rests() -> None:
    items = left_out(upload(numbers=IDLE), 7, CUT, until=10)
    items = left_out(items, 10, {})
    assert explained(*items).sentence.endswith("is idle: the flow sends nothing, since 3 s")


def test_a_connection_that_ended_before_the_cut_is_closed() -> None:
    items = timed(upload(numbers=IDLE))
    for each in items:
        if each.probe == "flow" and each.window == 6:
            each.rows["tcp_flags"] = FIN
    assert "the connection was closed" in explained(*left_out(items, 7, CUT)).sentence


@pytest.mark.parametrize("cut", [False, True])
def test_answers_that_are_cut_are_not_missing(cut: bool) -> None:
    """The acknowledgements of an upload are its smaller flow."""
    items = []
    for each in timed(upload(numbers=IDLE)):
        if each.probe == "flow":
            rows = each.rows[each.rows["direction"] == FlowDirection.EGRESS]
            rows["tcp_flags"] = SYN
            each = replace(each, rows=rows, cut=cut)
        items.append(each)
    items += left_out(upload(16), 13, {})[-16:]
    found = explained(*items, *probes(12, NEAR_MS, arrives=False))
    assert ("gets no answer" in found.sentence) == (not cut)
    assert not found.where.fault or not cut


def test_a_pause_with_a_cut_window_is_no_wait_for_an_answer() -> None:
    items = left_out(upload(numbers=IDLE), 4, CUT, until=9)
    assert explained(*items).sentence.startswith("nginx (web.service) limits itself")
    assert explained(*items).why.answer_us == 0


@LACKING
def test_owners_that_were_not_asked_for_are_unknown(lacking: Mapping[str, Any], why: str) -> None:
    items = [
        replace(each, rows=each.rows[:0].copy(), **lacking) if each.metric == "sockets"
        else each
        for each in upload()
    ]  # fmt: skip
    found = explained(*items)
    assert f"may have a socket on this host ({why}): nothing tells" in found.sentence
    assert found.who.reason == why


def test_no_conversation_may_be_one_that_is_cut() -> None:
    items = [replace(each, cut=each.probe == "flow") for each in upload()]
    choice = choose(items, "dport:9999")
    error = nothing_passes(choice, "dport:9999", ProbedeckError)
    assert "--cpu off" in error.hint
    assert np.all([each.end_ns % SECOND == 0 for each in items])
