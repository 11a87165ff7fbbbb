"""The probe of names: it copies the heads of some packets, and its tables are names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from probes.config.model import parse
from probes.names.learned import PROBE, SCHEMA, TABLE, rows_of
from probes.program.probe import ProgramProbe
from probes.snapshot import Snapshot

if TYPE_CHECKING:
    from bpf.attach.interface import Interface
    from bpf.compiler import Compiler
    from probes.config.model import ProbeConfig
    from probes.hooks import Hooks

MEMORY = 4 << 20
"""Bytes of kernel memory that the maps take at most."""
_SOURCE = Path(__file__).with_name("names.c")
_INTERVAL_S = 1.0
_HEADS = "heads"


class NamesProbe(ProgramProbe):
    """Learns names of addresses from DNS answers and TLS connections that pass."""

    builtin = True
    # A busy host fills the queue again and again, and loses no measurement by it.
    warns_of_full_maps = False

    def _convert(self, table: Snapshot) -> Snapshot:
        return replace(table, rows=rows_of(table.rows["value"]), schema=SCHEMA)


def names_config(interface: str) -> ProbeConfig:
    """Return the probe's configuration: both directions of an interface, by TC."""
    side = {
        "interface": interface,
        "hook": "tc",
        "source": _SOURCE.read_text(encoding="utf-8"),
        "metrics": [{"name": TABLE, "map": _HEADS, "snapshot": True}],
    }
    sides = {"ingress": side, "egress": side}
    return parse({"name": PROBE, "interval": _INTERVAL_S, "format": "csv", **sides}, PROBE)


def prepare(
    compiler: Compiler, hooks: Hooks, interface: Interface, _: float
) -> Callable[[], NamesProbe]:
    """Return a function that makes the probe on an interface."""
    return partial(NamesProbe.of, compiler, hooks, names_config(interface.name))
