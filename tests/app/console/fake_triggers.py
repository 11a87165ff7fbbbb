"""A made-up monitor: policies, applications, and a window of it at a time."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace

import numpy as np

from probes.monitor.finding import Finding
from probes.monitor.info import ApplicationInfo, MonitorInfo, PolicyInfo
from probes.monitor.options import Input
from probes.monitor.policy import Policy
from probes.monitor.records import METRIC, POLICY, TRANSITION
from probes.monitor.state import METRICS_TABLE, POLICIES_TABLE, TRIGGERS_TABLE, PolicyState
from probes.snapshot import Snapshot

SECOND_NS = 10**9
SUMMARIES = {
    "accounting": "bytes and packets by destination address",
    "dns": "DNS flows, their rates and sizes of answers",
    "half_open": "TCP connections that are not answered",
    "heavy_hitters": "the largest flows, within an error bound",
    "port_scan": "sources that try many ports",
}
NAN = math.nan


def policy(
    short: str, state: PolicyState = PolicyState.ARMED, *, forced: bool = False, selected: int = 0,
    cause: str = "", ago: float = 60.0, left: float = 0.0, now_ns: int = 0,
) -> PolicyInfo:  # fmt: skip
    """A policy that has been in a state for `ago` seconds, and is for `left` more."""
    now = now_ns or time.time_ns()
    until = now + round(left * 1e9) if left else 0
    since = now - round(ago * 1e9)
    return PolicyInfo(Policy.parse_short(short), state, since, until, forced, cause, selected)


def application(name: str, *, packets: int = 0, active: bool = False) -> ApplicationInfo:
    return ApplicationInfo(name, SUMMARIES.get(name, ""), active, packets, 40.0 + len(name))


def monitor(*policies: PolicyInfo, **changes: object) -> MonitorInfo:
    """A monitor with all built-in applications; the running ones are active."""
    runs = {name for one in policies if one.state.runs for name in one.policy.run}
    info = MonitorInfo(
        "eth0", "xdp", Input.REGULAR, 12, 1.0, "", policies,
        tuple(application(name, active=name in runs, packets=1000 * (name in runs))
              for name in SUMMARIES),
        {},
    )  # fmt: skip
    return replace(info, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Said:
    """One window's row of a policy."""

    value: float = NAN
    threshold: float = NAN
    state: PolicyState = PolicyState.ARMED
    error: float = 0.0
    """Of the value, at each side."""
    holds: bool = False
    certain: bool = True
    selected: int = 0
    unit: str = ""
    comparison: str = ""


@dataclass
class Traffic:
    """One window's metrics."""

    tcp: int = 6000
    udp: int = 3000
    icmp: int = 10
    other: int = 90
    flows: float = 1000.0
    size: int = 1000


@dataclass
class FakeMonitor:
    """Makes its tables, a window at a time."""

    interval: float = 1.0
    windows: int = 0
    start_ns: int = field(default_factory=time.monotonic_ns)
    offset_ns: int = field(default_factory=lambda: time.time_ns() - time.monotonic_ns())

    @property
    def now_ns(self) -> int:
        return self.start_ns + round(self.windows * self.interval * SECOND_NS)

    def window(self, says: dict[str, Said], traffic: Traffic | None = None) -> list[Snapshot]:
        """Metrics and policies of the next window."""
        self.windows += 1
        rows = np.zeros(len(says), POLICY)
        for row, (name, said) in zip(rows, says.items(), strict=True):
            row["policy"], row["state"], row["holds"] = name, said.state, said.holds
            row["certain"], row["selected"] = said.certain, said.selected
            row["value"], row["threshold"] = said.value, said.threshold
            row["unit"], row["comparison"] = said.unit, said.comparison
            row["low"], row["high"] = (said.value * (1 + end * said.error) for end in (-1, 1))
        return [
            self._table(metrics(traffic or Traffic()), METRICS_TABLE),
            self._table(rows, POLICIES_TABLE),
        ]

    def transition(
        self,
        name: str,
        before: PolicyState,
        after: PolicyState,
        cause: str,
        traffic: Traffic | None = None,
        finding: Finding | None = None,
    ) -> Snapshot:
        """One of the last window."""
        rows = np.zeros(1, TRANSITION)
        rows["policy"], rows["before"], rows["after"] = name, before, after
        rows["at_ns"], rows["cause"] = self.now_ns, cause.encode()
        if traffic is not None:
            rows["metrics"] = metrics(traffic)
        if finding is not None:
            rows["finding"], rows["filter"] = finding.text, finding.filter
            rows["found_packets"] = finding.packets
        return self._table(rows, TRIGGERS_TABLE)

    def _table(self, rows: np.ndarray, metric: str) -> Snapshot:
        return Snapshot(
            probe="monitor",
            interface="eth0",
            window=self.windows,
            generation=1,
            start_ns=self.now_ns - round(self.interval * SECOND_NS),
            end_ns=self.now_ns,
            end_utc_ns=self.now_ns + self.offset_ns,
            rows=rows,
            losses={},
            occupancy=0.0,
            swap_ns=50_000,
            drain_ns=80_000,
            metric=metric,
        )


def metrics(traffic: Traffic) -> np.ndarray:
    """One row of dtype METRIC (1,)."""
    rows = np.zeros(1, METRIC)
    for name in ("tcp", "udp", "icmp"):
        rows[f"{name}_packets"] = getattr(traffic, name)
        rows[f"{name}_bytes"] = getattr(traffic, name) * traffic.size
    rows["packets"] = traffic.tcp + traffic.udp + traffic.icmp + traffic.other
    rows["bytes"] = rows["packets"] * traffic.size
    rows["flows"] = traffic.flows
    rows["flows_low"], rows["flows_high"] = traffic.flows * 0.97, traffic.flows * 1.03
    return rows
