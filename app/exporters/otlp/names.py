"""Names of OpenTelemetry for names of probedeck: the only place that maps them. Experimental.

An attribute has its name of the semantic conventions 1.44.0 if these have one with the same
meaning. Their network part is in development. All other names begin with `probedeck.`.
Names of metrics follow the conventions' patterns: `.io` for bytes, `.packet.count` for packets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from app.exporters.openmetrics.families import MetricFamily
from probes.filter.hosts import protocol_name

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
_PREFIX = "probedeck"
METRICS = {
    "build": ("build", "1"),
    "flow_packets": ("flow.packet.count", "{packet}"),
    "flow_bytes": ("flow.io", "By"),
    "flows": ("flow.count", "{flow}"),
    "repeated_packets": ("flow.repeated.packet.count", "{packet}"),
    "repeated_bytes": ("flow.repeated.io", "By"),
    "peak_bytes_per_second": ("flow.peak", "By/s"),
    "monitor_packets": ("monitor.packet.count", "{packet}"),
    "monitor_bytes": ("monitor.io", "By"),
    "monitor_tcp_packets": ("monitor.tcp.packet.count", "{packet}"),
    "monitor_fragments": ("monitor.fragment.count", "{fragment}"),
    "monitor_protocols": ("monitor.protocol.count", "{protocol}"),
    "sketch_flows": ("monitor.flow.estimate", "{flow}"),
    "sketch_flows_low": ("monitor.flow.estimate.low", "{flow}"),
    "sketch_flows_high": ("monitor.flow.estimate.high", "{flow}"),
    "lost_packets": ("packet.lost", "{packet}"),
    "lost_bytes": ("io.lost", "By"),
    "skipped_packets": ("packet.skipped", "{packet}"),
    "skipped_bytes": ("io.skipped", "By"),
    "policy_state": ("policy.state", "1"),
    "policy_activations": ("policy.activation.count", "{activation}"),
    "policy_value": ("policy.value", "1"),
    "policy_threshold": ("policy.threshold", "1"),
    "policy_selected_packets": ("policy.selected.packet.count", "{packet}"),
    "policy_acted_packets": ("policy.acted.packet.count", "{packet}"),
    "path_probes": ("path.probe.count", "{probe}"),
    "path_rtt_seconds": ("path.rtt", "s"),
    "path_loss_ratio": ("path.loss", "1"),
    "path_router": ("path.router", "1"),
    "path_findings": ("path.finding.count", "{finding}"),
    "owner_packets": ("owner.packet.count", "{packet}"),
    "owner_bytes": ("owner.io", "By"),
    "ownership_packets": ("ownership.packet.count", "{packet}"),
    "ownership_bytes": ("ownership.io", "By"),
    "kernel_dropped_packets": ("kernel.packet.dropped", "{packet}"),
    "kernel_dropped_bytes": ("kernel.io.dropped", "By"),
    "probe_windows": ("probe.window.count", "{window}"),
    "probe_window_end_timestamp_seconds": ("probe.window.end", "s"),
    "probe_generation": ("probe.generation", "1"),
    "probe_rows": ("probe.row.count", "{row}"),
    "probe_occupancy_ratio": ("probe.occupancy", "1"),
    "probe_swap_seconds": ("probe.swap.duration", "s"),
    "probe_drain_seconds": ("probe.drain.duration", "s"),
    "hook": ("hook", "1"),
    "metric": ("metric.count", "1"),
    "metric_value": ("metric.value", "1"),
    "metric_histogram": ("metric.histogram", "1"),
    "metric_left_out_entries": ("metric.left_out", "{entry}"),
    "events": ("event.count", "{event}"),
    "output_state": ("output.state", "1"),
    "output_delivered_records": ("output.delivered", "{record}"),
    "output_undelivered_records": ("output.undelivered", "{record}"),
    "output_retries": ("output.retry.count", "{retry}"),
    "output_queued_records": ("output.queued", "{record}"),
    "output_queue_bytes": ("output.queue.size", "By"),
    "unwritten_rows": ("row.unwritten", "{row}"),
    "resident_memory_bytes": ("process.memory.usage", "By"),
    "map_memory_bytes": ("map.memory.usage", "By"),
    "map_memory_limit_bytes": ("map.memory.limit", "By"),
    "budget_ratio": ("budget", "1"),
    "cpu_used_ratio": ("cpu.utilization", "1"),
    "budget_steps": ("budget.step.count", "{step}"),
}
"""Name without `probedeck.`, and unit (UCUM), of each family without `probedeck_`."""
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
    name, unit = METRICS[family.name.removeprefix(f"{_PREFIX}_")]
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
