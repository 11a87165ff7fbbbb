"""Samples as text: OpenMetrics 1.0, or Prometheus' older format for scrapers that want it.

Some are those that a control plane knows at the moment of a scrape: outputs, files and memory.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import CollectorRegistry

from app.exporters.openmetrics import families as of
from app.exporters.openmetrics.families import FAMILIES, MetricFamily, Sample
from probes.control_plane import ControlPlane
from probes.reports import OutputState

Samples = Callable[[], Iterable[Sample]]


@dataclass(frozen=True, slots=True)
class _Collector:
    """A collector of prometheus-client."""

    sources: tuple[Samples, ...]

    def collect(self) -> Iterator[Metric]:
        found: dict[MetricFamily, list[Sample]] = {}
        for source in self.sources:
            for sample in source():
                found.setdefault(sample.family, []).append(sample)
        for family in FAMILIES:
            if family in found:
                yield _metric(family, found[family])


def _metric(family: MetricFamily, samples: Iterable[Sample]) -> Metric:
    metric = Metric(family.name, family.help, family.kind, family.unit)
    for sample in samples:
        metric.add_sample(family.series + sample.suffix, sample.labels, sample.value)
    return metric


def exposition(accept: str, *sources: Samples) -> tuple[bytes, str]:
    """Return the text and its media type, as the header `Accept` asks."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(sources))
    encode, media_type = choose_encoder(accept)
    return encode(registry), media_type


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
    budget = plane.budget()
    yield of.BUDGET(value=budget.share)
    yield of.CPU_USED("user space", value=budget.used)
    if budget.kernel is not None:
        yield of.CPU_USED("kernel", value=budget.kernel)
    yield of.BUDGET_STEPS(value=len(budget.steps))
