"""Own traffic of path tracing: each probe and answer is counted once, by destination."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from probes.path.options import PathOptions
from probes.path.probe import OwnTraffic
from probes.path.records import TRACE, TRACES_TABLE, MeasuredBy
from probes.path.traced import Traced
from probes.snapshot import Snapshot
from tests.probes.path.conftest import MakeHost
from tests.probes.path.wire.frames import PEER

SECOND_NS = 10**9
ONE = Traced("192.0.2.1", (), 6, (), (), 100, 60, 59, 2400, 3304, 1, 2)
TWO = replace(ONE, destination="2001:db8::1", sent=7)


def test_rows_are_the_growth_of_a_period_and_leavers_are_told_at_once() -> None:
    own = OwnTraffic(0)
    assert own.rows([ONE], SECOND_NS // 2) is None
    rows = own.rows([ONE], SECOND_NS)
    assert rows is not None
    assert rows.dtype == TRACE
    assert rows[["probes", "probe_bytes", "answers", "answer_bytes"]].item() == (60, 2400, 59, 3304)
    assert rows[["packets", "unmatched", "foreign", "version", "routers"]].item() == (
        100, 1, 2, 4, 6,
    )  # fmt: skip
    later = replace(ONE, sent=70, sent_bytes=2800)
    own.leave(replace(later, sent=75))
    again = replace(ONE, sent=3)
    rows = own.rows([again, TWO], SECOND_NS + 1)
    assert rows is not None
    assert rows["probes"].tolist() == [3, 7, 15]
    assert rows["version"].tolist() == [4, 6, 4]
    rows = own.rows([], 3 * SECOND_NS)
    assert rows is not None
    assert len(rows) == 0


@pytest.mark.slow
def test_the_table_has_every_probe_once(make_host: MakeHost) -> None:
    host = make_host(PathOptions(rate=50, timeout=0.3))
    items: list[Snapshot] = []
    host.controller.listen(lambda item: items.append(item) if isinstance(item, Snapshot) else None)
    for destination in PEER.values():
        host.controller.trace(destination)
    host.send(2.5, *(host.open(destination) for destination in PEER.values()))
    host.settle()
    for destination in PEER.values():
        host.controller.untrace(destination)
    tables = [item for item in items if item.metric == TRACES_TABLE]
    hops = host.rows()
    rows = np.concatenate([table.rows for table in tables])
    for version in PEER:
        mine = rows[rows["version"] == version]
        probes = int(mine["probes"].sum())
        ended = hops[(hops["version"] == version) & (hops["measured_by"] == MeasuredBy.PROBE)]
        assert probes == len(ended) > 20
        assert 0 < mine["answers"].sum() <= probes
        least = 28 if version == 4 else 48
        assert mine["probe_bytes"].sum() >= probes * least
        assert mine["answer_bytes"].sum() > mine["answers"].sum() * least
    # The periods follow each other, and together they are the whole time.
    for before, after in pairwise(tables):
        assert set(after.rows["since_ns"]) <= {before.end_ns}
