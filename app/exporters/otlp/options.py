"""Options of OTLP. The module loads no numpy, so help is fast."""

from __future__ import annotations

from dataclasses import dataclass

from app.exporters.openmetrics.options import OpenMetricsOptions
from app.exporters.options import OptionError, duration, option


@dataclass(frozen=True, slots=True)
class OtlpOptions(OpenMetricsOptions):
    """Options of OTLP."""

    every: float = option(10.0, "Time between two values of a metric.", read=duration)
    logs: bool = option(True, "Send events and alarms as log records.")
    flows: bool = option(False, "Send each flow of a window as a log record, too.")
    instance: str = option("", "Name of this run, service.instance.id; by default the host's.")
    headers: str = option(
        "", "File of header lines, NAME: VALUE, such as a key; only its owner can read it.",
        file=True,
    )  # fmt: skip
    ca: str = option(
        "", "PEM file of trusted certificate authorities; the system's by default.", file=True
    )

    def check(self) -> None:
        # super() does not work in a dataclass with slots.
        OpenMetricsOptions.check(self)
        if self.every <= 0:
            raise OptionError("every", "option every: it must be above 0")
