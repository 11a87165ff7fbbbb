"""Options of outputs to files. The module loads no numpy, so help is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from app.exporters.options import ExporterOptions, option

Every = Literal["window", "hour", "day"]


@dataclass(frozen=True, slots=True)
class FileOptions(ExporterOptions):
    """Options of outputs to files."""

    every: Literal["window", "hour", "day"] = option(
        "hour", "Time of a file of each table: window, hour or day."
    )
    tables: tuple[str, ...] = option(
        (),
        "Tables, with commas; by default all but groups. metrics: also a table for each metric of "
        "a probe.",
    )
