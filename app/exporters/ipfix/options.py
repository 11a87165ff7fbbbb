"""Options of flows for collectors. The module loads no numpy: help is made of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from app.exporters.options import ExporterOptions, duration, option
from bpf.errors import UsageError

_SMALLEST_MTU, _LARGEST_MTU = 576, 65000


@dataclass(frozen=True, slots=True)
class CollectorOptions(ExporterOptions):
    """Options of IPFIX and NetFlow v9."""

    mtu: int = option(1420, "Bytes of a datagram at most, without headers of UDP and IP.")
    active: float = option(
        0.0, "Longest time of a record, such as 60s; 0: each window is one.", read=duration
    )
    idle: float = option(
        15.0, "With active: time without a packet that ends a record.", read=duration
    )

    def check(self) -> None:
        if not _SMALLEST_MTU <= self.mtu <= _LARGEST_MTU:
            hint = f"from {_SMALLEST_MTU} to {_LARGEST_MTU}"
            raise UsageError(f"option mtu: {self.mtu} is out of range", hint=hint)
        if self.active and not 0 < self.idle <= self.active:
            raise UsageError("option idle: it must be above 0, and not above active")


@dataclass(frozen=True, slots=True)
class IpfixOptions(CollectorOptions):
    """Options of IPFIX."""

    transport: Literal["udp", "tcp", "tls"] = option("udp", "udp, tcp or tls.")
    owners: bool = option(False, "Add owners and round-trip times as elements of enterprises.")
    ca: str = option(
        "", "Of tls: file of the authorities that sign the collector's certificate.", file=True
    )
    cert: str = option("", "Of tls: file of this host's certificate.", file=True)
    key: str = option("", "Of tls: file of its key.", file=True)

    def check(self) -> None:
        CollectorOptions.check(self)
        if self.transport != "tls" and (self.ca or self.cert or self.key):
            raise UsageError("options ca, cert and key need transport=tls")
        if bool(self.cert) is not bool(self.key):
            raise UsageError("options cert and key belong together")
