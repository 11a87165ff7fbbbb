"""The way to a destination as a picture in one line.

    me ──0.04── 10.94.0.2 ──·── 10.94.1.2 ══75.4 ms══▶ 10.94.3.2 ──?── 10.94.6.2

A link has the delay that it adds in milliseconds; `·` is little, `?` a hop that does not answer.
The worst link is double. It stays if the picture is shortened: first other routers become numbers,
then the hops on either side of the worst link become one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.cells import cell_len

from app.console.screens.paths.hop import HOP
from app.console.screens.paths.rows import is_notable, shares_of
from bpf.arrays import Row, Rows
from bpf.quantities import duration, milliseconds, percent
from widgets.table.columns import cell
from widgets.table.rows import Pieces
from widgets.tones import Tone

_ME = "me"
_LITTLE = "·"


@dataclass(frozen=True, slots=True)
class _Link:
    """The way from one hop that answers to the next."""

    hop: Row[HOP]
    """At its far end."""
    host: str
    silent: int
    """Number of hops between that do not answer."""
    adds_much: bool

    @property
    def weight(self) -> tuple[float, float, float]:
        """How bad it is: by queues, lost packets, and the delay that it adds."""
        hop = self.hop
        loss = 0.0 if hop["forgiven"] else np.nan_to_num(hop["loss"])
        return hop["queue_ns"], loss, np.nan_to_num(hop["adds"])

    @property
    def is_notable(self) -> bool:
        return any(self.weight[:2]) or self.adds_much

    @property
    def short_host(self) -> str:
        return self.host if self.hop["is_end"] else str(self.hop["ttl"])

    def label(self, *, worst: bool) -> str:
        if self.hop["queue_ns"]:
            return f"▲ {duration(self.hop['queue_ns'] / 1e9)}"
        if self.weight[1]:
            return f"{percent(self.weight[1])} lost"
        if math.isnan(self.hop["adds"]):
            return ""
        if not self.is_notable:
            return _LITTLE
        return milliseconds(self.hop["adds"]) + (" ms" if worst else "")

    def drawn(self, *, worst: bool, line: int = 2) -> Pieces:
        """Return the link, with lines of `line` cells at either side of its label."""
        worst = worst and self.is_notable
        bar = ("═" if worst else "─") * line
        label, silent = self.label(worst=worst), f"?{bar}" * min(self.silent, 3)
        tone = Tone.MUTED
        if self.hop["queue_ns"]:
            tone = Tone.WARN
        elif self.weight[1]:
            tone = Tone.BAD
        elif worst:
            tone = Tone.ACCENT
        end = "▶ " if worst else " "
        text = f" {bar}{silent}{label}{bar if label else ''}{end}"
        return ((text, tone),)


def picture(hops: Rows[HOP], hosts: Sequence[str], width: int) -> Pieces:
    """Return the way over `hops`, all of one path, in at most `width` cells.

    `hosts` has the name of each hop.
    """
    links = _links(hops, hosts)
    if not links:
        return ()
    worst = max(range(len(links)), key=lambda place: links[place].weight)
    drawn: Pieces = ()
    for draw in (_full, _numbered, _folded, _least):
        drawn = draw(links, worst)
        if sum(cell_len(text) for text, _ in drawn) <= width:
            return drawn
    text = "".join(text for text, _ in drawn)
    return ((cell(text, width, "left").rstrip(), Tone.ACCENT),)


def _links(hops: Rows[HOP], hosts: Sequence[str]) -> list[_Link]:
    links: list[_Link] = []
    silent, notable = 0, is_notable(hops, shares_of(hops)).tolist()
    for hop, host, adds_much in zip(hops, hosts, notable, strict=True):
        if hop["is_end"] or hop["answered"]:
            links.append(_Link(hop, host, silent, adds_much))
            silent = 0
        else:
            silent += 1
    return links


def _node(text: str, *, near: bool = True) -> Pieces:
    return ((text, Tone.NORMAL if near else Tone.MUTED),)


def _full(links: Sequence[_Link], worst: int) -> Pieces:
    drawn = _node(_ME)
    for place, link in enumerate(links):
        drawn += link.drawn(worst=place == worst) + _node(link.host)
    return drawn


def _numbered(links: Sequence[_Link], worst: int) -> Pieces:
    """Only routers at the ends of the worst link have names."""
    drawn = _node(_ME)
    for place, link in enumerate(links):
        near = place in (worst - 1, worst) or link.hop["is_end"]
        host = link.host if near else link.short_host
        drawn += link.drawn(worst=place == worst, line=1) + _node(host, near=near)
    return drawn


def _folded(links: Sequence[_Link], worst: int) -> Pieces:
    """Hops before the worst link are one, and hops behind it."""
    drawn = _node(_ME) + _run(links[: max(0, worst - 1)])
    if worst:
        drawn += links[worst - 1].drawn(worst=False, line=1) + _node(links[worst - 1].host)
    drawn += links[worst].drawn(worst=True) + _node(links[worst].host)
    behind = links[worst + 1 :]
    drawn += _run(behind[:-1])
    if behind:
        drawn += behind[-1].drawn(worst=False, line=1) + _node(behind[-1].host)
    return drawn


def _least(links: Sequence[_Link], worst: int) -> Pieces:
    """Only the worst link, and the destination."""
    more: Pieces = ((" …", Tone.MUTED),)
    drawn = _node(_ME) + (more if worst else ())
    drawn += links[worst].drawn(worst=True, line=1) + _node(links[worst].short_host)
    return drawn + more + _node(f" {links[-1].host}") if links[worst + 1 :] else drawn


def _run(links: Sequence[_Link]) -> Pieces:
    """Return some links as one: `─0.1─ 3 hops`."""
    if not links:
        return ()
    added = np.nansum([link.hop["adds"] for link in links])
    label = milliseconds(added) if any(link.is_notable for link in links) else _LITTLE
    hops = sum(1 + link.silent for link in links)
    return ((f" ─{label}─ {hops} hop{'s' if hops > 1 else ''}", Tone.MUTED),)
