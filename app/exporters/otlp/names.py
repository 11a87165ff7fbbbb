"""Names of OpenTelemetry for labels, columns and values of probedeck. Experimental.

A metric's name stands with its family, in `openmetrics/families.py`. An attribute has its name of
the semantic conventions 1.44.0 if these have one with the same meaning. Their network part is in
development. All other names begin with `probedeck.`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from app.exporters.openmetrics.families import MetricFamily
from probes.filter.hosts import protocol_name

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
_PREFIX = "probedeck"
_ATTRIBUTES = {
    "interface": "network.interface.name",
    "direction": "network.io.direction",
    "protocol": "network.transport",
    "ip_version": "network.type",
    "source": "source.address",
    "source_port": "source.port",
    "destination": "destination.address",
    "destination_port": "destination.port",
    "pid": "process.pid",
    "user": "process.user.name",
    "version": "service.version",
    "probedeck_policy_state": "probedeck.policy.state",
    "probedeck_output_state": "probedeck.output.state",
}
"""Attributes of labels of families and of columns of flows. Any other is `probedeck.` and its name.

The conventions have no attribute for the name of a task (comm), nor for the name *or* id of a
container or pod.
"""
_VALUES: Mapping[tuple[str, Any], str] = {
    ("direction", "in"): "receive",
    ("direction", "out"): "transmit",
    ("ip_version", 4): "ipv4",
    ("ip_version", 6): "ipv6",
}
_WITH_PORTS = frozenset({"tcp", "udp", "sctp", "dccp", "udplite"})
_PORTS = ("source_port", "destination_port")
_LEFT_OUT = frozenset({"schema", "window"})
"""Columns of flows that a log record has no attribute for."""


def metric_of(family: MetricFamily) -> tuple[str, str]:
    """Return the name and the unit of a family's metric."""
    name, _, unit = family.otlp.partition(" ")
    return f"{_PREFIX}.{name}", unit


def labels(of: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a sample's labels. Empty labels have none."""
    for label, value in of.items():
        if value != "":
            yield attribute(label), _VALUES.get((label, value), value)


def attribute(name: str) -> str:
    """Return the attribute of a label or column."""
    return _ATTRIBUTES.get(name) or f"{_PREFIX}.{name}"


def flow(row: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a row of the table `flows`. Empty columns have none."""
    protocol = protocol_name(row["protocol"])
    for name, value in row.items():
        if value is None or value == "" or name in _LEFT_OUT:
            continue
        if name == "protocol":
            yield attribute(name), protocol
        elif name in _PORTS and protocol not in _WITH_PORTS:
            # Of ICMP they are its identifier, type and code.
            yield f"{_PREFIX}.{name}", value
        else:
            yield attribute(name), _VALUES.get((name, value), value)
