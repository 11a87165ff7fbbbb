"""Destinations of this host's connections. The kernel measures round-trip times of TCP, without a
probe."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from app.commands.flow_view import QUIET_NS
from app.console.live.frames import Frame
from app.console.live.owners import LIVE_SOCKET, OwnerView
from app.console.screens.paths.hop import PathKey
from bpf.arrays import Rows
from bpf.attach.rtnetlink import lately, network
from bpf.quantities import age, duration
from bpf.sockets.diag import TCP, UDP
from probes.filter.hosts import address_text
from probes.flow.records import hash_keys
from probes.path.traced import NO_ROUTER
from probes.sockets.records import Limit
from widgets.tones import Tone

_MOST = 30
"""Destinations in the list."""
_QUEUE_S = 0.005
"""A delay above the least round trip that is worth a warning."""


@dataclass(frozen=True, slots=True)
class Untraced:
    """The connections to one destination; times are of the one with the most bytes."""

    key: PathKey
    rtt: float
    """Seconds; NaN before the first answer."""
    least: float
    connections: int
    bytes: int
    """Payload of both directions in the last window."""
    idle: float
    """Seconds since the last packet; 0 while packets pass."""
    is_tcp: bool = True
    unanswered: int = 0
    """Seconds for which the connection has repeated packets in vain."""
    is_held: bool = False
    """Whether the receiver's window limits the connection: its acknowledgements come late, too."""
    network: str = ""
    """Prefix of the route; empty if another host or namespace has the connection."""
    is_near: bool = False
    """Whether no router stands between."""

    @property
    def state(self) -> tuple[str, Tone]:
        """A sentence about the destination, and its tone."""
        if self.idle:
            return f"the flow has sent nothing for {age(self.idle)}", Tone.MUTED
        if self.unanswered or (self.is_tcp and math.isnan(self.rtt)):
            since = f" since {age(self.unanswered)}" if self.unanswered else " yet"
            return f"no answer{since}", Tone.WARN
        above = max(0.0, self.rtt - self.least)
        if self.is_held:
            return "its window is full: it reads slowly", Tone.WARN
        if above > _QUEUE_S:
            return f"{duration(above)} above least", Tone.WARN
        if not self.is_tcp:
            return "UDP: Enter times its DNS answers", Tone.MUTED
        return (NO_ROUTER if self.is_near else ""), Tone.MUTED


def untraced(frame: Frame, traced: Collection[str] = (), *, local: bool = False) -> list[Untraced]:
    """Return the largest destinations of every shown host but those `traced`, the largest first.

    `local`: this host has the connections, so its routes tell their networks.
    """
    found = [one for part in frame.hosts for one in _of(part.frame, part.host, local)
             if one.key.destination not in traced]  # fmt: skip
    found.sort(key=lambda one: (one.bytes, -one.idle), reverse=True)
    return found[:_MOST]


def _of(frame: Frame, host: str, local: bool) -> Iterator[Untraced]:
    sockets = frame.owners.sockets
    # Listeners have no other end, and a packet that found no socket is no connection.
    known = (sockets["state"] > 0) | (sockets["limit"] == Limit.NO_ANSWER)
    wanted = (sockets["protocol"] == TCP) & (sockets["state"] != 10) & known
    rows = sockets[wanted | (sockets["protocol"] == UDP) & sockets["far"].any(axis=1)]
    if not len(rows):
        return
    far = np.zeros(len(rows), [("far", rows.dtype["far"]), ("version", "u8")])
    far["far"], far["version"] = rows["far"], rows["version"]
    groups = hash_keys(far.view("u8").reshape(len(rows), -1))
    _, inverse = np.unique(groups, return_inverse=True)
    here = os.stat("/proc/self/ns/net").st_ino if local else -1
    for group in range(int(inverse.max()) + 1):
        yield _one(rows[inverse == group], frame.owners, host, here)


def _network(address: str) -> tuple[str, bool]:
    """Return the network of an address, and whether it is near."""
    try:
        return network(address)
    except OSError:
        return "no route", False


def _one(rows: Rows[LIVE_SOCKET], owners: OwnerView, host: str, here: int) -> Untraced:
    """`here` is the inode of the network namespace whose routes are known."""
    now_ns = owners.now_ns
    amount = (rows["sent"] + rows["received"]) * (rows["seen_ns"] >= now_ns - QUIET_NS)
    measured = np.where(rows["rtt_us"] > 0, amount + 1, 0)
    row = rows[int(measured.argmax())]
    timed = bool(row["rtt_us"])
    idle_ns = now_ns - max(int(rows["seen_ns"].max()), owners.cut_ns)
    address = address_text(row["far"].tobytes(), int(row["version"]))
    vain = row["limit"] == Limit.NO_ANSWER
    route_of = lately(_network, address, now_ns) if row["netns"] == here else ("", False)
    return Untraced(
        PathKey(address, host=host),
        int(row["rtt_us"]) / 1e6 if timed else math.nan,
        int(row["min_rtt_us"]) / 1e6 if timed else math.nan,
        len(rows),
        int(amount.sum()),
        idle_ns / 1e9 if idle_ns > QUIET_NS else 0.0,
        bool(row["protocol"] == TCP),
        max(1, int(row["limit_s"])) if vain else 0,
        bool(row["limit"] == Limit.RECEIVER),
        *route_of,
    )
