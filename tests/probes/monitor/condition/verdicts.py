"""Given windows, and the verdict of a condition on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probes.monitor.condition import Condition
from tests.probes.monitor.windows import series_of

Window = Mapping[str, float]
USUAL = {
    "packets": 1000, "bytes": 64_000, "tcp_packets": 400, "tcp_bytes": 32_000, "udp_packets": 500,
    "udp_bytes": 30_000, "icmp_packets": 50, "icmp_bytes": 1000, "flows": 100,
}  # fmt: skip
FLOOD = USUAL | {"packets": 30_000, "bytes": 1_920_000, "udp_packets": 28_000, "flows": 24_791}
IDLE = dict.fromkeys(USUAL, 0)
AFTER_USUAL = [USUAL] * 70


def verdict(text: str, windows: list[Any], seconds: float = 1.0) -> bool | None:
    return Condition.parse(text).evaluate(series_of(windows, seconds)).holds
