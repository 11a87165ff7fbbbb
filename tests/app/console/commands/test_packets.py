"""Packets of a flow: kept by a key, shown as they come, and written by another."""

from __future__ import annotations

import pytest

from app.console.dialogs.packets import PacketsBox, both_ways, page, summary
from app.explain.model import ExplainedEnds
from probes.flow.filter import FlowFilter
from probes.ring.options import BY_HAND
from tests.app.console.fake import becomes, desk, flow
from tests.app.console.fake_plane import FakePlane
from tests.probes.ring.fake import PACKET


def test_a_filter_has_both_ways_of_a_conversation() -> None:
    ends = ExplainedEnds("192.0.2.1", 1000, "198.51.100.7", 443, "tcp", "https")
    text = both_ways(ends)
    assert text == (
        "proto:tcp (src:192.0.2.1 dst:198.51.100.7 sport:1000 dport:443 or "
        "src:198.51.100.7 dst:192.0.2.1 sport:443 dport:1000)"
    )
    assert len(FlowFilter.parse(text).conjunctions()) == 2
    ping = ExplainedEnds("2001:db8::1", 0, "2001:db8::2", 0, "icmp6", "")
    assert "port" not in both_ways(ping)


@pytest.mark.parametrize(
    ("packet", "shown"),
    [
        ("4500001d00000000401100000a0000010a0000020035003500090000" + "61", "udp a"),
        ("60000000000911400000" + "00" * 30 + "0035003500090000" + "62", "udp b"),
        ("45000014000000004001" + "00" * 10, "45000014000000004001" + "00" * 10),
        ("4500", "4500"),
        ("", ""),
    ],
)
def test_what_the_headers_say(packet: str, shown: str) -> None:
    assert summary(bytes.fromhex(packet)) == shown


def test_a_packet_is_a_line() -> None:
    first, line = str(page([PACKET])).splitlines()
    assert first.split() == ["Time", "Way", "Bytes", "Contents"]
    assert line.split(maxsplit=1)[1] == "in    1500 ...PA... seq 7 ack 9 win 512 GET / ...."
    assert "packets.release" in str(page([]))


async def test_the_packets_of_a_row_are_shown_and_written() -> None:
    plane = FakePlane()
    async with desk(100, 30, plane) as console:
        await console.feed(flow(1, 10))
        await console.press("w")
        await becomes(console, lambda: "GET /" in console.text)
        assert isinstance(console.app.screen, PacketsBox)
        assert "src:" in str(plane.kept_filter)
        await console.press("W")
        await becomes(console, lambda: plane.written == [BY_HAND])
        await console.press("w")
        assert not isinstance(console.app.screen, PacketsBox)
        await console.app.action_command("packets.write flood")
        await becomes(console, lambda: plane.written == [BY_HAND, "flood"])
        await console.app.action_command("packets.release")
        await becomes(console, lambda: plane.kept_filter is None)
        await console.app.action_command("packets.keep udp")
        await becomes(console, lambda: plane.kept_filter == "udp")
