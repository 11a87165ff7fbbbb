"""The families of metrics: names, kinds, labels and units (OpenMetrics 1.0, section 4.4).

`FAMILIES` is the only list: the exposition and the table of docs/metrics.md follow it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from probes.snapshot import Snapshot


@dataclass(frozen=True, slots=True, eq=False)
class MetricFamily:
    """A family of series with the same name."""

    name: str
    """Without the suffix of a counter, `_total`, or of an info, `_info`; with its unit."""
    kind: str
    """`counter`, `gauge`, `histogram`, `info`, `stateset` or `summary`."""
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    otlp: str = ""
    """Name of OpenTelemetry without `probedeck.`, a blank, and the unit (UCUM). It follows the
    patterns of the semantic conventions: `.io` for bytes, `.packet.count` for packets."""

    def __call__(self, *labels: str, value: float = 1, suffix: str = "", **more: str) -> Sample:
        """Return a sample; `labels` are the values of the family's labels, in their order, and of
        a stateset's state."""
        names = (*self.labels, *([self.name] if self.kind == "stateset" else ()))
        return Sample(self, dict(zip(names, labels, strict=True)) | more, value, suffix)

    @property
    def series(self) -> str:
        """Name of the series in queries; of a summary its first one."""
        return self.name + {"counter": "_total", "info": "_info"}.get(self.kind, "")


@dataclass(frozen=True, slots=True)
class Sample:
    """A value of a series."""

    family: MetricFamily
    labels: dict[str, str]
    value: float
    suffix: str = ""
    """Of a summary: `_sum` or `_count`; empty for a quantile. Of a histogram: `_bucket`."""


class Series:
    """The series of one subject, kept up to date by published items: values by family, labels and
    suffix."""

    probe = ""
    gauges: tuple[MetricFamily, ...] = ()
    """Families that are no longer true without this probe. Counters stay."""

    def __init__(self) -> None:
        self._values: dict[MetricFamily, dict[tuple[tuple[str, ...], str], float]] = {}

    def take(self, item: Snapshot) -> None:
        """Count the rows of a snapshot; those of other subjects change nothing."""
        raise NotImplementedError

    def add(self, family: MetricFamily, *labels: str, by: float, suffix: str = "") -> None:
        """Add to a value. A `_sum` is in nanoseconds."""
        values = self._values.setdefault(family, {})
        values[labels, suffix] = values.get((labels, suffix), 0) + by

    def put(self, family: MetricFamily, *labels: str, value: float = 1) -> None:
        self._values.setdefault(family, {})[labels, ""] = value

    def drop(self, *families: MetricFamily, labels: tuple[str, ...] = ()) -> None:
        """Forget the values of families whose labels begin with `labels`."""
        self.keep(lambda one, of: one not in families or of[: len(labels)] != labels)

    def keep(self, is_kept: Callable[[MetricFamily, tuple[str, ...]], bool]) -> None:
        """Forget the other values, by family and labels."""
        for family, values in self._values.items():
            for key in [key for key in values if not is_kept(family, key[0])]:
                del values[key]

    def removed(self, probe: str) -> None:
        """Drop the gauges of a probe that was removed."""
        if probe == self.probe:
            self.drop(*self.gauges)

    def samples(self) -> Iterator[Sample]:
        """Yield the present values, in any order."""
        for family, values in self._values.items():
            for (labels, suffix), value in values.items():
                shown = value / 1e9 if suffix == "_sum" else value
                yield family(*labels, value=shown, suffix=suffix)


FAMILIES: list[MetricFamily] = []
"""All families, in the order of the exposition."""


def _family(
    name: str, kind: str, otlp: str, text: str, *labels: str, unit: str = ""
) -> MetricFamily:
    made = MetricFamily(f"probedeck_{name}", kind, text, labels, unit, otlp)
    FAMILIES.append(made)
    return made


def _packets_and_bytes(
    name: str, packets: str, octets: str, text: str, *labels: str
) -> tuple[MetricFamily, MetricFamily]:
    """Return both families; `packets` and `octets` are their names of OpenTelemetry."""
    return (
        _family(f"{name}_packets", "counter", f"{packets} {{packet}}", f"Packets {text}.", *labels),
        _family(
            f"{name}_bytes", "counter", f"{octets} By", f"Bytes {text}.", *labels, unit="bytes"
        ),
    )


BUILD = _family("build", "info", "build 1", "Version of probedeck.", "version")

FLOW_PACKETS, FLOW_BYTES = _packets_and_bytes(
    "flow", "flow.packet.count", "flow.io", "in flows, in or out as seen from this host",
    "interface", "direction", "protocol",
)  # fmt: skip
FLOWS = _family(
    "flows", "gauge", "flow.count {flow}", "Flows of the last window, one direction each.",
    "interface", "direction", "protocol",
)  # fmt: skip
REPEATED_PACKETS, REPEATED_BYTES = _packets_and_bytes(
    "repeated", "flow.repeated.packet.count", "flow.repeated.io",
    "at an interface that another interface counts", "interface", "direction",
)  # fmt: skip
PEAK = _family(
    "peak_bytes_per_second", "gauge", "flow.peak By/s",
    "Largest rate of some 8 ms in the last window.", "interface", "direction",
)  # fmt: skip

