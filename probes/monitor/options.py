"""Operator's options of the monitor."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from enum import StrEnum

from bpf.attach.attachment import Hook
from bpf.errors import UsageError
from bpf.machine import possible_cpus
from probes.config.options import setting
from probes.tunnels import Tunnels

MONITOR = "Monitor"
"""Heading of the options in the help."""
_HALVES = 2
_TALLIES = 259 * 16 + 128 * 8 + 64 * (16 + 8) * 2 + 64 * (4 + 8) + 45 * 64 + 32
"""Bytes of a CPU's counters by protocol, by TCP flags and by selection."""
_REGISTER = 4
BITS = (4, 14)
"""Fewest and most bits that choose a register."""


class Input(StrEnum):
    """Kind of the interface's packets (S2.3)."""

    REGULAR = "regular"
    """The host's own traffic: measured and passed on."""
    MIRRORED = "mirrored"
    """Copies of other hosts' traffic: measured and dropped."""
    TELEMETRY = "telemetry"
    """Records of packets that switches saw, in UDP datagrams to `receivers` (S2.1, S2.2), which are
    dropped; other packets are passed on and not measured."""


@dataclass(frozen=True, slots=True)
class Receiver:
    """Outer 5-tuple of datagrams with telemetry records, all of it exact."""

    source: str
    source_port: int
    destination: str
    destination_port: int

    def check(self) -> None:
        """Raises UsageError if no datagram can match."""
        try:
            versions = {ipaddress.ip_address(a).version for a in (self.source, self.destination)}
        except ValueError as error:
            raise UsageError(f"receiver: {error}") from None
        if len(versions) > 1:
            raise UsageError(f"receiver: {self.source} and {self.destination} differ in version")
        for port in (self.source_port, self.destination_port):
            if not 0 <= port <= 65535:
                raise UsageError(f"receiver: {port} is not a port")


@dataclass(frozen=True, slots=True)
class Trust:
    """`[monitor]` of the settings: holds whatever policies run."""

    trusted: list[str] = setting(MONITOR, [], "Hosts that never alarm.", "PREFIX")


@dataclass(frozen=True, slots=True)
class MonitorOptions:
    """The monitor on one interface."""

    bits: int = setting(MONITOR, 12, "Use 2^N registers in the sketch, 4 to 14.", "N")
    """The estimate's standard error is about 1 / sqrt(2**bits) (S2.7)."""
    interval: float = 1.0
    """Seconds of a window; conditions are evaluated after each."""
    input: Input = setting(
        MONITOR,
        Input.REGULAR,
        "Kind of incoming packets: the host's own, copies of others' packets, or datagrams with "
        "records of switches.",
    )
    receivers: tuple[Receiver, ...] = ()
    ingress: Hook | None = None
    """XDP or TC_INGRESS; None: the best one (`probes.hooks.Hooks.choose`)."""
    seed: str = ""
    """Key of the hash; registers of equal seeds merge, so hosts of a fleet share one.

    Empty: the boot's id. Every local user can read that id, and can then choose addresses and ports
    that spoil the estimate. A seed from a file that only root reads prevents this.
    """
    offload: bool = setting(MONITOR, False, "Run the monitor on the NIC, if it can.")
    """S2.20."""
    tunnels: Tunnels = Tunnels.OUTER
    """The packets of tunnels that are counted; BOTH is as INNER."""
    trusted: tuple[str, ...] = ()
    """Addresses and networks whose packets count for no policy."""
    allow_actions: bool = setting(MONITOR, False, "Let policies act on packets, not only count.")
    """Only a run sets it: a file of policies can't allow itself to act."""
    drop_others: bool = setting(MONITOR, False, "Drop all other packets.")
    """Packets other than telemetry (S2.1)."""

    @property
    def memory(self) -> int:
        """Bytes of kernel memory of the counters. Each sketch of a selection adds 24 KiB a CPU."""
        return _HALVES * possible_cpus() * (_TALLIES + (_REGISTER << self.bits))

    def check(self) -> None:
        """Raises UsageError if options are out of range or contradict each other."""
        least, most = BITS
        if not least <= self.bits <= most:
            raise UsageError(f"bits = {self.bits} is not between {least} and {most}")
        if not 0.01 <= self.interval <= 300:
            raise UsageError(f"an interval of {self.interval:g} s is not between 0.01 and 300")
        if self.ingress is Hook.TC_EGRESS:
            raise UsageError("the monitor sees incoming packets", hint="xdp or tc ingress")
        if self.input is Input.TELEMETRY and not self.receivers:
            raise UsageError("telemetry without receivers", hint="say which datagrams have records")
        if self.receivers and self.input is not Input.TELEMETRY:
            raise UsageError(f"receivers are for telemetry, not for {self.input} traffic")
        if self.drop_others and self.input is not Input.TELEMETRY:
            raise UsageError(f"drop_others is for telemetry, not for {self.input} traffic")
        if self.tunnels is not Tunnels.OUTER and self.input is Input.TELEMETRY:
            raise UsageError(f"records of telemetry have no {self.tunnels} packets")
        for receiver in self.receivers:
            receiver.check()
        for network in self.trusted:
            try:
                ipaddress.ip_network(network, strict=False)
            except ValueError:
                raise UsageError(f"trusted: {network!r} is no address or network") from None
