"""Heavy hitters: the bounds hold against exact counts, and are exact where there is room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from bpf.arrays import Array
from bpf.compiler import Compiler
from probes.snapshot import LossReason, Snapshot
from tests.probes.monitor.given import Flow, Given

BIG = Flow("192.0.2.1", "198.51.100.7", 50000, 443, "tcp")
SOURCES = {f"KEY_{part}": 0 for part in ("DESTINATION", "PROTOCOL", "SOURCE_PORT")} | {
    "KEY_DESTINATION_PORT": 0
}
"""In place of whole flows."""
Counts = dict[tuple[str, int], tuple[int, int]]


def flows_of(count: int) -> list[Flow]:
    """By number, of both versions."""
    return [
        Flow(
            f"2001:db8::{n:x}" if n % 2 else f"10.0.{n >> 8}.{n & 255}",
            "::" if n % 2 else "0.0.0.0",
            n,
        )
        for n in range(count)
    ]


def zipf(count: int, packets: int, seed: int) -> Array:
    """Numbers of flows, as many as `packets`, by Zipf's law of exponent 1.1."""
    weights = 1 / np.arange(1, count + 1) ** 1.1
    return np.random.default_rng(seed).choice(count, packets, p=weights / weights.sum())


def bounds(window: Sequence[Snapshot], unit: str) -> dict[int, tuple[int, int]]:
    """Least and most of each flow, by its number, of the rows of one CPU."""
    rows = window[0].rows
    ports = rows["key"]["flow"]["source_port"].tolist()
    least = rows["value"][unit].astype("i8")
    most = least + rows["value"]["missed"].astype("i8")
    return {p: (lo, hi) for p, lo, hi in zip(ports, least.tolist(), most.tolist(), strict=True)}


def check(found: dict[int, tuple[int, int]], exact: Array, share: float) -> None:
    """The promises of heavy_hitters.c, for traffic of one CPU."""
    assert all(lo <= exact[n] <= hi for n, (lo, hi) in found.items())
    assert set(np.flatnonzero(exact >= exact.sum() * share / 4).tolist()) <= found.keys()


def test_all_are_exact_where_the_candidates_have_room(compiler: Compiler) -> None:
    """All counts are exact, and each window starts empty."""
    chosen = zipf(300, 6000, seed=1)
    sizes = np.random.default_rng(2).integers(60, 1500, len(chosen))
    flows = flows_of(300)
    with Given(compiler, "heavy_hitters", records=45) as app:
        for part in np.array_split(np.arange(len(chosen)), 2):
            app.run(app.packets([flows[n] for n in chosen[part]], bytes=sizes[part]), cpu=0)
            window = app.window()
            exact = np.bincount(chosen[part], sizes[part], 300)
            total = exact.sum()
            found = bounds(window, "bytes")
            assert window[1].rows["value"]["bytes"].sum() == total
            check(found, exact, share=0.01)
            assert all(lo == hi == exact[n] for n, (lo, hi) in found.items())
            (table,) = app.view(window, 300)
            assert len(table.rows) == (exact >= total / 100).sum() > 10
            shares: list[object] = [row[-2:] for row in table.rows]
            assert (
                shares
                == [(pytest.approx(100 * e / total),) * 2 for e in sorted(exact)[::-1]][
                    : len(shares)
                ]
            )


@pytest.mark.parametrize("unit", ["bytes", "packets"])
def test_bounds_hold_where_flows_are_many_times_the_candidates(
    compiler: Compiler, unit: str
) -> None:
    """The true counts lie between the bounds; no flow of a quarter of the share is missing."""
    chosen = zipf(20000, 20000, seed=3)
    sizes = np.random.default_rng(4).integers(60, 1500, len(chosen))
    flows = flows_of(20000)
    by_bytes = int(unit == "bytes")
    with Given(compiler, "heavy_hitters", records=8, SETS=64, BY_BYTES=by_bytes) as app:
        app.run(app.packets([flows[n] for n in chosen], bytes=sizes), cpu=0)
        window = app.window()
    exact = np.bincount(chosen, sizes if by_bytes else None, 20000)
    found = bounds(window, unit)
    check(found, exact, share=0.01)
    assert not window[0].losses
    # 8 * 64 candidates: what a heavy hitter may have missed is a small part of the share.
    heavy = np.flatnonzero(exact >= exact.sum() / 100).tolist()
    assert len(heavy) > 10
    assert max(found[n][1] - found[n][0] for n in heavy) < exact.sum() / 400


