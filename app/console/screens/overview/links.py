"""Use of the host's links: rates of interfaces, their speeds, and the queues before them."""

from __future__ import annotations

import math
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from app.console.live.state import Frame
from app.console.screens.overview.trouble import Kind, Trouble
from bpf.attach.rtnetlink import backlog, lately
from bpf.features import link_speed
from bpf.quantities import bit_rate, byte_size, duration, percent
from probes.snapshot import Peak
from widgets.status import StatusItem
from widgets.tones import Tone

_MOST = 4
"""Most links to read: the busiest ones."""
_LOOKS = 3
"""Looks, a second apart, that must all find packets waiting: a burst fills a queue, too."""
_FULL = 0.95
_BETWEEN = 8 * 24
"""Bits of a frame on Ethernet that no program sees: preamble, checksum, and the gap behind it."""


@dataclass(frozen=True, slots=True)
class LinkUse:
    """One direction of an interface."""

    name: str
    way: str
    bits: float
    """Bits per second of the last window."""
    share: float = math.nan
    """Of the speed, with the gaps between frames; NaN if the speed is unknown."""
    speed: int = 0
    """Bits per second; 0: unknown."""
    queue: str = ""
    """Kind of the queueing discipline in which packets wait; empty if none does."""
    waiting: int = 0
    """Bytes in it."""
    looks: int = 0
    """Consecutive looks that found some."""
    peak: Peak | None = None
    """None if it is unknown."""

    @property
    def is_full(self) -> bool:
        return self.looks >= _LOOKS or self.share >= _FULL

    @property
    def text(self) -> str:
        """`out 932 Mbit/s, 95.1 % of 1.00 Gbit/s, peak 985 Mbit/s in 8.00 ms`."""
        of = f", {percent(min(self.share, 1.0))} of {bit_rate(self.speed)}" if self.speed else ""
        text = f"{self.way} {bit_rate(self.bits)}{of}"
        one = self.peak
        return f"{text}, peak {bit_rate(one.bits)} in {duration(one.ns / 1e9)}" if one else text


class Links:
    """Looks at the busiest links of this host, once a second."""

    def __init__(self) -> None:
        self._looks: dict[str, int] = {}

    def look(self, frame: Frame) -> tuple[LinkUse, ...]:
        """Return the busiest links, the fullest first. The kernel may need some time."""
        links = sorted(_rates(frame), key=lambda each: -each[0].bits)[:_MOST]
        found = [self._link(*each, frame.flows.now_ns) for each in links]
        return tuple(sorted(found, key=lambda one: (one.is_full, one.share, one.bits))[::-1])

    def _link(self, one: LinkUse, gaps: float, now_ns: int) -> LinkUse:
        name, speed = one.name, lately(link_speed, one.name, now_ns)
        share = (one.bits + gaps) / speed if speed else math.nan
        queue, waiting = "", 0
        if one.way == "out":
            with suppress(OSError):
                queue, waiting = backlog(socket.if_nametoindex(name))
            self._looks[name] = self._looks.get(name, 0) + 1 if waiting else 0
        looks = self._looks.get(name, 0) if waiting else 0
        return replace(one, share=share, speed=speed, queue=queue, waiting=waiting, looks=looks)


def _rates(frame: Frame) -> Iterator[tuple[LinkUse, float]]:
    """Yield each direction of an interface that was busy, and the bits per second of its gaps."""
    table, traffic = frame.pulses.links, frame.pulses.flows[-1:]
    rows = table.rows if table is not None else traffic
    seconds = table.seconds if table is not None else float(traffic["seconds"].sum())
    item = table or frame.last
    peaks = {(each.interface, each.direction): each for each in item.peaks} if item else {}
    for row in rows:
        name = (
            row["interface"].decode() if table is not None else frame.last and frame.last.interface
        )
        for way, direction in (("in", "ingress"), ("out", "egress")):
            parts = (way, f"repeated_{way}") if table is not None else (way,)
            size, packets = (
                sum(int(row[f"{part}_{of}"]) for part in parts) for of in ("bytes", "packets")
            )
            if size and name:
                peak = peaks.get((name, direction))
                link = LinkUse(name, way, 8 * size / seconds, peak=peak)
                yield link, packets * _BETWEEN / seconds


def full_links(links: Sequence[LinkUse]) -> Iterator[Trouble]:
    """Yield a sentence for each link that is full."""
    for one in links:
        if one.is_full:
            queue = f", {byte_size(one.waiting)} wait in its {one.queue}" if one.looks else ""
            text = f"Link {one.name} is full: {one.text}{queue}"
            about = "link", one.name, one.way
            yield Trouble(Kind.STRAIN, one.bits, text, Tone.WARN, "flows", None, (), about)


def link_items(links: Sequence[LinkUse]) -> list[StatusItem]:
    """Return the item about the fullest link; without a known speed about the busiest."""
    return [
        StatusItem(one.text, Tone.WARN if one.is_full else Tone.MUTED, 4, label=one.name)
        for one in links[:1]
    ]
