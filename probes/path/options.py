"""How paths are traced: what an operator chooses."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from bpf.attach.attachment import Hook
from bpf.errors import UsageError

MAX_HOPS = 30
"""Hop limits that are looked at are 1 to this."""
MAX_BURST = 8


class Per(StrEnum):
    """What a rate is of (S3.5)."""

    HOP = "hop"
    """Each hop that answers gets this many probes per second at most."""
    GLOBAL = "global"
    """All hops of a destination together do."""


class Order(StrEnum):
    """Which of the two packets leaves first, the application's own or the probe."""

    PROBE = "probe"
    """The probe: the application's packet is untouched. Measures up to one packet's (with TSO, one
    large segment's) transmission less than the packet itself waits."""
    APPLICATION = "application"
    """The application's, as a clone; what it leaves behind becomes the probe. Measures that much
    more, and the clone no longer belongs to its socket: TCP small queues don't count it, and a
    departure time that fq would keep to is lost."""


class Guard(StrEnum):
    """How a probe that comes as far as the destination is kept from disturbing it.

    An ICMP echo request keeps the application's own checksum, wrong for the probe, with the first
    two: load balancers hash it.
    """

    DISCARD = "discard"
    """It is what every receiver drops: TCP without any flag (RFC 9293, section 3.10.7.4: without
    ACK it is dropped), UDP that promises more bytes than there are."""
    CHECKSUM = "checksum"
    """Its checksum is wrong. Where the receiver trusts its interface, as over veth, none is."""
    NONE = "none"
    """It is a whole packet: firewalls that track connections pass it. TCP takes it for an old
    acknowledgement (without SACK perhaps for a duplicate one), a UDP application for an empty
    datagram (of 4 bytes over IPv6), ping for a duplicate reply."""


class TracedFlow(NamedTuple):
    """One flow to a destination. An ICMP echo's has no ports: both are 0."""

    protocol: int
    source_port: int
    destination_port: int


@dataclass(frozen=True, slots=True)
class PathOptions:
    """How every destination is traced."""

    rate: float = 100.0
    """Probes per second, a maximum (S3.4)."""
    per: Per = Per.HOP
    burst: int = 1
    """Probes that one packet may cause where the rate was not used up; 1: no bursts (S3.19)."""
    order: Order = Order.PROBE
    guard: Guard = Guard.DISCARD
    pass_answers: bool = False
    """Whether the host gets to see the answers to probes too (S3.16)."""
    timeout: float = 3.0
    """Seconds after which a probe without an answer is lost."""
    max_hops: int = MAX_HOPS
    ingress: Hook | None = None
    """XDP or TC_INGRESS, where answers are seen; None: the hook that suits the interface."""

    def check(self) -> None:
        """Raises UsageError for what is not possible."""
        if not 0.1 <= self.rate <= 100_000:
            raise UsageError(f"a rate of {self.rate:g} is not between 0.1 and 100000 probes/s")
        if not 1 <= self.burst <= MAX_BURST:
            raise UsageError(f"a burst of {self.burst} is not between 1 and {MAX_BURST} probes")
        if self.burst > 1 and self.order is Order.APPLICATION:
            raise UsageError("one packet becomes one probe", hint="bursts need the probe first")
        if not 0.05 <= self.timeout <= 60:
            raise UsageError(f"a timeout of {self.timeout:g} is not between 0.05 and 60 seconds")
        if not 1 <= self.max_hops <= MAX_HOPS:
            raise UsageError(f"at most {self.max_hops} hops is not between 1 and {MAX_HOPS}")
