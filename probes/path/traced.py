"""State of a traced destination, as front ends see it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from probes.path.options import TracedFlow

NO_ROUTER = "no router between: the same network"
"""Note about a destination whose packets come with a TTL as hosts send them."""


class Unprobed(StrEnum):
    """Why a packet cannot become a probe, in the order of `enum unprobed` of path.h."""

    FRAGMENT = "fragments"
    OPTIONS = "IPv4 options"
    EXTENSION = "IPv6 extension headers"
    PROTOCOL = "other protocols"
    """Neither TCP nor UDP nor ICMP."""
    ICMP = "other ICMP messages"
    """No echo requests."""
    OPENING = "TCP SYN, FIN or RST"
    SHORT = "headers cut short"


@dataclass(frozen=True, slots=True)
class MtuStep:
    """A place of the path behind which packets must be smaller."""

    hop: int
    """The last hop that larger packets reach; 0: unknown, or this host."""
    mtu: int
    """Most bytes of a packet behind it."""
    reporter: str
    """Address of the router that reports it; empty: larger packets vanish without a report."""

    def __str__(self) -> str:
        by = f"reported by {self.reporter}" if self.reporter else "larger packets vanish silently"
        where = f" behind hop {self.hop}" if self.hop else ""
        return f"{self.mtu} bytes{where} ({by})"


@dataclass(frozen=True, slots=True)
class PathMtu:
    """Most bytes of a packet, with its IP header, on the way to a destination."""

    mtu: int
    steps: tuple[MtuStep, ...] = ()
    """Where packets must become smaller; none: the interface's MTU holds for the whole path."""
    until: int | None = None
    """The farthest hop that answers, if the destination itself does not: not tested behind it."""

    def __str__(self) -> str:
        where = "; ".join(map(str, self.steps)) or "no link of the path is smaller"
        tail = f"; not tested behind hop {self.until}" if self.until is not None else ""
        return f"path MTU {self.mtu}: {where}{tail}"


@dataclass(frozen=True, slots=True)
class Traced:
    """A destination whose paths are traced."""

    destination: str
    """Its address, as ipaddress writes it."""
    flows: tuple[TracedFlow, ...]
    """Only these; empty: every flow to it."""
    length: int
    """Routers on the way, as far as is known; 0: not yet."""
    live: tuple[int, ...]
    """Hops that are probed at the full rate, from 1."""
    silent: tuple[int, ...]
    """Hops that did not answer, and are tried again once a second."""
    packets: int
    """That the application sent to it since tracing began."""
    sent: int
    """Probes."""
    matched: int
    """Answers that were found to be to one of them."""
    sent_bytes: int = 0
    """Of probes, of requests by user space and of its flow, from the IP header on; like the next
    fields, since tracing began."""
    matched_bytes: int = 0
    """Of the answers, from the IP header on."""
    unmatched: int = 0
    """Answers to a packet of these flows that match no probe."""
    foreign: int = 0
    """Probes of other tracers on this host."""
    notes: tuple[str, ...] = ()
    """Findings about the whole path, a sentence each: `NAT or firewall behind hop 2: ...`."""
    stateful_hop: int = 0
    """The hop behind which guarded probes fail and whole ones do not: address translation or a
    stateful firewall. 0: none is known."""
    finder: int = 0
    """ICMP echo requests that looked for hops beyond the last router that answers probes."""
    unprobed: dict[str, int] = field(default_factory=dict)
    """Packets that could not cause a probe when one was due, by reason: `fragments`."""
    own_flow: str = ""
    """The flow that the tracer sends while no application does, such as `udp:33434`."""
    path_mtu: PathMtu | None = None
    """None: unknown."""
    end: int = 0
    """The nearest hop at which the destination answered an echo request of the finder; 0: none."""
    heard: bool = False
    """Whether packets of the destination came."""
