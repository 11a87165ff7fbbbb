"""The same answers of a hop have the same median and 95th percentile everywhere."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from app.console.screens.paths.hop import numbers_of
from app.explain.material import Material
from app.explain.place import times_of
from app.exporters.openmetrics.paths import PathSeries
from app.fleet.segment_run import _delay
from app.outputs.report.model import ReportedTimes
from app.outputs.report.tally import PathTally
from bpf.arrays import Array
from probes.flow.grouping import GROUP
from probes.path.analysis.statistics import quantiles
from probes.path.analysis.watch import Analysis
from probes.path.records import HOP, HOPS_TABLE
from probes.sockets.records import SOCKET
from tests.app.explain.made import FAR, window
from tests.support.paths import packed

TIMES_NS = np.array([10, 12, 10, 30, 10, 11]) * 1_000_000
MEDIAN, P95 = 0.010, 0.030


def rows() -> Array:
    """Six answers of hop 1."""
    found = np.zeros(len(TIMES_NS), HOP)
    found["destination"], found["source"] = packed(FAR), packed("10.0.0.5")
    found["protocol"], found["version"], found["hop"] = 6, 4, 1
    found["sequence"] = np.arange(len(found))
    found["sent_ns"] = 10**9 + np.arange(len(found)) * 10**7
    found["received_ns"] = found["sent_ns"] + TIMES_NS
    found["responder"] = packed("198.51.100.1")
    return found


def table() -> tuple[float, float]:
    analysis = Analysis()
    analysis.add(rows(), 2 * 10**9)
    (row,) = analysis.summarise(3 * 10**9)
    return row["median_ns"] / 1e9, row["p95_ns"] / 1e9


def report() -> tuple[float, float]:
    tally = PathTally()
    tally.add(window(1, rows(), probe="path", metric=HOPS_TABLE))
    tally.fold()
    (router,) = tally.destinations[bytes(packed(FAR))].routers.values()
    found = ReportedTimes.of(router.times)
    return found.median_ns / 1e9, found.p95_ns / 1e9


def metrics() -> tuple[float, float]:
    series = PathSeries()
    series.take(window(1, rows(), probe="path", metric=HOPS_TABLE))
    found = {each.labels.get("quantile"): each.value for each in series.samples()}
    return found["0.5"], found["0.95"]


def explanation() -> tuple[float, float]:
    material = Material(np.zeros(1, GROUP)[0], 1.0, np.empty(0, SOCKET), np.empty(0), hops=rows())
    hop = times_of(material).recent[1]
    return hop["median_ns"] / 1e9, hop["p95_ns"] / 1e9


def console() -> tuple[float, float]:
    found = numbers_of(TIMES_NS, np.zeros(len(TIMES_NS), "u2"), np.array([0]), 1)[0]
    return found["median"], found["p95"]


def branch() -> tuple[float, float]:
    median_ns, p95_ns = quantiles(TIMES_NS, (0.5, 0.95)).tolist()
    return median_ns / 1e9, p95_ns / 1e9


def segment() -> tuple[float, float]:
    found = _delay(TIMES_NS)
    assert found is not None
    return found.median, found.p95


@pytest.mark.parametrize(
    "place", [table, report, metrics, explanation, console, branch, segment],
    ids=lambda place: place.__name__,
)  # fmt: skip
def test_a_quantile_has_one_definition(place: Callable[[], tuple[float, float]]) -> None:
    assert place() == pytest.approx((MEDIAN, P95), rel=1e-3)
