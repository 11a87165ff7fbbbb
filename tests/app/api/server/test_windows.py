"""Which window an answer is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from app.api.models import UnknownError
from app.api.server.windows import find
from probes.path.records import PathRowKind, ProbeOutcome
from probes.reports import ProbeInfo
from probes.snapshot import Snapshot
from tests.app.api.fake import config, window
from tests.support import paths

METRICS = ("ingress.packets", "ingress.bytes")
INFO = ProbeInfo("counter", False, 1, None, 4, (), METRICS, "", config())
THREE = [table for number in (1, 2, 3) for table in window("counter", number, METRICS)]


def named(tables: Sequence[Snapshot]) -> list[tuple[int, str]]:
    return [(table.window, table.metric) for table in tables]


def test_the_latest_whole_window_is_given() -> None:
    assert named(find(THREE, INFO, None)) == [(3, "packets"), (3, "bytes")]
    # Its second table is still to come.
    assert named(find(THREE[:-1], INFO, None)) == [(2, "packets"), (2, "bytes")]
    assert named(find(THREE[:1], INFO, None)) == [(1, "packets")]


def test_another_generations_window_may_have_had_other_metrics() -> None:
    info = replace(INFO, generation=2, metrics=(*METRICS, "egress.packets"))
    assert named(find(THREE, info, None)) == [(3, "packets"), (3, "bytes")]


def test_an_older_window_is_given_or_the_range_that_is_kept() -> None:
    other = window("other", 9, METRICS)
    assert named(find([*THREE, *other], INFO, 2)) == [(2, "packets"), (2, "bytes")]
    for number in (4, 9, 1 << 70):
        with pytest.raises(UnknownError, match=r"windows 1 to 3 are"):
            find([*THREE, *other], INFO, number)
    with pytest.raises(UnknownError, match="no window of counter has ended yet"):
        find(other, INFO, None)


def test_a_probe_that_came_again_is_not_answered_with_its_predecessor() -> None:
    again = window("counter", 1, METRICS)
    assert find([*THREE, *again], INFO, None) == again
    with pytest.raises(UnknownError, match="windows 1 to 1 are"):
        find([*THREE, *again], INFO, 3)


def test_a_built_in_probes_tables_are_all_that_there_are() -> None:
    told = [paths.told(PathRowKind.SUMMARY, window=number) for number in (2, 3)]
    hops = [paths.probes(ProbeOutcome.ANSWERED, window=number) for number in (1, 2, 3)]
    info = replace(INFO, name="path", metrics=("hops", "paths"))
    kept = [hops[0], hops[1], told[0], hops[2]]
    assert find(kept, info, None) == (hops[2],)
    assert find(kept, info, 2) == (hops[1], told[0])
    assert find([*kept, told[1]], info, None) == (hops[2], told[1])
