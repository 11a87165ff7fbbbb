"""Operator's options of path tracing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, NamedTuple

from bpf.attach.attachment import Hook
from bpf.errors import UsageError
from probes.config.options import setting

PATHS = "Paths"
"""Heading of the options in the help."""
MAX_HOPS = 30
"""Largest hop limit of a probe."""
MAX_BURST = 8
MAX_DESTINATIONS = 128
"""Most destinations at a time."""


class Per(StrEnum):
    """Scope of the probe rate (S3.5)."""

    HOP = "hop"
    """Each hop that answers gets at most this many probes per second."""
    GLOBAL = "global"
    """All hops of a destination together get at most this many."""


class Order(StrEnum):
    """Which packet leaves first: the application's own or the probe."""

    PROBE = "probe"
    """The probe: the application's packet is untouched. Measures up to one packet's (with TSO, one
    large segment's) transmission time less than the packet itself waits."""
    APPLICATION = "application"
    """The clone carries the application's data; the original skb becomes the probe. Measures that
    much more. The clone does not belong to the socket: TCP small queues do not count it, and a
    departure time for fq is lost."""


class Guard(StrEnum):
    """How the destination is kept from acting on a probe.

    With DISCARD and CHECKSUM an ICMP echo request keeps the application's own checksum, wrong for
    the probe, because load balancers hash it.
    """

    DISCARD = "discard"
    """Every receiver drops it: TCP without any flag (RFC 9293, section 3.10.7.4: no ACK), UDP that
    claims more bytes than there are."""
    CHECKSUM = "checksum"
    """The checksum is wrong. A receiver that trusts its interface, as over veth, does not
    notice."""
    NONE = "none"
    """The probe is a valid packet and passes stateful firewalls. TCP takes it for an old
    acknowledgement (without SACK perhaps for a duplicate one), a UDP application for an empty
    datagram (of 4 bytes over IPv6), ping for a duplicate reply."""


class Guarded(StrEnum):
    """The probes that the guard applies to."""

    END = "end"
    """Probes that may reach the destination. Other probes are whole packets of their flow, which
    pass address translation and stateful firewalls."""
    ALL = "all"
    """Every probe."""


class OwnProtocol(StrEnum):
    """The protocol of a flow that the tracer itself sends."""

    ICMP = "icmp"
    """Echo requests; the reply measures the destination."""
    UDP = "udp"
    """Datagrams of eight bytes to a high port; "port unreachable" measures the destination."""
    TCP = "tcp"
    """SYNs; the SYN-ACK or RST measures the destination."""


_OWN_PORTS = {OwnProtocol.ICMP: 0, OwnProtocol.UDP: 33434, OwnProtocol.TCP: 443}


@dataclass(frozen=True, slots=True)
class OwnFlow:
    """A flow that the tracer sends to a destination while no application does."""

    protocol: OwnProtocol
    port: int
    """Of the destination; 0 for ICMP."""

    @staticmethod
    def parse(text: str) -> OwnFlow:
        """Read `icmp`, `udp`, `tcp:80`. Raises UsageError."""
        name, _, port = text.partition(":")
        if name not in tuple(OwnProtocol):
            raise UsageError(
                f"{text!r} is no flow without an application",
                hint="icmp, udp, tcp, udp:PORT or tcp:PORT",
            )
        protocol = OwnProtocol(name)
        if not port and ":" not in text:
            return OwnFlow(protocol, _OWN_PORTS[protocol])
        if protocol is OwnProtocol.ICMP:
            raise UsageError("ICMP has no ports", hint="icmp")
        if not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
            raise UsageError(f"{port!r} is no port", hint="1 to 65535")
        return OwnFlow(protocol, int(port))

    def __str__(self) -> str:
        return f"{self.protocol}:{self.port}" if self.port else str(self.protocol)


class TracedFlow(NamedTuple):
    """One flow to a destination. Both ports of an ICMP echo are 0."""

    protocol: int
    source_port: int
    destination_port: int


@dataclass(frozen=True, slots=True)
class PathOptions:
    """Options for all destinations: `[paths]`, options of commands, and `path.set`."""

    PREFIX: ClassVar = "path"

    rate: float = setting(PATHS, 100.0, "Most probes a second, 0.1 to 100000.", "N")
    """S3.4."""
    per: Per = setting(PATHS, Per.HOP, "Count the rate for each hop, or for a destination.")
    burst: int = setting(PATHS, 1, "Probes that one packet may cause, 1 to 8.", "N")
    """If the rate was not used up (S3.19)."""
    order: Order = setting(PATHS, Order.PROBE, "Send the probe or the application's packet first.")
    guard: Guard = setting(PATHS, Guard.DISCARD, "Defect that makes the destination drop a probe.")
    guarded: Guarded = setting(
        PATHS, Guarded.END, "Guard probes that may reach the destination, or all probes."
    )
    pass_answers: bool = setting(PATHS, False, "Let the host see the answers, too.")
    """S3.16."""
    timeout: float = setting(
        PATHS, 3.0, "Count a probe as lost after this time, 0.05 to 60.", "SECONDS"
    )
    max_hops: int = setting(PATHS, MAX_HOPS, "Highest TTL or hop limit, 1 to 30.", "N")
    mtu: bool = setting(PATHS, False, "Find the path MTU by packets of several sizes.")
    destinations: int = 1
    """Destinations that must find room at a time. Memory is made for more if they are few."""
    ingress: Hook | None = None
    """XDP or TC_INGRESS, where answers are seen; None: the hook that suits the interface."""

    def check(self) -> None:
        """Raises UsageError if an option is out of range."""
        if not 0.1 <= self.rate <= 100_000:
            raise UsageError(f"a rate of {self.rate:g} is not between 0.1 and 100000 probes/s")
        if not 1 <= self.burst <= MAX_BURST:
            raise UsageError(f"a burst of {self.burst} is not between 1 and {MAX_BURST} probes")
        if self.burst > 1 and self.order is Order.APPLICATION:
            raise UsageError("bursts need the probe to leave first", hint="burst 1, or order probe")
        if not 0.05 <= self.timeout <= 60:
            raise UsageError(f"a timeout of {self.timeout:g} is not between 0.05 and 60 seconds")
        if not 1 <= self.destinations <= MAX_DESTINATIONS:
            raise UsageError(
                f"{self.destinations} destinations are too many",
                hint=f"at most {MAX_DESTINATIONS} are traced at a time",
            )
        if not 1 <= self.max_hops <= MAX_HOPS:
            raise UsageError(f"max_hops = {self.max_hops} is not between 1 and {MAX_HOPS}")
