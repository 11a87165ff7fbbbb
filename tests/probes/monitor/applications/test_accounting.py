"""Traffic accounting (S2.17): exact by any key, both IP versions, in every window."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bpf.compiler import CompileError, Compiler
from probes.monitor.applications import views
from probes.snapshot import Loss, LossReason
from tests.probes.monitor.given import Flow, Given

WEB = Flow("192.0.2.1", "198.51.100.7", 50000, 443, "tcp")
WEB6 = Flow("2001:db8::1", "2001:db8:0:7::9", 50000, 443, "tcp")
PARTS = ("SOURCE", "DESTINATION", "PROTOCOL", "SOURCE_PORT", "DESTINATION_PORT")


def key_of(*parts: str) -> dict[str, int]:
    return {f"KEY_{part}": int(part in parts) for part in PARTS}


def counted(rows: list[dict[str, Any]], *names: str) -> dict[Any, tuple[int, int]]:
    """Packets and bytes by these columns; by one, not in a tuple."""
    found = {
        tuple(row[f"key.{name}"] for name in names): (row["value.packets"], row["value.bytes"])
        for row in rows
    }
    return {key[0]: value for key, value in found.items()} if len(names) == 1 else dict(found)


def test_packets_and_bytes_by_destination_of_both_versions(compiler: Compiler) -> None:
    """S2.17, S2.21: one table; exact in each window, whichever CPU has seen what."""
    with Given(compiler, "accounting") as app:
        for cpu in (0, 1):
            app.give(WEB, packets=2, bytes=3000, repeat=5, cpu=cpu)
        app.give(Flow("192.0.2.99", WEB.destination), bytes=60)
        app.give(WEB6, bytes=90, repeat=3)
        expected = {"198.51.100.7": (21, 30060), WEB6.destination: (3, 270)}
        assert counted(app.tables()["traffic"], "destination") == expected
        app.give(WEB6)
        assert counted(app.tables()["traffic"], "destination") == {WEB6.destination: (1, 100)}
        assert app.tables()["traffic"] == []


@pytest.mark.parametrize("records", [1, 45])
def test_the_key_is_chosen(compiler: Compiler, records: int) -> None:
    """S2.17: parts of the 5-tuple, addresses by prefix; in telemetry's frames as in packets."""
    flows = [
        WEB,
        Flow("192.0.2.200", WEB.destination, 50001, 443, "tcp"),
        Flow("192.0.3.1", WEB.destination, 50000, 443, "tcp"),
        WEB6,
        Flow("2001:db8:0:ffff::", WEB6.destination, 1, 53),
        Flow("2001:db8:1::1", WEB6.destination, 1, 53),
    ] * 20
    chosen = key_of("SOURCE", "PROTOCOL", "DESTINATION_PORT")
    with Given(
        compiler, "accounting", records=records, **chosen, PREFIX_V4=24, PREFIX_V6=48
    ) as app:
        packets = app.packets(flows)
        packets["applications"][-6:] = 2  # for another application
        app.run(packets)
        (window,) = app.window()
        (table,) = app.view([window])
    left = 19 if records > 1 else 20
    assert {row[:-1]: row[-1] for row in table.rows} == {
        ("192.0.2.0/24", 443, "tcp", 2.0 * left, 1600.0 * left): pytest.approx(100 / 3),
        ("192.0.3.0/24", 443, "tcp", 1.0 * left, 800.0 * left): pytest.approx(50 / 3),
        ("2001:db8::/48", 443, "tcp", 1.0 * left, 800.0 * left): pytest.approx(50 / 3),
        ("2001:db8::/48", 53, "udp", 1.0 * left, 800.0 * left): pytest.approx(50 / 3),
        ("2001:db8:1::/48", 53, "udp", 1.0 * left, 800.0 * left): pytest.approx(50 / 3),
    }
    assert table.columns == (
        *("source", "destination port", "protocol"),
        *("packets/s", "bit/s", "% of bytes"),
    )
    assert table.title == "traffic by source, destination port, protocol"


def test_what_finds_no_room_is_counted_as_lost(compiler: Compiler) -> None:
    """S2.17: every missing packet is counted as lost; the next window's table has room."""
    hosts = [Flow("192.0.2.1", f"198.51.100.{n}") for n in range(200)]
    with Given(compiler, "accounting", ENTRIES=64) as app:
        for _ in range(2):
            app.run(app.packets(hosts, bytes=np.arange(200) + 60))
            app.run(app.packets(hosts[:1], bytes=60))
            (window,) = app.window()
            value = window.rows["value"]
            lost = window.losses[LossReason.TABLE_FULL]
            assert len(value) == window.occupancy * 64 == 64
            assert value["packets"].sum() + lost.packets == 201
            assert value["bytes"].sum() + lost.bytes == sum(range(60, 260)) + 60
            assert lost == Loss(136, sum(range(124, 260)))


def test_the_largest_come_first(compiler: Compiler) -> None:
    hosts = [Flow("192.0.2.1", f"198.51.100.{n}") for n in range(100)]
    with Given(compiler, "accounting") as app:
        app.run(app.packets(hosts, bytes=100 + np.arange(100) * 7 % 100))
        windows = app.window(seconds=0.5)
        (table,) = app.view(windows, 3)
        assert [row[0] for row in table.rows] == ["198.51.100.57", "198.51.100.14", "198.51.100.71"]
        assert table.rows[0][1:3] == (2.0, 199 * 8 * 2)
        assert app.findings(windows) == ()


@pytest.mark.parametrize("name", ["accounting", "dns", "heavy_hitters"])
def test_a_window_without_packets_is_shown_too(compiler: Compiler, name: str) -> None:
    with Given(compiler, name) as app:
        windows = app.window()
        assert [table.rows for table in app.view(windows) if table.rows] == []
        assert app.view(()) == ()
        assert app.findings(windows) == app.findings(()) == ()


@pytest.mark.parametrize(
    ("name", "define", "reason"),
    [
        ("accounting", key_of(), "nothing in the key"),
        ("heavy_hitters", {"SETS": 100}, "SETS must be a power of two"),
    ],
)
def test_what_cannot_be_chosen_is_refused(
    compiler: Compiler, name: str, define: dict[str, int], reason: str
) -> None:
    with pytest.raises(CompileError, match=reason):
        Given(compiler, name, **define)


def test_an_edited_source_is_shown_by_its_own_rows(compiler: Compiler) -> None:
    """S2.16: an application without a view, or one that its view no longer fits."""
    with Given(compiler, "accounting") as app:
        app.give(WEB, repeat=3)
        windows = app.window()
    for name in ("accounting", "my_own"):
        (table,) = views.tables(name, {}, windows)
        assert table.title == "traffic"
        assert ("198.51.100.7", 3, 300) in [(r[1], r[-2], r[-1]) for r in table.rows]
        assert views.findings(name, {}, windows) == ()
