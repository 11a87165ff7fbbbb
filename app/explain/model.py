"""An explanation of one conversation, as values. They know no screen and become text or JSON."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ExplainedEnds:
    """The two ends of a conversation; `near` is the end on this host."""

    near: str
    near_port: int
    far: str
    far_port: int
    protocol: str
    """`tcp`, `udp`, ... or the number."""
    service: str
    """By port, such as `https`."""

    def __str__(self) -> str:
        if not (self.near_port or self.far_port):
            return f"{self.protocol} {self.near} - {self.far}"
        near, far = _end(self.near, self.near_port), _end(self.far, self.far_port)
        return f"{self.protocol} {near} - {far}"


@dataclass(frozen=True, slots=True)
class ExplainedOwner:
    """The owner of the socket on this host. Texts are empty, and numbers 0, if unknown."""

    process: str = ""
    pid: int = 0
    user: str = ""
    unit: str = ""
    container: str = ""
    pod: str = ""
    source: str = ""
    """How the owner is known: `the process has a descriptor of the socket`."""
    holders: int = 0
    """Processes that hold the socket."""
    reason: str = ""
    """Why there is no owner; empty if there is one."""


@dataclass(frozen=True, slots=True)
class LimitSpan:
    """Seconds of the last minute with one verdict."""

    limit: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ExplainedLimit:
    """The limit of the conversation, and the numbers behind the verdict; 0 if unknown."""

    limit: str = ""
    """Label of the verdict, such as `queue`; empty without a verdict."""
    since_s: int = 0
    """Seconds since the verdict began."""
    text: str = ""
    """With the number that decided: `queue +80.0 ms`."""
    minute: tuple[LimitSpan, ...] = ()
    """Verdicts of the last minute, the longest first."""
    rtt_us: int = 0
    floor_us: int = 0
    """The least round-trip time: the path without queues."""
    queue_us: int = 0
    retransmitted: float = 0.0
    """Share of the segments of the last minute, 0 to 1."""
    lost: float = 0.0
    """Share without segments that were sent again for nothing."""
    segments: int = 0
    sent: int = 0
    """Bytes of payload in the last minute."""
    received: int = 0
    delivery_rate: int = 0
    """Bytes/s."""
    cwnd: int = 0
    unacked: int = 0
    unacked_bytes: int = 0
    notsent: int = 0
    rqueue: int = 0
    busy: float = 0.0
    """Share of the last minute in which the sender had data, 0 to 1, like the next two."""
    rwnd: float = 0.0
    sndbuf: float = 0.0
    samples: int = 0
    """Windows with a socket."""
    answer_us: int = 0
    """Usual time from the last data to the answer of the far end, with its time to think."""
    rest: str = ""
    """Why no packet comes: `idle`, `asked` (the far end has not answered yet), `closed`, `reset` by
    the far end, or `cut`: its windows lack packets, as `text` says. Empty if packets come."""
    unanswered: int = 0
    """DNS queries of the last minute without an answer."""


@dataclass(frozen=True, slots=True)
class ExplainedHop:
    """A hop of the path to the far end."""

    hop: int
    router: str
    """Address; empty if it does not answer."""
    name: str
    """Its name or network; empty if unknown."""
    rtt_ms: float | None
    """Median of the last seconds."""
    queue_ms: float
    """Delay of a queue right before this hop; 0: none."""
    answered: int
    lost: int
    beside: bool = False
    """Whether ICMP echo requests beside the flow measured it: its router answers no probe."""


@dataclass(frozen=True, slots=True)
class ExplainedPlace:
    """The hop at which packets wait or are lost."""

    hop: int = 0
    """0: unknown, or nowhere."""
    router: str = ""
    before: str = ""
    """The router one hop before; empty: this host."""
    queue_ms: float = 0.0
    side: str = ""
    """The way on which packets wait: `on the way back`; empty if unknown."""
    own: str = ""
    """The queue, if it is this host's own: `tbf of eth0`."""
    fault: str = ""
    """Why packets do not arrive: `10.0.3.1 at hop 3 reports: host unreachable`; else empty."""
    text: str = ""
    """A sentence: the place, or why it is unknown."""
    hops: tuple[ExplainedHop, ...] = ()


@dataclass(frozen=True, slots=True)
class ExplainedLoss:
    """Packets that this host lost in the last minute."""

    reason: str
    packets: int
    of_flow: bool
    """Whether these are packets of the conversation; else of all."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The owner, the limit and the queue of one conversation."""

    sentence: str
    """The answer in one sentence."""
    flow: ExplainedEnds
    seconds: float
    """Covered by the numbers."""
    bits_in: float
    """Per second, in the last minute."""
    bits_out: float
    at_least: bool
    """Whether these rates are lower bounds: the CPU budget left packets out."""
    who: ExplainedOwner
    why: ExplainedLimit
    where: ExplainedPlace
    lost: tuple[ExplainedLoss, ...] = field(default=())
    counts_drops: bool = False
    """Whether `lost` has the drops of the kernel: the probe of drops runs."""


def _end(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
