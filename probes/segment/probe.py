"""The segment probe: digests of the packets that another host chooses, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from probes.config.model import parse
from probes.path.marks import PROBE_MAGIC
from probes.program.loading import Clone, LoadedSide
from probes.program.probe import ProgramProbe
from probes.segment.options import PROBE, SegmentOptions
from probes.segment.records import (
    CLOCK_SCHEMA,
    CLOCK_TABLE,
    DIGESTS_TABLE,
    SEEN_TABLE,
    read_clock,
)
from probes.snapshot import Item, Snapshot

if TYPE_CHECKING:
    from bpf.compiler import Compiler
    from probes.config.model import ProbeConfig
    from probes.hooks import Hooks
    from probes.program.compiled import CompiledProbe

MEMORY = 8 << 20
"""Bytes of kernel memory that the maps take at most."""
SOURCE = Path(__file__).with_name("segment.c")


class SegmentProbe(ProgramProbe):
    """Records digests of packets that pass an interface, in both directions.

    Each window has a table of the host's clocks, too, for one-way delays.
    """

    builtin = True
    warns_of_full_maps = False  # The losses of the table tell it, with numbers.

    def __init__(
        self, compiler: Compiler, compiled: CompiledProbe, hooks: Hooks, options: SegmentOptions
    ) -> None:
        super().__init__(compiler, compiled, hooks)
        self.options = options

    def _end_window(
        self, ended: Sequence[tuple[LoadedSide, Clone]], started_ns: int
    ) -> tuple[Item, ...]:
        items = super()._end_window(ended, started_ns)
        clock = read_clock()
        first = next((item for item in items if isinstance(item, Snapshot)), None)
        if first:
            table = replace(
                first, rows=clock, losses={}, occupancy=0.0, metric=CLOCK_TABLE, schema=CLOCK_SCHEMA
            )
            items = (*items, table)
        self.latest = tuple(item for item in items if isinstance(item, Snapshot))
        return items


def segment_config(interface: str, options: SegmentOptions) -> ProbeConfig:
    """Return the probe's configuration: both directions of an interface, by TC.

    TC sees packets in both directions at the same layer, next to the driver.
    """
    side = {
        "interface": interface,
        "hook": "tc",
        "source": SOURCE.read_text(encoding="utf-8"),
        "headers": {"capture.h": options.filter.to_c()},
        "define": {**options.macros, "MAGIC": PROBE_MAGIC},
        "metrics": [
            {
                "name": DIGESTS_TABLE,
                "map": "digests",
                "help": "packets that both hosts of a segment choose",
                "snapshot": True,
                "types": {"value.time": "time"},
            },
            {
                "name": SEEN_TABLE,
                "map": "seen",
                "help": "packets that both hosts of a segment choose from",
                "snapshot": True,
                "agg": "sum",
            },
        ],
    }
    sides = {"ingress": side, "egress": side}
    return parse({"name": PROBE, "interval": options.interval, "format": "csv", **sides}, PROBE)


def prepare(
    compiler: Compiler, hooks: Hooks, interface: str, options: SegmentOptions
) -> Callable[[], SegmentProbe]:
    """Return a function that makes the probe on an interface.

    Raises UsageError for impossible options.
    """
    options.check()
    return partial(SegmentProbe.of, compiler, hooks, segment_config(interface, options), options)
