"""Packets of a flow: kept by a key, shown as they come, and written by another."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scapy.layers.inet import TCP

from app.console.dialogs.packets import PacketLines, PacketsBox, both_ways
from app.explain.model import ExplainedEnds
from probes.flow.filter import FlowFilter
from probes.ring.options import BY_HAND
from tests.app.console.fake import becomes, desk, flow
from tests.app.console.fake_plane import FakePlane
from tests.probes.monitor.bed import frame
from tests.probes.names.tools import DNS_FRAME, TLS_FRAME, encoded, udp
from tests.probes.ring.fake import PACKET

HELLO = len(TLS_FRAME) - 14 - 20 - 20
"""Bytes of a hello, which newer releases of OpenSSL make longer."""


def _question(name: str) -> str:
    """A DNS question in a packet, in hexadecimal."""
    message = bytes.fromhex("000701000001000000000000") + encoded(name) + bytes.fromhex("00010001")
    return udp("192.0.2.1", "192.0.2.53", (40000, 53), message)[14:].hex()


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
        ("4500001d00000000401100000a0000010a0000020009000900090000" + "6120", "udp len 1 a"),
        ("60000000000911400000" + "00" * 30 + "0009000900090000" + "62", "udp len 1 b"),
        ("4500002400b94001401100000a0000010a000002" + "00" * 16, "udp fragment from byte 8"),
        (DNS_FRAME[14:].hex(), "udp len 123 DNS answer www.example 198.51.100.7 2001:db8::7"),
        (_question("www.example"), "udp len 29 DNS question www.example"),
        (TLS_FRAME[14:].hex(), f"...PA... seq 0 ack 0 win 512 len {HELLO} TLS for shop.example"),
        ("45000014000000004001" + "00" * 10, "45000014000000004001" + "00" * 10),
        ("4500", "4500"),
        ("", ""),
    ],
    # A hello of TLS has random bytes: all workers need the same names.
    ids=["text", "v6", "fragment", "answer", "question", "hello", "no payload", "short", "none"],
)
def test_what_the_headers_say(packet: str, shown: str) -> None:
    data = bytes.fromhex(packet)
    assert PacketLines().summary(data, len(data)) == shown


def test_times_and_numbers_count_from_the_first_packet() -> None:
    decoder = PacketLines()
    assert "packets.release" in str(decoder.page([]))
    ends = [("192.0.2.1", "192.0.2.2"), ("192.0.2.2", "192.0.2.1")]
    wanted = [
        (0, 4_000_000_000, 0, "S", b""),
        (1, 9, 4_000_000_001, "SA", b""),
        (0, 4_000_000_001, 10, "PA", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
        (1, 8, 4_000_000_028, "A", b""),
    ]
    packets = []
    for number, (way, sequence, answered, flags, data) in enumerate(wanted):
        source, destination = ends[way]
        layer = TCP(sport=1, dport=1, seq=sequence, ack=answered, flags=flags, window=5)
        packet = frame(source, destination, layer / data)
        packets.append(
            replace(
                PACKET, utc_ns=PACKET.utc_ns + 1000 * number, outgoing=not way, length=len(packet),
                data=packet.hex(), dropped=number == 3,
            )
        )  # fmt: skip
    decoder.page(packets[:1])
    head, *lines = str(decoder.page(packets[1:])).splitlines()
    assert head == "s from 22:13:20.000 Bytes Contents"
    assert [line.split(maxsplit=3) for line in lines] == [
        ["0.000003", "←", "60", "dropped ....A... seq -1 ack 28 win 5 len 0"],
        ["0.000002", "→", "81", "...PA... seq 1 ack 1 win 5 len 27 GET / HTTP/1.1"],
        ["0.000001", "←", "60", ".S..A... seq 0 ack 1 win 5 len 0"],
    ]


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
        # From the explanation of the row, too.
        await console.press("enter")
        await becomes(console, lambda: "w: packets" in console.text)
        await console.press("w")
        await becomes(console, lambda: isinstance(console.app.screen, PacketsBox))
        await console.app.action_command("packets.write flood")
        await becomes(console, lambda: plane.written == [BY_HAND, "flood"])
        await console.app.action_command("packets.release")
        await becomes(console, lambda: plane.kept_filter is None)
        await console.app.action_command("packets.keep udp")
        await becomes(console, lambda: plane.kept_filter == "udp")
