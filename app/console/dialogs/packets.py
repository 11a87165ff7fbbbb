"""`flow.packets`: the packets of a flow that the ring keeps, as they come."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.binding import Binding

from app.console.dialogs.polled_box import PolledBox
from app.console.protocol import Console
from app.explain.model import ExplainedEnds
from bpf.quantities import clock
from probes.control_plane import ControlPlane
from probes.ring.options import KeptPacket

_MOST = 16
_NONE = (
    "No packet yet. The ring keeps packets while this is open or closed: :packets.release ends it."
)
_SHOWN = 72
"""Hexadecimal digits in a line."""


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
        text.append(f"{at:<13}{way:<4}{each.length:>6} {each.data[:_SHOWN]}\n")
    text.rstrip()
    return text


def both_ways(ends: ExplainedEnds) -> str:
    """Return a filter of the packets of a conversation."""
    here, there = (ends.near, ends.near_port), (ends.far, ends.far_port)
    ways = [
        f"src:{of[0]} dst:{to[0]}" + (f" sport:{of[1]} dport:{to[1]}" if of[1] or to[1] else "")
        for of, to in ((here, there), (there, here))
    ]
    return f"proto:{ends.protocol} ({ways[0]} or {ways[1]})"
