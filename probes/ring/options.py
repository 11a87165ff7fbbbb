"""The packet ring as front ends see it; the module loads no numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from bpf.errors import TextError, UsageError
from bpf.quantities import byte_count
from probes.config.options import setting
from probes.monitor.actions.capture import USUAL_SECONDS

PROBE = "ring"
"""Name of the probe."""
MOST_KEPT = 8
"""Most selections of packets at a time, as in ring.c."""
BY_HAND = "by hand"
"""Name of the selection of an operator. Policies have no such name."""
RING = "Packet ring"
_HEADER = 88
"""Bytes of a slot, without those of the packet."""
_BYTES = (64, 1536)
_MEMORY = (1 << 20, 2 << 30)


@dataclass(frozen=True, slots=True)
class RingOptions:
    """Sizes of the packet ring."""

    ring_memory: str = setting(
        RING, "32MiB", "Kernel memory of the ring that keeps packets for captures.", "SIZE"
    )
    ring_bytes: int = setting(
        RING, 168, "Bytes of each packet that the ring keeps, 64 to 1536.", "BYTES"
    )

    tunnels: bool = False
    """Whether selections are of the innermost packets of tunnels."""

    def check(self) -> None:
        """Raise UsageError if an option is out of range."""
        if not _BYTES[0] <= self.ring_bytes <= _BYTES[1]:
            least, most = _BYTES
            raise UsageError(f"--ring-bytes {self.ring_bytes} is not between {least} and {most}")
        if not _MEMORY[0] <= self.memory <= _MEMORY[1]:
            raise UsageError(f"--ring-memory {self.ring_memory} is not between 1MiB and 2GiB")

    @property
    def memory(self) -> int:
        """Bytes of the slots at most. Raises UsageError if the text is no size."""
        try:
            return byte_count(self.ring_memory)
        except TextError as error:
            raise error.of("--ring-memory") from None

    @property
    def kept(self) -> int:
        """Bytes of each packet: slots are a multiple of eight bytes."""
        return -(-self.ring_bytes // 8) * 8

    def slots(self, cpus: int) -> int:
        """Slots of each of so many CPUs, a power of two."""
        return 1 << max(self.memory // ((_HEADER + self.kept) * cpus), 1).bit_length() - 1


@dataclass(frozen=True, slots=True)
class CaptureLedger:
    """Fates of the packets of a capture. `selected` is the sum of the next five."""

    selected: int
    """Packets of the selection since `begin_utc_ns`; a large segment is one."""
    written: int
    others: int
    """Packets that the capture leaves out because it is of the culprit's alone."""
    overwritten: int
    """Packets that later ones overwrote before the ring was frozen."""
    paused: int
    """Packets that came while the ring was frozen."""
    unread: int
    """Packets whose bytes the kernel could not read, and torn slots."""
    dropped: int
    """Packets of `written` that an action of a policy dropped."""
    begin_utc_ns: int
    """From then on the packets count: the begin of a window, or of the selection."""
    end_utc_ns: int
    """When the ring was frozen."""
    whole_utc_ns: int
    """From then on no packet was overwritten."""

    @property
    def missing(self) -> int:
        return self.overwritten + self.paused + self.unread


@dataclass(frozen=True, slots=True)
class KeptPacket:
    """The first bytes of a packet in the ring."""

    utc_ns: int
    interface: str
    outgoing: bool
    length: int
    """Bytes of the frame."""
    data: str
    """Hexadecimal, with the header of the link."""
    network_at: int = 0
    """Bytes before the IP header."""
    dropped: bool = False
    """Whether an action of a policy dropped it."""


@dataclass(frozen=True, slots=True)
class KeptSelection:
    """A selection of packets that the ring keeps."""

    name: str
    """Name of its policy, or `by hand`."""
    filters: Sequence[str]
    """Alternatives; none: every packet."""
    since_utc_ns: int
    kept: int
    """Packets since then."""
    missed: int
    """Packets that came during a pause, or whose bytes could not be read."""
    file: str = ""
    """Its last capture."""


@dataclass(frozen=True, slots=True)
class RingStatus:
    """The packet ring of a host."""

    interface: str
    """Empty: it does not run."""
    bytes: int
    """Of each packet, at most."""
    packets: int
    """That fit, of all CPUs."""
    selections: Sequence[KeptSelection]
    captures: int = 0
    """Captures that the run has written."""
    refused: int = 0
    """Captures that could not be written, or were beyond the limit of a run without a recording."""


@dataclass(frozen=True, slots=True)
class Written:
    """A capture."""

    file: str
    ledger: CaptureLedger


class RingControl(Protocol):
    """Keeps packets in the kernel, and writes captures."""

    def ring(self) -> RingStatus:
        """Return the selections of the packet ring, and its size."""

    def keep_packets(self, filter: str = "") -> RingStatus:  # noqa: A002 - as clients say it
        """Keep the first bytes of the packets that pass a filter, until `release_packets`.

        Without a filter, keep those of every IP packet. It takes the place of the last filter, and
        takes as long as a compile if the ring does not run yet. Raises UsageError if no interface
        is watched, or for a filter of no packets.
        """

    def release_packets(self) -> RingStatus:
        """Keep packets of policies only. The ring ends if there are none."""

    def kept_packets(self, most: int = 100) -> list[KeptPacket]:
        """Return the newest packets that `keep_packets` keeps, the oldest first."""

    def write_packets(self, name: str = BY_HAND, seconds: float = USUAL_SECONDS) -> Written:
        """Freeze the ring, and write the last seconds of a selection to a file of the host.

        `name` is a policy or `by hand`. Raises UsageError for an unknown selection, and if the file
        cannot be written.
        """
