"""The path MTU through real routers with small links, with reports and without."""

from __future__ import annotations

import contextlib
import socket
import time

import pytest

from bpf.attach.attachment import Hook
from bpf.attach.interface import find
from bpf.compiler import Compiler
from probes.hooks import Hooks
from probes.path.active.mtu import MtuSearches
from probes.path.options import PathOptions
from probes.path.probe import PathProbe
from probes.path.traced import MtuStep, PathMtu
from probes.snapshot import Event
from tests.probes.path.active.conftest import KEY, MakeRow, Row
from tests.probes.path.wire.frames import FAMILY, attach

IP_MTU_DISCOVER, PMTUDISC_DO = 10, 2
VERSIONS = pytest.mark.parametrize("version", [4, 6])


def text(packed: bytes, version: int) -> str:
    return socket.inet_ntop(
        *((socket.AF_INET, packed[:4]) if version == 4 else (socket.AF_INET6, packed))
    )


def searched(row: Row, version: int, seconds: float = 25) -> tuple[PathMtu | None, float]:
    """Search until the end. Returns the result, and the seconds that it took."""
    searches = MtuSearches(find(row.interface), 12, KEY)
    destination = row.destination(version)
    started = time.monotonic()
    try:
        searches.start(destination)
        while not searches.is_over(destination):
            assert time.monotonic() - started < seconds
            searches.poll()
            time.sleep(0.05)
        return searches.result(destination), time.monotonic() - started
    finally:
        searches.close()


def traced_by(compiler: Compiler, row: Row, options: PathOptions) -> PathProbe:
    """A path probe that only the test polls. Unlike others of the tests, its key is its own."""
    hooks = Hooks(attach)
    return PathProbe(compiler, find(row.interface), Hook.TC_INGRESS, hooks, options)


def no_reports(row: Row, node: str) -> None:
    """Have a router drop its reports of packets that are too big."""
    row.nft(node, "add table inet t; add chain inet t c { type filter hook output priority 0; }; "
            "add rule inet t c icmp type destination-unreachable icmp code frag-needed drop; "
            "add rule inet t c icmpv6 type packet-too-big drop")  # fmt: skip


def no_pings(row: Row) -> None:
    row.nft(
        "server",
        "add table inet t; add chain inet t c { type filter hook input priority 0; }; "
        "add rule inet t c icmp type echo-request drop; "
        "add rule inet t c icmpv6 type echo-request drop",
    )


@VERSIONS
def test_a_path_without_a_smaller_link(make_row: MakeRow, version: int) -> None:
    result, _ = searched(make_row(), version)
    assert result == PathMtu(1500)
    assert str(result) == "path MTU 1500: no link of the path is smaller"


@VERSIONS
def test_routers_report_two_smaller_links(make_row: MakeRow, version: int) -> None:
    row = make_row()
    row.mtu(2, 1400)
    row.mtu(3, 1300)
    result, _ = searched(row, version)
    by = [text(row.router(hop, version), version) for hop in (2, 3)]
    assert result == PathMtu(1300, (MtuStep(2, 1400, by[0]), MtuStep(3, 1300, by[1])))


@pytest.mark.slow
@VERSIONS
def test_a_black_hole(make_row: MakeRow, version: int) -> None:
    """No report comes: the size and the hop are found all the same."""
    row = make_row()
    row.mtu(2, 1345)
    no_reports(row, "r2")
    result, seconds = searched(row, version)
    assert result == PathMtu(1345, (MtuStep(2, 1345, ""),))
    assert "1345 bytes behind hop 2 (larger packets vanish silently)" in str(result)
    assert seconds < 18


@pytest.mark.slow
def test_a_destination_that_answers_no_ping(make_row: MakeRow) -> None:
    """The farthest router takes its place."""
    row = make_row()
    row.mtu(1, 1492)
    no_pings(row)
    result, _ = searched(row, 4)
    assert result == PathMtu(1492, (MtuStep(1, 1492, text(row.router(1, 4), 4)),), 4)
    assert str(result).endswith("; not tested behind hop 4")


@pytest.mark.slow
def test_a_silent_router_before_a_black_hole(make_row: MakeRow) -> None:
    """The last hop that answers large packets is named."""
    row = make_row(silent=("r2",))
    row.mtu(2, 1300)
    no_reports(row, "r2")
    result, _ = searched(row, 4)
    assert result == PathMtu(1300, (MtuStep(1, 1300, ""),))


@pytest.mark.slow
def test_no_hop_answers(make_row: MakeRow) -> None:
    row = make_row(routers=1, silent=("r1",))
    no_pings(row)
    result, _ = searched(row, 4)
    assert result is None


@pytest.mark.slow
def test_a_traced_destination_tells_its_path_mtu(make_row: MakeRow, compiler: Compiler) -> None:
    """Also while programs of path tracing see the requests and their answers."""
    row = make_row()
    row.mtu(3, 1300)
    probe = traced_by(compiler, row, PathOptions(mtu=True))
    events: list[str] = []
    try:
        for destination in row.server.values():
            probe.trace(destination)
        deadline = time.monotonic() + 10
        while len(events) < 2 and time.monotonic() < deadline:
            events += [item.text for item in probe.export() if isinstance(item, Event)]
            time.sleep(0.1)
        found = probe.traced()
    finally:
        probe.close()
    for version, traced in zip((4, 6), found, strict=True):
        by = text(row.router(3, version), version)
        assert traced.path_mtu == PathMtu(1300, (MtuStep(3, 1300, by),))
        words = f"path MTU 1300: 1300 bytes behind hop 3 (reported by {by})"
        assert f"{row.server[version]}: {words}" in events
        assert (traced.packets, traced.sent, traced.foreign) == (0, 0, 0)
        assert traced.sent_bytes > 1300


@VERSIONS
def test_a_report_about_an_application_is_told(
    make_row: MakeRow, compiler: Compiler, version: int
) -> None:
    """Without a search: the MTU, and the router and its hop."""
    row = make_row()
    row.mtu(2, 1300)
    probe = traced_by(compiler, row, PathOptions())
    events: list[str] = []
    application = socket.socket(FAMILY[version], socket.SOCK_DGRAM)
    if version == 4:
        application.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, PMTUDISC_DO)
    application.connect((row.server[version], 9))
    try:
        probe.trace(row.server[version])
        deadline = time.monotonic() + 10
        sent = 0
        while not events and time.monotonic() < deadline:
            with contextlib.suppress(OSError):  # refused, or larger than the known path MTU
                application.send(bytes(1400 if sent % 20 == 10 else 100))
            sent += 1
            if sent % 10 == 0:
                items = probe.export()
                events += [
                    item.text for item in items if isinstance(item, Event) and "MTU" in item.text
                ]
            time.sleep(0.02)
        (found,) = probe.traced()
    finally:
        application.close()
        probe.close()
    by = text(row.router(2, version), version)
    assert found.path_mtu == PathMtu(1300, (MtuStep(2, 1300, by),))
    assert events == [f"{row.server[version]}: {found.path_mtu}"]
