"""Samples as text: OpenMetrics 1.0, or Prometheus' older format for scrapers that want it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import CollectorRegistry

from app.exporters.openmetrics.families import FAMILIES, MetricFamily, Sample

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
