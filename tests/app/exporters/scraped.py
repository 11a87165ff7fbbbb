"""Series of an exposition, by name and labels."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from app.exporters.openmetrics.exposition import exposition
from app.exporters.openmetrics.metric_state import MetricState

OPEN_METRICS = "application/openmetrics-text; version=1.0.0"
Scraped = Mapping[str, float]


def parsed(text: str) -> Scraped:
    """Return the value of each series, `name{label="value"}`. Raises ValueError for bad text."""
    return {
        sample.name + _labels(sample.labels): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scraped(state: MetricState) -> Scraped:
    text, _ = exposition(OPEN_METRICS, state.samples)
    return parsed(text.decode())


def _labels(labels: Mapping[str, str]) -> str:
    inner = ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()))
    return f"{{{inner}}}" if inner else ""


def checked(text: bytes) -> None:
    """Ask Prometheus' own linter, where it is installed, about a text of its older format."""
    if promtool := shutil.which("promtool"):
        done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True)
        assert done.returncode == 0, done.stderr.decode()


def tool(name: str) -> str:
    """Return the path of a tool, or skip the test."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (apt install prometheus)")
    return found
