"""Metrics of user probes as series: counters, gauges, histograms, and their bounds."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from app.exporters.openmetrics.metric_state import MetricState
from app.exporters.openmetrics.probe_metrics import MOST_ENTRIES, MOST_HISTOGRAMS, MOST_SERIES
from bpf.compiler import CompiledMap
from probes.config.map_config import Metric
from probes.program import loading
from probes.snapshot import REMOVED, Event, Snapshot
from probes.tables.conversion import TableKind, TableSchema
from tests.app.exporters.scraped import Scraped, scraped
from tests.app.outputs.test_metric_files import ADDRESSED, metric, narrow

COUNTS = TableSchema(TableKind.HASH, adds_up=True)
HISTOGRAM = TableSchema(TableKind.HISTOGRAM, adds_up=True)


def ports(*counts: tuple[int, Any], value: Any = "u8") -> Any:
    return np.array(list(counts), [("key", "u2"), ("value", value)])


def series(*items: Snapshot) -> Scraped:
    state = MetricState()
    for item in items:
        state.take(item)
    found = scraped(state)
    assert all(key.count("{") == 1 for key in found)
    return {key: value for key, value in found.items() if key.startswith("probedeck_metric")}


def named(family: str, key: str, field: str = "") -> str:
    return (
        f'probedeck_{family}{{field="{field}",key="{key}",metric="hits",probe="mine",'
        'side="ingress"}'
    )


LEFT_OUT = 'probedeck_metric_left_out_entries{metric="hits",probe="mine",side="ingress"}'


def test_windows_of_an_emptied_map_add_up_to_counters() -> None:
    first, second = ports((53, 7), (80, 2)), ports((80, 3), (443, 0))
    found = series(metric(first, COUNTS), metric(second, COUNTS, window=2))
    assert found == {named("metric_total", "53"): 7, named("metric_total", "80"): 5, LEFT_OUT: 0}


@pytest.mark.parametrize(("options", "value", "adds_up"), [
    ({"snapshot": True, "agg": "sum"}, [("packets", "u8")], True),
    ({"init": True}, "u8", True),
    ({"snapshot": True}, [("packets", "u8"), ("least", "u8")], False),
    ({"snapshot": True, "agg": "max"}, "u8", False),
    ({}, "u8", False),
])  # fmt: skip
def test_windows_add_up_if_a_read_empties_the_map_of_counts(
    options: Any, value: Any, adds_up: bool
) -> None:
    found = cast(CompiledMap, SimpleNamespace(value=np.dtype(value)))
    assert loading._adds_up(Metric(name="hits", map="hits", **options), found) is adds_up


def test_other_maps_have_gauges_of_the_last_window() -> None:
    value = [("packets", "u8"), ("mean", "f8"), ("name", "S4"), ("sizes", "u2", (2,))]
    first = ports((53, (7, 0.5, b"a", (1, 2))), (80, (1, 1, b"", (0, 0))), value=value)
    schema = TableSchema(TableKind.HASH, "", {"value.name": "text"})
    found = series(metric(first, schema), metric(first[:1], schema, window=2))
    assert found == {
        named("metric_value", "53", "packets"): 7, named("metric_value", "53", "mean"): 0.5,
        named("metric_value", "53", "sizes[0]"): 1, named("metric_value", "53", "sizes[1]"): 2,
        LEFT_OUT: 0,
    }  # fmt: skip


def test_keys_are_as_in_tables() -> None:
    found = series(metric(narrow(1), ADDRESSED))
    assert named("metric_value", "saddr=192.0.2.1,port=443") in found


def test_histograms_are_cumulative_buckets() -> None:
    rows = np.zeros(65, [("key", "u4"), ("value", "u8")])
    rows["key"], rows["value"][[1, 3]] = np.arange(65), (2, 5)
    found = series(metric(rows, HISTOGRAM), metric(rows, HISTOGRAM, window=2))
    bucket = (
        'probedeck_metric_histogram_bucket{{key="",le="{}",metric="hits",probe="mine",'
        'side="ingress"}}'
    )
    assert found == {
        bucket.format("1.0"): 4, bucket.format("7.0"): 14, bucket.format("+Inf"): 14, LEFT_OUT: 0,
    }  # fmt: skip
    alone = series(metric(rows, replace(HISTOGRAM, adds_up=False), window=2))
    assert alone[bucket.format("+Inf")] == 7


def test_series_are_bounded_and_the_rest_is_counted() -> None:
    many = ports(*((port, 1) for port in range(MOST_SERIES + 20)))
    found = series(metric(many[:5], COUNTS), metric(many[::-1], COUNTS, window=2))
    assert found[LEFT_OUT] == 20
    assert len(found) == MOST_SERIES + 1
    assert found[named("metric_total", "4")] == 2, "the first entries keep their series"

    large = ports(*((port, 1) for port in range(MOST_ENTRIES + 1)))
    assert series(metric(large)) == {LEFT_OUT: MOST_ENTRIES + 1}
    cpus = np.zeros(3, [("key", "u2"), ("value", "u8", (4,))])
    assert series(metric(cpus)) == {LEFT_OUT: 3}

    rows = np.zeros(30, [("key", [("port", "u2"), ("slot", "u4")]), ("value", "u8")])
    rows["key"]["port"], rows["value"] = np.arange(30), 1
    found = series(metric(rows, HISTOGRAM))
    assert found[LEFT_OUT] == 30 - MOST_HISTOGRAMS
    assert len(found) == 2 * MOST_HISTOGRAMS + 1


def test_a_removed_probe_and_other_columns_leave_no_series_behind() -> None:
    state = MetricState()
    state.take(metric(ports((53, 7)), COUNTS))
    state.take(metric(narrow(1), ADDRESSED, generation=2))
    assert named("metric_total", "53") not in scraped(state)
    state.take(Event.now("info", "mine", REMOVED))
    assert not any(key.startswith("probedeck_metric") for key in scraped(state))
