"""Options of recordings. The module loads no numpy, so help is fast."""

from __future__ import annotations

import math
from dataclasses import dataclass
from urllib.parse import quote

from app.exporters.options import ExporterOptions, option
from bpf.errors import TextError, UsageError
from bpf.quantities import TIMES, byte_count, quantity
from probes.config.options import setting
from probes.reports import OutputConfig

USUAL_KEEP = "24h,5GB"
_KEPT = "Age and size of the recording: the oldest segments go."


def kept(text: str) -> tuple[float, float]:
    """Return seconds and bytes of `24h,5GB`, of `24h` or of `5GB`; inf for no limit.

    Raises UsageError.
    """
    seconds = size = math.inf
    for part in text.split(","):
        try:
            if part.strip()[-1:] in ("B", "b"):
                size = byte_count(part)
            else:
                seconds = quantity(part, TIMES, None)
        except TextError as error:
            hint = f"write a time, a size or both, such as {USUAL_KEEP}"
            raise UsageError(error.message, hint=hint) from None
    return seconds, size


def _checked(text: str) -> str:
    kept(text)
    return text


@dataclass(frozen=True, slots=True)
class RecordOptions(ExporterOptions):
    """Options of the output `record`."""

    keep: str = option(USUAL_KEEP, _KEPT, read=_checked)


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """Options by which a run records itself."""

    record: str = setting("Outputs", "", "Record windows and events in DIR, for replay.", "DIR")
    keep: str = setting("Outputs", USUAL_KEEP, _KEPT, "TIME,SIZE", read=_checked)

    def outputs(self) -> tuple[OutputConfig, ...]:
        """Return the output that records; none without a directory."""
        if not self.record:
            return ()
        return (OutputConfig(f"record:{quote(self.record)}", "record", {"keep": self.keep}),)
