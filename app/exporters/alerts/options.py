"""Options of alerts. The module loads no numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from app.exporters.options import ExporterOptions, OptionError, duration, option

JOURNAL = "/run/systemd/journal/socket"


@dataclass(frozen=True, slots=True)
class AlertOptions(ExporterOptions):
    """Options of every kind of alerts."""

    severity: Literal["info", "warning", "error"] = option("warning", "Least severity.")
    only: tuple[str, ...] = option(
        (), "Sources with commas, such as monitor,output; all by default."
    )
    most: int = option(30, "Alerts a minute; further ones are counted in a summary.")

    def check(self) -> None:
        if self.most < 1:
            raise OptionError("most", f"option most: {self.most} is not at least 1")


@dataclass(frozen=True, slots=True)
class WebhookOptions(AlertOptions):
    key: str = option("", "File of a secret that signs each request by HMAC-SHA256.", file=True)
    ca: str = option(
        "", "PEM file of trusted certificate authorities; the system's by default.", file=True
    )


@dataclass(frozen=True, slots=True)
class CommandOptions(AlertOptions):
    timeout: float = option(10.0, "Time after which a program is killed.", read=duration)


@dataclass(frozen=True, slots=True)
class JournalOptions(AlertOptions):
    socket: str = option(JOURNAL, "Socket of the journal.")


@dataclass(frozen=True, slots=True)
class SyslogOptions(AlertOptions):
    facility: int = option(3, "Number of the facility, 0 to 23; 3 is daemon.")

    def check(self) -> None:
        # super() does not work in a dataclass with slots.
        AlertOptions.check(self)
        if not 0 <= self.facility <= 23:
            raise OptionError("facility", f"option facility: {self.facility} is not 0 to 23")


@dataclass(frozen=True, slots=True)
class SyslogHostOptions(SyslogOptions):
    transport: Literal["udp", "tcp"] = option("udp", "How messages travel.")