MONITOR_PACKETS, MONITOR_BYTES = _packets_and_bytes(
    "monitor", "monitor.packet.count", "monitor.io",
    "that the monitor saw, also frames without IP (other)", "interface", "protocol",
)  # fmt: skip
MONITOR_KINDS = _family(
    "monitor_tcp_packets", "counter", "monitor.tcp.packet.count {packet}",
    "TCP packets by flags: syn without ack, syn_ack, fin, rst.", "interface", "flags",
)  # fmt: skip
MONITOR_FRAGMENTS = _family(
    "monitor_fragments", "counter", "monitor.fragment.count {fragment}",
    "Fragments of IP datagrams, the first ones included.", "interface",
)  # fmt: skip
MONITOR_PROTOCOLS = _family(
    "monitor_protocols", "gauge", "monitor.protocol.count {protocol}",
    "IP protocols seen in the last window.", "interface",
)  # fmt: skip
SKETCH_FLOWS = _family(
    "sketch_flows", "gauge", "monitor.flow.estimate {flow}",
    "Distinct 5-tuples of the last window, estimated by the sketch.", "interface",
)  # fmt: skip
SKETCH_LOW = _family(
    "sketch_flows_low", "gauge", "monitor.flow.estimate.low {flow}",
    "Least number of distinct 5-tuples at 95 % confidence.", "interface",
)  # fmt: skip
SKETCH_HIGH = _family(
    "sketch_flows_high", "gauge", "monitor.flow.estimate.high {flow}",
    "Largest number of distinct 5-tuples at 95 % confidence.", "interface",
)  # fmt: skip

LOST_PACKETS, LOST_BYTES = _packets_and_bytes(
    "lost", "packet.lost", "io.lost", "that tables should have and lack, by the reason of the loss",
    "interface", "probe", "reason",
)  # fmt: skip
SKIPPED_PACKETS, SKIPPED_BYTES = _packets_and_bytes(
    "skipped", "packet.skipped", "io.skipped",
    "that are in no table on purpose: not IP, or not in the capture filter", "interface", "probe",
    "reason",
)  # fmt: skip

POLICY_STATE = _family(
    "policy_state", "stateset", "policy.state 1", "State of a policy of the monitor.", "policy"
)
POLICY_ACTIVATIONS = _family(
    "policy_activations", "counter", "policy.activation.count {activation}",
    "Begins of a policy: its applications started.", "policy",
)  # fmt: skip
POLICY_VALUE = _family(
    "policy_value", "gauge", "policy.value 1", "Value of the policy's deciding comparison.",
    "policy",
)  # fmt: skip
POLICY_THRESHOLD = _family(
    "policy_threshold", "gauge", "policy.threshold 1",
    "Limit that the policy's value is compared with.", "policy",
)  # fmt: skip
POLICY_SELECTED = _family(
    "policy_selected_packets", "counter", "policy.selected.packet.count {packet}",
    "Packets that the policy gave to its applications.", "policy",
)  # fmt: skip
POLICY_ACTED = _family(
    "policy_acted_packets", "counter", "policy.acted.packet.count {packet}",
    "Packets that the policy's action dropped or mirrored, or would have in a dry run.", "policy",
)  # fmt: skip

PATH_PROBES = _family(
    "path_probes", "counter", "path.probe.count {probe}",
    "Finished probes of path tracing by outcome.", "destination", "hop", "outcome",
)  # fmt: skip
PATH_RTT = _family(
    "path_rtt_seconds", "summary", "path.rtt s",
    "Round-trip times to a hop; quantiles are of the last window. Hop flow: of the flow itself.",
    "destination", "hop", unit="seconds",
)  # fmt: skip
PATH_LOSS = _family(
    "path_loss_ratio", "gauge", "path.loss 1",
    "Share of lost probes in the last summary; 0 if a later hop shows that none was lost.",
    "destination", "hop", unit="ratio",
)  # fmt: skip
PATH_ROUTER = _family(
    "path_router", "info", "path.router 1", "Router that answered last at a hop.", "destination",
    "hop", "router",
)  # fmt: skip
PATH_FINDINGS = _family(
    "path_findings", "counter", "path.finding.count {finding}",
    "Findings about a path: route, loss, queue, shift and others.", "destination", "kind",
)  # fmt: skip

_OWNER = ("process", "user", "unit", "container", "pod")
OWNER_PACKETS, OWNER_BYTES = _packets_and_bytes(
    "owner", "owner.packet.count", "owner.io",
    "of flows of one of the largest owners; all others are one process named other", *_OWNER,
)  # fmt: skip
OWNERSHIP_PACKETS, OWNERSHIP_BYTES = _packets_and_bytes(
    "ownership", "ownership.packet.count", "ownership.io",
    "of flows with an owner (owned), or by the reason why there is none", "reason",
)  # fmt: skip
DROPPED_PACKETS, DROPPED_BYTES = _packets_and_bytes(
    "kernel_dropped", "kernel.packet.dropped", "kernel.io.dropped",
    "that the kernel dropped, by its reason", "reason",
)  # fmt: skip

