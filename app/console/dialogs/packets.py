"""`flow.packets`: the packets of a flow that the ring keeps, as they come."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Sequence

from rich.text import Text
from textual.binding import Binding

from app.console.dialogs.boxes import PolledBox
from app.console.protocol import Console
from app.explain.model import ExplainedEnds
from bpf.quantities import clock
from probes.control_plane import ControlPlane
from probes.filter.hosts import address_text, protocol_name
from probes.flow.services import flag_letters
from probes.names.learned import dns_names, dns_question, tls_server_name
from probes.ring.options import KeptPacket

_SHORTEST = 20
_TCP = struct.Struct(">4xIIBBH")
_ACK, _HALF, _FRAGMENT = 16, 1 << 31, 0x1FFF
_DNS_PORTS, _ANSWER = {53, 5353}, 0x80
_HTTP = re.compile(rb"[A-Z]{3,7} [!-~]+ HTTP/1|HTTP/1\.[01] [1-5]")
_MOST = 16
_NONE = (
    "No packet yet. The ring keeps packets while this is open or closed: :packets.release ends it."
)
_SHOWN = 80
"""Characters of a packet's headers and contents."""


class PacketsBox(PolledBox):
    """The newest packets that pass a filter."""

    BINDINGS = [Binding("w", "dismiss", show=False), Binding("W", "write", show=False)]
    DEFAULT_CSS = "PacketsBox > .box { width: 110; }"

    def __init__(self, console: Console, plane: ControlPlane, text: str) -> None:
        lines = PacketLines()
        super().__init__(f"W: write. {text}", lambda: lines.page(plane.kept_packets(_MOST)))
        self._front = console

    async def action_write(self) -> None:
        await self._front.action_command("packets.write")


class PacketLines:
    """Lines of packets. Times and numbers of TCP count from the first packet that it has seen."""

    def __init__(self) -> None:
        self._begin_ns = 0
        self._first: dict[bytes, int] = {}
        """First number of TCP, by address and port of the sender."""

    def page(self, packets: Sequence[KeptPacket]) -> Text:
        """Return a line for each packet, the newest first."""
        text = Text(no_wrap=True)
        lines = []
        for each in packets:
            self._begin_ns = self._begin_ns or each.utc_ns
            since = f"{(each.utc_ns - self._begin_ns) / 1e9:.6f}"
            dropped = "dropped " if each.dropped else ""
            packet = bytes.fromhex(each.data)[each.network_at :]
            shown = dropped + self.summary(packet, each.length - each.network_at)
            way = "→" if each.outgoing else "←"
            lines.append(f"{since:>16} {way} {each.length:>6} {shown[:_SHOWN]}")
        begin = f"s from {clock(self._begin_ns, milliseconds=True)}"
        text.append(f"{begin} Bytes Contents\n" if packets else _NONE, "bold")
        text.append("\n".join(reversed(lines)))
        return text

    def summary(self, packet: bytes, length: int) -> str:
        """Return the numbers of the header above IP, and the contents. These are a question or
        server's name, the first line of HTTP, or else the text, with a dot for each other byte.

        `length` is the packet's length on the wire. A packet that is cut within its headers is
        hexadecimal.
        """
        if len(packet) < _SHORTEST:
            return packet.hex()
        is_v4 = packet[0] >> 4 == 4
        protocol, at = (packet[9], 4 * (packet[0] & 15)) if is_v4 else (packet[6], 40)
        ends = packet[12:20] if is_v4 else packet[8:40]
        told, inner = f"{protocol_name(protocol)} ", packet[at:]
        if is_v4 and (offset := int.from_bytes(packet[6:8]) & _FRAGMENT):
            return f"{told}fragment from byte {8 * offset}"
        if protocol == socket.IPPROTO_TCP and len(inner) >= _TCP.size:
            half = len(ends) // 2
            told, head = self._tcp(inner, ends[:half] + inner[:2], ends[half:] + inner[2:4])
        elif protocol == socket.IPPROTO_UDP:
            head = 8
        elif inner:
            head = 0
        else:
            return packet.hex()
        size = int.from_bytes(packet[2:4]) if is_v4 else at + int.from_bytes(packet[4:6])
        # A large segment may be too long for its header.
        size = max((size if size > at else length) - at - head, 0)
        return f"{told}len {size} {_contents(protocol, inner, inner[head : head + size])}".rstrip()

    def _tcp(self, inner: bytes, near: bytes, far: bytes) -> tuple[str, int]:
        sequence, answered, begin, flags, window = _TCP.unpack_from(inner)
        parts = [flag_letters(flags), f"seq {self._since(near, sequence)}"]
        if flags & _ACK:
            parts.append(f"ack {self._since(far, answered)}")
        return f"{' '.join(parts)} win {window} ", 4 * (begin >> 4)

    def _since(self, end: bytes, number: int) -> int:
        """Return a number of TCP from the first one of its sender; older ones are negative."""
        return (number - self._first.setdefault(end, number) + _HALF) % (2 * _HALF) - _HALF


def _contents(protocol: int, inner: bytes, data: bytes) -> str:
    ports = {int.from_bytes(inner[:2]), int.from_bytes(inner[2:4])}
    is_dns = protocol == socket.IPPROTO_UDP and ports & _DNS_PORTS
    if is_dns and (name := dns_question(data)):
        if data[2] < _ANSWER:
            return f"DNS question {name}"
        found = [
            address_text(each.address, 4 if len(each.address) == 4 else 6)
            for each in dns_names(data)
        ]
        return " ".join([f"DNS answer {name}", *found])
    if name := tls_server_name(data):
        return f"TLS for {name}"
    if _HTTP.match(data):
        data = data.split(b"\r\n")[0]
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in data)


def both_ways(ends: ExplainedEnds) -> str:
    """Return a filter of the packets of a conversation."""
    here, there = (ends.near, ends.near_port), (ends.far, ends.far_port)
    ways = [
        f"src:{of[0]} dst:{to[0]}" + (f" sport:{of[1]} dport:{to[1]}" if of[1] or to[1] else "")
        for of, to in ((here, there), (there, here))
    ]
    return f"proto:{ends.protocol} ({ways[0]} or {ways[1]})"
