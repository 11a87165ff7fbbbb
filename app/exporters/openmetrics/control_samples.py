"""Samples that a control plane knows at the moment of a scrape: outputs, files and memory."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

from app.exporters.openmetrics import families as of
from app.exporters.openmetrics.families import Sample
from probes.control_plane import ControlPlane
from probes.output_control import OutputState


def control_samples(plane: ControlPlane) -> Iterator[Sample]:
    """Yield the state of a control plane."""
    for output in plane.outputs.status():
        for state in OutputState:
            yield of.OUTPUT_STATE(output.name, state.value, value=int(output.state == state))
        yield of.OUTPUT_DELIVERED(output.name, value=output.delivered)
        yield of.OUTPUT_RETRIES(output.name, value=output.retries)
        yield of.OUTPUT_QUEUED(output.name, value=output.queued)
        yield of.OUTPUT_QUEUE(output.name, value=output.queued_bytes)
        for reason, records in output.undelivered.items():
            yield of.OUTPUT_UNDELIVERED(output.name, reason, value=records)
    for table, rows in plane.unwritten.items():
        yield of.UNWRITTEN(table, value=rows)
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()
    yield of.RESIDENT_MEMORY(value=int(pages[1]) * mmap.PAGESIZE)
    memory = plane.memory()
    yield of.MAP_MEMORY(value=memory.used)
    yield of.MAP_MEMORY_LIMIT(value=memory.limit)
