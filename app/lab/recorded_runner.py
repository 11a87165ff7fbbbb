"""Policies over a recording: its windows in place of packets.

A condition is evaluated on the monitor's metrics as they were recorded, or on values that follow
exactly from the recorded flows. All terms of a policy must come from one of the two, because the
windows of flows begin and end at other times.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from app.lab.frames.windows import QUIET, Told
from app.lab.policy_runner import CaptureResult
from app.outputs.view import is_table
from app.recording.export import tables_of
from app.recording.reader import Recording
from app.recording.segment import Segment
from bpf.arrays import Array, Rows
from bpf.quantities import counted
from probes.flow.filter import FlowFilter, key_fields
from probes.flow.records import FLOW, FlowDirection
from probes.monitor.condition.series import METRIC_NAMES
from probes.monitor.control.culprits import finding_for
from probes.monitor.engine import Engine
from probes.monitor.finding import PORTED, Finding
from probes.monitor.policy import Policy
from probes.monitor.records import METRIC, PROTOCOLS
from probes.monitor.selected import OUT, Estimate, SelectedMetric
from probes.monitor.state import METRICS_TABLE, PROBE
from probes.snapshot import Loss, LossReason, Snapshot

_KEY = frozenset({"", "vlan", *key_fields(named=False)})
"""Fields of filters that are the same for all packets of a flow; empty: a bare word."""
_UNITS = ("packets", "bytes")
_PARTS: Mapping[str, tuple[str, ...]] = {
    "flows": ("source", "destination", "source_port", "destination_port", "protocol", "version"),
    "sources": ("source", "version"),
    "destinations": ("destination", "version"),
    "ports": ("destination_port",),
    "source_ports": ("source_port",),
}
"""Metrics that count distinct values of these fields."""
_ROW = frozenset(f"{protocol}_{unit}" for protocol in PROTOCOLS for unit in _UNITS) | {"flows"}
"""Metrics of all packets that follow from flows; frames without IP are in no flow."""
_PROTOCOLS = {"tcp": (6,), "udp": (17,), "icmp": (1, 58)}


def run_recording(directory: str, policies: Sequence[Policy]) -> CaptureResult:
    """Run policies over the windows of a recording, from its first to its last one.

    `frames` of the result are windows. Raises UsageError if the directory has no recording.
    """
    of_metrics, of_flows, untested = [], [], {}
    with Recording(directory) as recording:
        has_metrics = METRICS_TABLE in tables_of(recording)
        for policy in policies:
            if has_metrics and all(_is_of_all(metric) for metric in policy.terms):
                of_metrics.append(policy)
            elif lacking := next(filter(None, map(_lacking, sorted(policy.terms))), ""):
                untested[policy.name] = f"recorded flows have no {lacking}"
            else:
                of_flows.append(policy)
        metrics = _Run(recording, of_metrics, lambda window, named: (window.rows[0], {}))
        flows = _Run(recording, of_flows, _of_flows)
        for run in recording.runs():
            metrics.begin(run)
            flows.begin(run)
            for item in recording.items(run=run):
                if is_table(item, PROBE, METRICS_TABLE):
                    metrics.step(item)
                elif is_table(item, "flow", ""):
                    flows.step(item)
        notes = [*recording.damage()]
        if not flows.windows:
            untested |= {each.name: "the recording has no flows" for each in of_flows}
        begin_ns = min((run.begin_ns for run in (metrics, flows) if run.windows), default=0)
        told = sorted(
            (each for run in (metrics, flows) for each in run.told(begin_ns)),
            key=lambda each: each.seconds,
        )
    if vague := max(metrics.vague, flows.vague):
        notes.append(
            f"{counted(vague, 'window')} joined quiet ones, and count as their mean: a policy with "
            "so low a limit needs the capture itself"
        )
    if flows.cut:
        notes.append(f"flows of {counted(flows.cut, 'window')} lack packets: limits are wider")
    end_ns = max(metrics.end_ns, flows.end_ns)
    return CaptureResult(
        tuple(told), max(metrics.windows, flows.windows), (end_ns - begin_ns) / 1e9,
        metrics.busiest | flows.busiest, tuple(notes), begin_ns, untested,
    )  # fmt: skip


_Take = Callable[
    [Snapshot, frozenset[SelectedMetric]], tuple[Array, Mapping[SelectedMetric, Estimate]]
]
"""Returns a row of dtype METRIC, shape (), and the metrics of selections of a window."""


class _Run:
    """Policies over the windows of one table."""

    def __init__(self, recording: Recording, policies: Sequence[Policy], take: _Take) -> None:
        self.policies, self._recording, self._take = policies, recording, take
        self.windows = self.cut = self.vague = self.begin_ns = self.end_ns = 0
        """Times are UTC."""
        self.busiest: dict[str, str] = {}
        self._most = self._number = -1
        self._length_ns = 1
        """Length of the first window of the run: later ones may be several, joined."""
        self._begun: list[tuple[int, Told]] = []
        self._engine = Engine()
        self._run: Sequence[Segment] = ()

    def begin(self, run: Sequence[Segment]) -> None:
        """Begin another run: its windows have their own numbers, and maybe times of another one."""
        self._run, self._number = run, sys.maxsize

    def step(self, window: Snapshot) -> None:
        """Take in the next window."""
        length_ns = window.end_ns - window.start_ns
        if window.window <= self._number:  # A run begins, or its probe.
            self._engine, self._length_ns = Engine(), max(1, length_ns)
            for policy in self.policies:
                self._engine.set(policy, window.start_ns)
        elif window.window == self._number + 1:
            self._rest(window)
        self.begin_ns = self.begin_ns or window.start_utc_ns
        self._number, self.end_ns = window.window, window.end_utc_ns
        self.windows, self.cut = self.windows + 1, self.cut + bool(_not_counted(window).packets)
        row, selected = self._take(window, self._engine.metrics())
        joined, odd = divmod(length_ns, self._length_ns)
        count = 1 if odd else max(1, joined)
        self.vague += count > 1 and not self._engine.is_dull(QUIET + 1, 0.0)
        found = self._engine.window(row, window.end_ns, window.seconds, selected, count)
        statuses = {each.policy.name: each for each in self._engine.policies()}
        if row["packets"] > self._most:
            self._most = int(row["packets"])
            outcomes = ((name, each.outcome) for name, each in statuses.items())
            self.busiest = {name: outcome.summary for name, outcome in outcomes if outcome}
        for each in found:
            rows, seconds, lost = self._flows(window) if each.begins else (None, 0.0, 0)
            finding = None
            if rows is not None:
                finding = finding_for(statuses[each.policy], rows, seconds, lost)
            elif each.begins:
                finding = Finding("who is unknown: the recording has no flows of this time")
            self._begun.append((window.end_utc_ns, Told(0.0, each, finding)))

    def _rest(self, window: Snapshot) -> None:
        """Take in the windows before this one that a capture has left out: no frame came."""
        length_ns, utc_ns = self._length_ns, window.end_utc_ns - window.end_ns
        left = (window.start_utc_ns - self.end_ns) // length_ns
        while left > 0:
            end_ns = self.end_ns - utc_ns + length_ns
            taken, found = self._engine.rest(end_ns, length_ns / 1e9, left, {})
            self.end_ns += taken * length_ns
            self._begun += [(self.end_ns, Told(0.0, each)) for each in found]
            left -= taken

    def told(self, begin_ns: int) -> list[Told]:
        """Return the transitions, with seconds since a time."""
        return [replace(each, seconds=(at - begin_ns) / 1e9) for at, each in self._begun]

    def _flows(self, window: Snapshot) -> tuple[Rows[FLOW] | None, float, int]:
        """Return the flows of the windows that overlap, their seconds and their lost packets."""
        if is_table(window, "flow", ""):
            return window.rows, window.seconds, window.lost.packets
        # The last one ends after this window.
        later = window.end_utc_ns + round(window.seconds * 2e9)
        windows = [
            item for item in self._recording.items(window.start_utc_ns, later, self._run)
            if isinstance(item, Snapshot) and is_table(item, "flow", "")
            and item.start_utc_ns < window.end_utc_ns
        ]  # fmt: skip
        if not windows:
            return None, 0.0, 0
        rows = np.concatenate([each.rows for each in windows], dtype=FLOW)
        rows = rows[rows["last_ns"] >= window.start_ns]
        lost = sum(each.lost.packets for each in windows)
        return rows, sum(each.seconds for each in windows), lost


def _is_of_all(metric: SelectedMetric) -> bool:
    """Whether a metric of all packets is always counted."""
    return not metric.selection and metric.name in METRIC_NAMES


def _lacking(metric: SelectedMetric) -> str:
    """Return what a recording's flows lack for a metric; empty if nothing."""
    name = metric.name.removeprefix(OUT)
    if metric.of_owners or name not in (*_UNITS, *_PARTS, *_ROW):
        return f"{metric}"
    if not metric.selection and name in _UNITS:
        return f"frames without IP, for {metric}"
    root = FlowFilter.parse(metric.selection).root
    fields = {term.field for term in root.terms()} if root else set()
    if others := sorted(fields - _KEY):
        return f"{others[0]} of single packets, for {metric}"
    return ""


