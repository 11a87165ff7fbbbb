"""From the configuration of an output to its exporter."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from app.exporters.exporter import Exporter
from app.exporters.kinds import ExporterConfig
from app.exporters.ledger import Ledger
from probes.control_plane import ControlPlane


@dataclass(frozen=True, slots=True)
class ExportHost:
    """The parts of a run that an exporter may use."""

    config: ExporterConfig
    plane: ControlPlane
    ledger: Ledger
    """Totals and losses of all tables since the start."""
    lost: Callable[[int, str], None]
    """Takes back a delivery: so many records, delivered before, are lost for a reason."""


def make(host: ExportHost) -> Exporter:
    """Load and make an exporter. Raises ProbedeckError for what the host lacks."""
    module, _, function = host.config.kind.load.partition(":")
    made = getattr(importlib.import_module(module), function)
    return cast("Callable[[ExportHost], Exporter]", made)(host)