PROBE_WINDOWS = _family(
    "probe_windows", "counter", "probe.window.count {window}", "Finished windows of a probe.",
    "probe",
)  # fmt: skip
PROBE_END = _family(
    "probe_window_end_timestamp_seconds", "gauge", "probe.window.end s",
    "Unix time of the last window's end.", "probe", unit="seconds",
)  # fmt: skip
PROBE_GENERATION = _family(
    "probe_generation", "gauge", "probe.generation 1", "Number of the probe's generation, from 1.",
    "probe",
)  # fmt: skip
PROBE_ROWS = _family(
    "probe_rows", "gauge", "probe.row.count {row}", "Rows of a table in the last window.", "probe",
    "table",
)  # fmt: skip
PROBE_OCCUPANCY = _family(
    "probe_occupancy_ratio", "gauge", "probe.occupancy 1",
    "How full the fullest map of a table was in the last window.", "probe", "table", unit="ratio",
)  # fmt: skip
PROBE_SWAP = _family(
    "probe_swap_seconds", "summary", "probe.swap.duration s",
    "Time from a swap to the end of its grace period.", "probe", unit="seconds",
)  # fmt: skip
PROBE_DRAIN = _family(
    "probe_drain_seconds", "summary", "probe.drain.duration s",
    "Time from the grace period until all rows were read.", "probe", unit="seconds",
)  # fmt: skip
HOOK = _family(
    "hook", "info", "hook 1",
    "How a program is attached; mode removed: another process detached it.", "interface", "hook",
    "mode",
)  # fmt: skip
_METRIC = ("probe", "side", "metric", "key")
METRIC_COUNT = _family(
    "metric", "counter", "metric.count 1",
    "Sum of an entry of a user probe's metric, over all windows.", *_METRIC, "field",
)  # fmt: skip
METRIC_VALUE = _family(
    "metric_value", "gauge", "metric.value 1",
    "An entry of a user probe's metric in the last window.", *_METRIC, "field",
)  # fmt: skip
METRIC_HISTOGRAM = _family(
    "metric_histogram", "histogram", "metric.histogram 1", "A histogram of a user probe.", *_METRIC
)
METRIC_LEFT_OUT = _family(
    "metric_left_out_entries", "gauge", "metric.left_out {entry}",
    "Entries of a metric that had no series in the last window.", "probe", "side", "metric",
)  # fmt: skip
EVENTS = _family(
    "events", "counter", "event.count {event}", "Entries of the event log.", "severity"
)

OUTPUT_STATE = _family(
    "output_state", "stateset", "output.state 1", "State of an output.", "output"
)
OUTPUT_DELIVERED = _family(
    "output_delivered_records", "counter", "output.delivered {record}",
    "Records that an output delivered.", "output",
)  # fmt: skip
OUTPUT_UNDELIVERED = _family(
    "output_undelivered_records", "counter", "output.undelivered {record}",
    "Records that an output did not deliver, by reason.", "output", "reason",
)  # fmt: skip
OUTPUT_RETRIES = _family(
    "output_retries", "counter", "output.retry.count {retry}", "Repeated deliveries.", "output"
)
OUTPUT_QUEUED = _family(
    "output_queued_records", "gauge", "output.queued {record}",
    "Records in the queue of an output.", "output",
)  # fmt: skip
OUTPUT_QUEUE = _family(
    "output_queue_bytes", "gauge", "output.queue.size By", "Memory of the queue of an output.",
    "output", unit="bytes",
)  # fmt: skip
UNWRITTEN = _family(
    "unwritten_rows", "counter", "row.unwritten {row}",
    "Rows of a table that could not be written to its file.", "table",
)  # fmt: skip
RESIDENT_MEMORY = _family(
    "resident_memory_bytes", "gauge", "process.memory.usage By",
    "Resident memory of the controller's process.", unit="bytes",
)  # fmt: skip
MAP_MEMORY = _family(
    "map_memory_bytes", "gauge", "map.memory.usage By", "Kernel memory of all maps.", unit="bytes"
)
MAP_MEMORY_LIMIT = _family(
    "map_memory_limit_bytes", "gauge", "map.memory.limit By",
    "Most kernel memory of maps; 0: unknown.", unit="bytes",
)  # fmt: skip
BUDGET = _family(
    "budget_ratio", "gauge", "budget 1", "CPU budget of a core, of each part; 0: none.",
    unit="ratio",
)  # fmt: skip
CPU_USED = _family(
    "cpu_used_ratio", "gauge", "cpu.utilization 1",
    "CPU time of a core over 5 s: user space, kernel.", "part", unit="ratio",
)  # fmt: skip
BUDGET_STEPS = _family(
    "budget_steps", "gauge", "budget.step.count {step}", "Steps that the budget takes now."
)
