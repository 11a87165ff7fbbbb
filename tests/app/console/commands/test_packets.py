"""Packets of a flow: kept by a key, shown as they come, and written by another."""

from __future__ import annotations

from app.console.dialogs.packets import PacketsBox, both_ways, page
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


def test_a_packet_is_a_line() -> None:
    first, line = str(page([PACKET])).splitlines()
    assert first.split() == ["Time", "Way", "Bytes", "Contents"]
    assert line.split()[1:] == ["in", "1500", "02" * 14 + "45" + "00" * 19]
    assert "packets.release" in str(page([]))


async def test_the_packets_of_a_row_are_shown_and_written() -> None:
    plane = FakePlane()
    async with desk(100, 30, plane) as console:
        await console.feed(flow(1, 10))
        await console.press("w")
        await becomes(console, lambda: "02020202" in console.text)
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