def _of_flows(
    window: Snapshot, wanted: frozenset[SelectedMetric]
) -> tuple[Array, Mapping[SelectedMetric, Estimate]]:
    row, lost = np.zeros((), METRIC), _not_counted(window)
    by = {
        direction: window.rows[window.rows["direction"] == direction] for direction in FlowDirection
    }
    came = by[FlowDirection.INGRESS]
    row["packets"] = came["packets"].sum()  # for the window with most packets
    for protocol, numbers in _PROTOCOLS.items():
        of = came[np.isin(came["protocol"], numbers)]
        for unit in _UNITS:
            row[f"{protocol}_{unit}"] = of[unit].sum()
    row["flows"] = row["flows_low"] = row["flows_high"] = _distinct(came, "flows")
    row["flows_high"] += lost.packets
    values = {}
    for metric in wanted:
        rows = by[FlowDirection.EGRESS if metric.outgoing else FlowDirection.INGRESS]
        rows = rows[FlowFilter.parse(metric.selection).mask(rows)]
        name = metric.name.removeprefix(OUT)
        value = int(rows[name].sum()) if name in _UNITS else _distinct(rows, name)
        more = lost.bytes if name == "bytes" else lost.packets
        values[metric] = Estimate(float(value), float(value), float(value + more))
    return row, values


def _not_counted(window: Snapshot) -> Loss:
    """Return the IP packets that are in no flow, such as those that the filter left out."""
    away = (loss for reason, loss in window.losses.items() if reason is not LossReason.NOT_IP)
    return sum(away, Loss())


def _distinct(rows: Rows[FLOW], name: str) -> int:
    """Count the distinct values of a part."""
    fields = _PARTS[name]
    if name.endswith("ports"):
        rows = rows[np.isin(rows["protocol"], PORTED) & (rows[fields[0]] != 0)]
    if not len(rows):
        return 0
    columns = (np.ascontiguousarray(rows[field]).view("u1") for field in fields)
    values = np.concatenate([each.reshape(len(rows), -1) for each in columns], axis=1)
    return len(np.unique(values, axis=0))
