"""Options of the output of metrics. The module loads no numpy, so help is fast."""

from __future__ import annotations

from dataclasses import dataclass

from app.exporters.options import ExporterOptions, option
from bpf.errors import UsageError

MOST_OWNERS = 20
"""Owners that have series, unless the user wants another number."""


@dataclass(frozen=True, slots=True)
class OpenMetricsOptions(ExporterOptions):
    """Options of the output of metrics."""

    owners: int = option(MOST_OWNERS, "Owners that have series; all others together are one.")

    def check(self) -> None:
        if not 0 <= self.owners <= 1000:
            raise UsageError(f"owners = {self.owners} is not 0 to 1000")
