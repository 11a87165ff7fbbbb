"""Changes of probes on their way, by the quotes of the routers behind."""

from __future__ import annotations

import numpy as np
import pytest

from bpf.arrays import Array
from probes.path.analysis.middleboxes import first_hop
from probes.path.analysis.watch import Analysis
from probes.path.records import PATH, Altered, PathRowKind
from tests.probes.path.analysis.simulated import Flow, path, polls, probes, said

EXPEDITED = 46 << 2


def found(rows: Array) -> Array:
    """MARKING and ALTERED rows of an analysis of HOP rows."""
    analysis = Analysis()
    every = [analysis.add(some, now_ns) for some, now_ns in polls(rows)]
    result: Array = np.concatenate([np.empty(0, PATH), *every], dtype=PATH)
    return result[np.isin(result["kind"], (PathRowKind.MARKING, PathRowKind.ALTERED))]


def quotes(tos: int = 0, *, seconds: float = 15.0, rate: float = 5.0) -> Array:
    """Probes of one flow over five hops, quoted as they were sent."""
    rows = probes(Flow(path(5), end=seconds, rate=rate))
    rows["tos"] = rows["quoted_tos"] = tos
    rows["icmp_type"] = 11
    return rows


def test_nothing_is_told_of_unchanged_probes() -> None:
    assert not len(found(quotes(EXPEDITED)))


def test_a_bleached_dscp_is_told_once_at_the_first_hop_that_quotes_it() -> None:
    rows = quotes(EXPEDITED)
    rows["quoted_tos"][rows["hop"] >= 3] = 0
    (row,) = found(rows)
    assert (row["hop"], row["kind"], row["amount"]) == (3, PathRowKind.MARKING, EXPEDITED << 8)
    assert said(np.array([row], PATH)) == [
        ("info", "10.94.6.2 hop 3: DSCP 46 becomes 0 right before this hop")
    ]


def test_flows_of_another_dscp_do_not_hide_it() -> None:
    marked, plain = quotes(EXPEDITED, rate=2), quotes(0, rate=20)
    plain["source_port"] = 40001
    marked["quoted_tos"][marked["hop"] >= 4] = 8 << 2
    (row,) = found(np.concatenate([marked, plain]))
    assert row["hop"] == 4


def test_a_congestion_mark_is_no_change() -> None:
    rows = quotes(2)
    rows["quoted_tos"][rows["hop"] >= 2] = 3
    assert not len(found(rows))


def test_removed_ecn_is_told() -> None:
    rows = quotes(2)
    rows["quoted_tos"][rows["hop"] >= 2] = 0
    ((_, text),) = said(found(rows))
    assert text.endswith("ECN ECT(0) becomes Not-ECT right before this hop")


def test_a_router_that_quotes_wrongly_by_itself_is_no_middlebox() -> None:
    rows = quotes(EXPEDITED)
    rows["quoted_tos"][rows["hop"] == 3] = 0
    assert not len(found(rows))


@pytest.mark.parametrize("bit", Altered)
def test_altered_fields_are_told_by_their_names(bit: Altered) -> None:
    rows = quotes()
    rows["altered"][rows["hop"] >= 4] = bit
    (row,) = found(rows)
    assert (row["hop"], row["amount"]) == (4, bit)
    ((_, text),) = said(np.array([row], PATH))
    assert "a middlebox changes" in text


def test_a_change_that_moves_to_another_hop_is_told_again() -> None:
    rows = quotes(EXPEDITED, seconds=40)
    begin = rows["sent_ns"].min()
    early = rows["sent_ns"] < begin + 20_000_000_000
    rows["quoted_tos"][rows["hop"] >= np.where(early, 2, 4)] = 0
    assert found(rows)["hop"].tolist() == [2, 4]


def test_few_quotes_decide_nothing() -> None:
    counts = np.zeros(32, "i8")
    counts[1:4] = 2
    assert first_hop(counts, counts) == 0