def test_what_was_forgotten_is_within_the_bounds(compiler: Compiler) -> None:
    """Flows that come and go, on 16 candidates: none is taken for new that was there before."""
    phases = [(zipf(200, 1000, seed) + 17 * seed) % 200 for seed in range(12)]
    chosen = np.concatenate([np.zeros(5000, int), *phases])
    flows = flows_of(200)
    with Given(compiler, "heavy_hitters", records=8, SETS=2, SHARE=40, BY_BYTES=0) as app:
        app.run(app.packets([flows[n] for n in chosen]), cpu=0)
        found = bounds(app.window(), "packets")
    check(found, np.bincount(chosen, minlength=200), share=0.04)
    assert sum(hi > lo for lo, hi in found.values()) > 10


def test_a_late_flow_is_found_in_a_flood(compiler: Compiler) -> None:
    """A table that fills in order of arrival would not have it."""
    flood = flows_of(9000)
    with Given(compiler, "heavy_hitters", records=8, SETS=64, ENTRIES=2048) as app:
        app.run(app.packets(flood), cpu=0)
        app.give(BIG, repeat=400, cpu=0)
        window = app.window()
        assert not window[0].losses
        (table,) = app.view(window)
    ((*_, least, most),) = table.rows
    share = 100 * 400 / 9400
    assert isinstance(least, float)
    assert isinstance(most, float)
    assert share - 0.25 <= least <= share <= most <= share + 0.25
    assert table.rows[0][:5] == ("192.0.2.1", 50000, "198.51.100.7", 443, "tcp")


def test_cpus_are_added_up(compiler: Compiler) -> None:
    """S2.21: each CPU has its own; where it has no row of a flow, there may be a little of it."""
    noise = flows_of(100)
    with Given(compiler, "heavy_hitters", **SOURCES, SHARE=100) as app:
        app.give(BIG, bytes=1000, repeat=300, cpu=0)
        app.give(Flow(BIG.source, "203.0.113.1", 1, 2), bytes=500, repeat=200, cpu=1)
        app.run(app.packets(noise, bytes=1000), cpu=1)
        app.run(app.packets([Flow("192.0.2.2", "203.0.113.1")]), repeat=1000, cpu=0)
        (table,) = app.view(app.window())
    total = 300_000 + 100_000 + 100_000 + 100_000
    assert table.columns == ("source", "packets/s", "bit/s", "% at least", "% at most")
    assert table.title == "10 % of bytes or more"
    rows: object = table.rows
    assert rows == (
        ("192.0.2.1", 500.0, 3.2e6, *[pytest.approx(400_000 / total * 100)] * 2),
        (
            *("192.0.2.2", 1000.0, 0.8e6, pytest.approx(100_000 / total * 100)),
            pytest.approx((100_000 + 200_000 / 40) / total * 100),
        ),
    )


@pytest.mark.slow
def test_a_full_table_counts_what_is_lost(compiler: Compiler) -> None:
    """No heavy hitter disappears in silence; and the bounds tell what may be missing."""
    flows = flows_of(50)
    with Given(compiler, "heavy_hitters", ENTRIES=16, SHARE=1) as app:
        for _ in range(2):
            app.run(app.packets(flows, bytes=500), repeat=10, cpu=0)
            window = app.window()
            lost = window[0].losses[LossReason.TABLE_FULL]
            value = window[0].rows["value"]
            assert len(value) == 16
            assert value["packets"].sum() + lost.packets == 500
            assert value["bytes"].sum() + lost.bytes == 250_000
            (table,) = app.view(window)
            assert {row[-2:] for row in table.rows} == {(2.0, 2.0 + 100 * lost.bytes / 250_000)}


def test_who_takes_most_is_told(compiler: Compiler) -> None:
    """A flow that certainly has a large part of much traffic, and no other."""
    noise = flows_of(900)

    def told(app: Given, packets: int, **fields: Any) -> tuple[str, ...]:
        app.run(app.packets(noise), cpu=0)
        app.give(BIG, repeat=packets, cpu=0, **fields)
        return app.findings(app.window())

    with Given(compiler, "heavy_hitters", records=8) as app:
        assert told(app, 2100) == (
            "source 192.0.2.1, source port 50000, destination 198.51.100.7, destination port 443, "
            "protocol tcp has 70.0 % of the bytes, 2100 packets/s",
        )
        assert told(app, 900, bytes=1500) == ()  # a lot of bytes, in few packets
        assert told(app, 0) == ()
    with Given(compiler, "heavy_hitters", THRESHOLD=100, **SOURCES) as app:
        assert told(app, 200) == ()  # 18 %
        assert told(app, 300) == ("source 192.0.2.1 has 25.0 % of the bytes, 300 packets/s",)
