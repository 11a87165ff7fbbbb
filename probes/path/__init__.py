"""noobprobe: round-trip times of every hop, measured by the application's own flows (S3)."""

from probes.path.options import Guard, Order, PathOptions, Per, TracedFlow
from probes.path.records import HOP, PATH, Kind, Outcome

__all__ = [
    "HOP",
    "PATH",
    "Guard",
    "Kind",
    "Order",
    "Outcome",
    "PathOptions",
    "Per",
    "TracedFlow",
]
