"""A packet ring without a kernel."""

from __future__ import annotations

from collections.abc import Sequence

from probes.monitor.actions.capture import USUAL_SECONDS
from probes.ring.options import (
    BY_HAND,
    CaptureLedger,
    KeptPacket,
    KeptSelection,
    RingStatus,
    Written,
)

_REQUEST = (
    "020000000001" "020000000002" "0800"
    "4500003200000000" "40060000" "c0000201" "c6336407"
    "03e801bb" "00000007" "00000009" "50180200" "00000000" "474554202f20c3a90d0a"
)  # fmt: skip
PACKET = KeptPacket(1_700_000_000_000_000_000, "lo", False, 1500, _REQUEST, 14)
LEDGER = CaptureLedger(10, 7, 0, 2, 1, 0, 0, 1, 3, 2)


class FakeRing:
    """The methods of `RingControl`: the newest packet is always the same."""

    kept_filter: str | None = None
    """The filter of `keep_packets`; None: no packet is kept."""
    written: Sequence[str] = ()
    """Names of captures."""

    def ring(self) -> RingStatus:
        if self.kept_filter is None:
            return RingStatus("", 168, 0, ())
        filters = [self.kept_filter] if self.kept_filter else []
        return RingStatus("lo", 168, 4096, [KeptSelection(BY_HAND, filters, 1, 10, 1)])

    def keep_packets(self, filter: str = "") -> RingStatus:  # noqa: A002
        self.kept_filter = filter
        return self.ring()

    def release_packets(self) -> RingStatus:
        self.kept_filter = None
        return self.ring()

    def kept_packets(self, most: int = 100) -> list[KeptPacket]:
        return [] if self.kept_filter is None else [PACKET] * min(most, 3)

    def write_packets(self, name: str = BY_HAND, seconds: float = USUAL_SECONDS) -> Written:
        self.written = [*self.written, name]
        return Written(f"/tmp/capture-{name.replace(' ', '-')}.pcapng", LEDGER)
