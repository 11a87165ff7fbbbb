"""The life of a probe for libbpf: windows, replacements, roll-backs, under traffic."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from probes.snapshot import Item
from tests.probes.objects.sources import COUNTER, compiled, config
from tests.probes.program.tools import (
    Loose,
    Traffic,
    events,
    metric,
    snapshots,
)

PACKETS, SEEN = metric("packets", snapshot=True), metric("seen", snapshot=True)


@pytest.mark.parametrize("is_object", [False, True])
def test_a_map_and_a_variable_count_each_packet_once(
    loose: Loose, tmp_path: Path, is_object: bool
) -> None:
    source = compiled(COUNTER, tmp_path) if is_object else COUNTER
    probe = loose.add(config(source, PACKETS, SEEN))
    items: list[Item] = []
    with Traffic(loose.fd(), burst=10_000) as traffic:
        for _ in range(20):
            time.sleep(0.002)
            items += probe.export()
    items += probe.export()
    assert not events(items)
    for name in ("packets", "seen"):
        values = [t.rows["value"].sum() for t in snapshots(items) if t.metric == name]
        assert len(values) == 21
        assert sum(values) == traffic.sent > 0
