"""Windows that a stream cuts to their largest flows: nothing is counted twice or forgotten."""

from __future__ import annotations

import contextlib
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.api import wire
from app.api.server.broadcaster import Broadcaster
from app.api.server.windows import TopFlows
from bpf.errors import UsageError
from probes.flow.records import FLOW
from probes.snapshot import Snapshot
from probes.sockets.records import SOCKET
from tests.app.api.conftest import Site
from tests.support.console.feed import window

TCP = 6


def flows(count: int) -> np.ndarray[tuple[int, ...], np.dtype[Any]]:
    rows = np.zeros(count, FLOW)
    rng = np.random.default_rng(7)
    rows["source"][:, :4] = rng.integers(0, 256, (count, 4))
    rows["destination"][:, 3] = 1
    rows["source_port"], rows["destination_port"] = np.arange(count) % 60000, 443
    rows["protocol"], rows["version"] = TCP, 4
    rows["direction"] = rng.integers(0, 2, count)
    rows["packets"] = rng.integers(1, 1000, count)
    rows["bytes"] = rng.permutation(count) * 64 + 64
    return rows


def test_the_largest_flows_stay_and_the_rest_is_summed_exactly() -> None:
    whole = window(flows(1000), 3)
    cut = TopFlows(50).of(whole)
    assert isinstance(cut, Snapshot)
    assert sorted(cut.rows["bytes"]) == sorted(whole.rows["bytes"])[-50:]
    assert len(cut.rest) == 2
    for number, rest in enumerate(cut.rest):
        assert rest.direction == ("ingress", "egress")[number]
        rows, kept = (one.rows[one.rows["direction"] == number] for one in (whole, cut))
        assert rest.flows == len(rows) - len(kept)
        assert rest.packets == rows["packets"].sum() - kept["packets"].sum()
        assert rest.bytes == rows["bytes"].sum() - kept["bytes"].sum()
    (back,) = wire.Decoder().feed(wire.encode(cut))
    assert isinstance(back, Snapshot)
    assert back.rest == cut.rest


async def test_a_reader_that_is_behind_gets_cut_windows_and_no_stale_ones() -> None:
    broadcaster = Broadcaster()
    subscription = broadcaster.open(behind=50)
    now = time.monotonic_ns()
    for number, age in enumerate((9, 8, 3, 0)):
        broadcaster.publish(replace(window(flows(1000), number), end_ns=now - age * 10**9))
    decoder = wire.Decoder()
    got: list[wire.WireRecord] = []
    async for part in subscription.records():
        got += decoder.feed(part)
        if len(got) == 3:
            break
    lost, late, fresh = got
    assert lost == wire.Lost({"flow": 2})
    assert isinstance(late, Snapshot)
    assert isinstance(fresh, Snapshot)
    assert (late.window, len(late.rows), fresh.window, len(fresh.rows)) == (2, 50, 3, 1000)


async def test_packed_records_are_whole_and_much_smaller() -> None:
    """A link of 64 kbit/s carries the windows of a screen: 8,000 bytes a second."""
    broadcaster = Broadcaster()
    subscription = broadcaster.open(top=100)
    rows = flows(680)
    unpacker, decoder, sizes = zlib.decompressobj(zlib.MAX_WBITS + 16), wire.Decoder(), []
    stream = subscription.packed()
    for number in range(5):
        rows["packets"] += 3
        broadcaster.publish(whole := window(rows.copy(), number))
        got: list[wire.WireRecord] = []
        while not got:
            part = await anext(stream)
            got += decoder.feed(unpacker.decompress(part))
        sizes.append(len(part))
    assert isinstance(got[0], Snapshot)
    assert len(got[0].rows) == 100
    assert max(sizes) * 10 < len(wire.encode(whole))


def test_a_small_window_and_other_tables_stay_as_they_are() -> None:
    top = TopFlows(50)
    small = window(flows(50))
    other = Snapshot("mine", "eth0", 1, 1, 0, 1, 2, np.zeros(99, "u8"), {}, 0, 0, 0)
    assert top.of(small) is small
    assert top.of(other) is other


def test_only_the_sockets_of_flows_that_stay_are_sent() -> None:
    whole = window(flows(100), 3)
    sockets = np.zeros(100, SOCKET)
    sockets["near"], sockets["near_port"] = whole.rows["source"], whole.rows["source_port"]
    sockets["far"], sockets["far_port"] = whole.rows["destination"], whole.rows["destination_port"]
    sockets["protocol"], sockets["version"] = TCP, 4
    whole.rows.flags.writeable = True
    whole.rows["direction"] = 1
    table = Snapshot(
        "sockets", "eth0", 3, 1, whole.start_ns, whole.end_ns, whole.end_utc_ns, sockets, {},
        0, 0, 0, metric="sockets",
    )  # fmt: skip
    top = TopFlows(10)
    assert top.of(table) is table
    cut, left = top.of(whole), top.of(table)
    assert isinstance(cut, Snapshot)
    assert isinstance(left, Snapshot)
    assert set(left.rows["near_port"]) == set(cut.rows["source_port"])
    assert left.rest == cut.rest


@pytest.fixture
def records(site: Site) -> Iterator[Any]:
    """Records of a stream of windows with two flows."""
    with contextlib.closing(site.client()) as client, client.stream(10, top=2) as response:
        decoder, parts = wire.Decoder(), response.iter_raw()
        next(parts)
        yield (record for part in parts for record in decoder.feed(part))


def test_each_stream_chooses_how_many_flows_it_gets(site: Site, records: Any) -> None:
    with contextlib.closing(site.client()) as client, client.stream(10) as response:
        parts, decoder = response.iter_raw(), wire.Decoder()
        next(parts)
        site.plane.publish(window(flows(9), 5))
        cut = next(records)
        whole = next(record for part in parts for record in decoder.feed(part))
    assert (len(cut.rows), sum(rest.flows for rest in cut.rest)) == (2, 7)
    assert isinstance(whole, Snapshot)
    assert (len(whole.rows), whole.rest) == (9, ())


def test_a_stream_of_no_flows_is_refused(site: Site) -> None:
    with contextlib.closing(site.client()) as client:
        with pytest.raises(UsageError, match="top"), client.stream(10, top=0):
            pass
        before, status = client.status().utc_ns, client.status()
        assert 0 < before < status.utc_ns
