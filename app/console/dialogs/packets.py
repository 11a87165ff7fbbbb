"""`flow.packets`: the packets of a flow that the ring keeps, as they come."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence

from rich.text import Text
from textual.binding import Binding

from app.console.dialogs.boxes import PolledBox
from app.console.protocol import Console
from app.console.screens.flows.part import flag_letters
from app.explain.model import ExplainedEnds
from bpf.quantities import clock
from probes.control_plane import ControlPlane
from probes.filter.hosts import protocol_name
from probes.ring.options import KeptPacket

_SHORTEST = 20
_TCP = struct.Struct(">4xIIBBH")
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
        super().__init__(f"W: write. {text}", lambda: page(plane.kept_packets(_MOST)))
        self._front = console

    async def action_write(self) -> None:
        await self._front.action_command("packets.write")


def page(packets: Sequence[KeptPacket]) -> Text:
    """Return a line for each packet, the newest first."""
    text = Text(no_wrap=True)
    text.append(f"{'Time':<13}{'Way':<4}{'Bytes':>6} Contents\n" if packets else _NONE, "bold")
    for each in reversed(packets):
        way, at = "out" if each.outgoing else "in", clock(each.utc_ns, milliseconds=True)
        shown = summary(bytes.fromhex(each.data)[each.network_at :])
        text.append(f"{at:<13}{way:<4}{each.length:>6} {shown[:_SHOWN]}\n")
    text.rstrip()
    return text


def summary(packet: bytes) -> str:
    """Return what the header above IP says, and the contents behind it, a dot for each byte that is
    no ASCII letter, digit or sign. A packet that is cut within its headers is hexadecimal."""
    if len(packet) < _SHORTEST:
        return packet.hex()
    protocol, at = (packet[9], 4 * (packet[0] & 15)) if packet[0] >> 4 == 4 else (packet[6], 40)
    inner, said = packet[at:], f"{protocol_name(protocol)} "
    if protocol == socket.IPPROTO_TCP and len(inner) >= 20:
        sequence, answered, begin, flags, window = _TCP.unpack_from(inner)
        said = f"{flag_letters(flags)} seq {sequence} ack {answered} win {window} "
        inner = inner[4 * (begin >> 4) :]
    elif protocol == socket.IPPROTO_UDP:
        inner = inner[8:]
    elif not inner:
        return packet.hex()
    return said + "".join(chr(byte) if 32 <= byte < 127 else "." for byte in inner)


def both_ways(ends: ExplainedEnds) -> str:
    """Return a filter of the packets of a conversation."""
    here, there = (ends.near, ends.near_port), (ends.far, ends.far_port)
    ways = [
        f"src:{of[0]} dst:{to[0]}" + (f" sport:{of[1]} dport:{to[1]}" if of[1] or to[1] else "")
        for of, to in ((here, there), (there, here))
    ]
    return f"proto:{ends.protocol} ({ways[0]} or {ways[1]})"
