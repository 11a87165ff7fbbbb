"""Flows over several windows as one record, until a timeout ends it."""

from __future__ import annotations

import time

import numpy as np
import pytest

from app.exporters.exporter import DeliveryError
from app.exporters.ipfix import flow_cache
from app.exporters.ipfix.flow_cache import FlowCache, Timeouts
from app.exporters.ipfix.records import EXPORTED, EndReason, exported
from bpf.arrays import Array
from tests.app.exporters.ipfix.collectors import UdpCollector, deliver
from tests.app.exporters.ipfix.made import SECOND, Output, flow, many, totals, window
from tests.app.exporters.ipfix.reader import number

TIMEOUTS = Timeouts(10 * SECOND, 3 * SECOND)


def rows_at(second: int, *rows: Array) -> Array:
    """Rows of EXPORTED whose packets passed in the window that ends at a second."""
    made = np.zeros(sum(map(len, rows)), EXPORTED)
    source = exported(window(np.concatenate(rows)), owners=False)
    made[:] = source
    made["first_ns"], made["last_ns"] = second * SECOND - 9 * 10**8, second * SECOND - 10**8
    return made


def ends(
    cache: FlowCache, second: int, *rows: Array, cut: bool = False
) -> list[tuple[int, int, int]]:
    """Add a window; return port, packets and reason of the records that end."""
    ended = cache.add(rows_at(second, *rows), second * SECOND, cut=cut)
    fields = ("source_port", "packets", "end_reason")
    return sorted(tuple(int(row[name]) for name in fields) for row in ended)  # type: ignore[misc]


def tcp(port: int, flags: int = 0x10, packets: int = 1) -> Array:
    return flow(
        "10.0.0.5", "192.0.2.9", source_port=port, tcp_flags=flags, packets=packets, tos=port % 7
    )


def test_records_end_by_idle_time_active_time_and_a_closed_connection() -> None:
    cache = FlowCache(TIMEOUTS)
    assert ends(cache, 1, tcp(1), tcp(2), tcp(3)) == []
    assert ends(cache, 2, tcp(1), tcp(3, 0x11, 5)) == [(3, 6, EndReason.CLOSED)]
    assert ends(cache, 3, tcp(1)) == []
    # The last packet of 2 passed 0.1 s before the end of its window.
    assert ends(cache, 4, tcp(1)) == [(2, 1, EndReason.IDLE)]
    for second in range(5, 10):
        assert ends(cache, second, tcp(1)) == []
    assert ends(cache, 10, tcp(1)) == []
    assert ends(cache, 11, tcp(1)) == [(1, 11, EndReason.ACTIVE)]
    assert ends(cache, 12, tcp(1)) == []
    rest = cache.flush()
    assert (rest["packets"].tolist(), rest["end_reason"].tolist()) == ([1], [EndReason.FORCED])
    assert len(cache.flush()) == 0


def test_a_flow_that_the_cpu_budget_cut_ends_for_want_of_resources() -> None:
    cache = FlowCache(TIMEOUTS)
    assert ends(cache, 1, tcp(1), tcp(2)) == []
    assert ends(cache, 2, tcp(1), cut=True) == []
    assert ends(cache, 4, tcp(3)) == [(2, 1, EndReason.NO_ROOM)]
    assert ends(cache, 5, tcp(4)) == [(1, 2, EndReason.NO_ROOM)]
    assert ends(cache, 7, tcp(4)) == [(3, 1, EndReason.IDLE)]


def test_a_record_has_all_of_its_windows() -> None:
    cache = FlowCache(TIMEOUTS)
    one, two = tcp(1, 0x02, 3), tcp(1, 0x18, 4)
    two["tos"] = 5
    cache.add(rows_at(1, one, tcp(9)), SECOND)
    cache.add(rows_at(2, two), 2 * SECOND)
    row = cache.flush()
    row = row[row["source_port"] == 1][0]
    assert (row["packets"], row["bytes"], row["tcp_flags"], row["windows"]) == (7, 132, 0x1A, 2)
    assert (row["first_ns"], row["last_ns"]) == (10**8, 19 * 10**8)
    assert row["tos"] == 1, "of the first packet"


def test_directions_and_tunnels_are_flows_of_their_own() -> None:
    cache = FlowCache(TIMEOUTS)
    again = [tcp(1), tcp(1), tcp(1)]
    again[1]["direction"], again[2]["tunnel"] = 1, 1
    cache.add(rows_at(1, *again), SECOND)
    cache.add(rows_at(2, *again), 2 * SECOND)
    assert cache.flush()["packets"].tolist() == [2, 2, 2]


def test_the_oldest_flows_end_when_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_cache, "MOST_FLOWS", 100)
    cache = FlowCache(TIMEOUTS)
    assert len(cache.add(rows_at(1, many(80)), SECOND)) == 0
    ended = cache.add(rows_at(2, many(50, 80)), 2 * SECOND)
    assert len(ended) == 30
    assert set(ended["end_reason"].tolist()) == {EndReason.NO_ROOM}
    assert (ended["last_ns"] < SECOND).all()
    assert len(cache.flush()) == 100


def test_an_exporter_with_timeouts_keeps_every_packet() -> None:
    collector = UdpCollector()
    output = Output(f"ipfix://127.0.0.1:{collector.port}?active=60s")
    exporter = output.exporter()
    first, second = window(many(500)), window(many(700, 300), 2)
    assert deliver(exporter, first) == 500
    assert deliver(exporter, second) == 700
    assert collector.take().flows == []
    exporter.close()
    found = collector.take()
    packets, size = (int(first.rows[name].sum() + second.rows[name].sum())
                     for name in ("packets", "bytes"))  # fmt: skip
    assert found.sums() == (1000, packets, size)
    assert {number(record, 136) for record in found.flows} == {EndReason.FORCED}
    assert not output.lost
    collector.die()


def test_a_quiet_interface_lets_records_end_too(monkeypatch: pytest.MonkeyPatch) -> None:
    collector = UdpCollector()
    exporter = Output(f"ipfix://127.0.0.1:{collector.port}?active=60s&idle=1s").exporter()
    flows = window(many(10))
    deliver(exporter, flows)
    exporter.tick()
    assert collector.take().flows == []
    later = time.time_ns() + 6 * SECOND
    monkeypatch.setattr(time, "time_ns", lambda: later)
    exporter.tick()
    assert collector.take().sums() == totals(flows.rows)
    assert {number(record, 136) for record in collector.reader.flows} == {EndReason.IDLE}
    collector.die()


def test_a_dead_collector_takes_no_window_into_the_cache() -> None:
    collector = UdpCollector()
    collector.die()
    output = Output(f"ipfix://127.0.0.1:{collector.port}?active=1s&idle=1s")
    exporter = output.exporter()
    exporter.open()
    flows = window(many(100))
    flows.rows.flags.writeable = True
    flows.rows["first_ns"] -= 2 * SECOND
    with pytest.raises(DeliveryError) as first:
        exporter.deliver(flows, 0)
    assert first.value.delivered == 100, "the rows are the exporter's now"
    exporter.open()
    with pytest.raises(DeliveryError) as second:
        exporter.deliver(flows, 0)
    assert second.value.delivered == 0
    exporter.close()
    assert output.lost == [(100, "ended")]
