"""The steps of the CPU budget, in their order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

from probes.control.budget import Resource, Step
from probes.flow.probe import FlowProbe
from probes.sockets.records import PROBE as SOCKETS

if TYPE_CHECKING:
    from probes.control.running_probe import RunningProbe
    from probes.monitor.control.service import MonitorService
    from probes.sockets.probe import SocketsProbe

OWNERS_EVERY = 4
"""Windows of flows for one with owners."""
LONGER = 4
"""How many times as long windows of flows are."""
_LONGEST_S = 300.0


class BudgetHost(Protocol):
    """Parts of a controller that the steps turn."""

    def built_in(self, name: str) -> RunningProbe | None:
        """Return a built-in probe that runs; None if it does not."""

    def monitored(self) -> MonitorService | None:
        """Return the monitor; None if it does not run."""


def flow_probe(host: BudgetHost) -> FlowProbe | None:
    """Return the flow probe; None if it does not run."""
    running = host.built_in(FlowProbe.name)
    return cast(FlowProbe, running.probe) if running else None


_USER = frozenset({Resource.USER})
_BOTH = frozenset(Resource)


def _owners(host: BudgetHost, on: bool) -> None:
    if running := host.built_in(SOCKETS):
        cast("SocketsProbe", running.probe).every = OWNERS_EVERY if on else 1


def _longer(host: BudgetHost, on: bool) -> None:
    if running := host.built_in(FlowProbe.name):
        running.interval = min(running.probe.interval * (LONGER if on else 1), _LONGEST_S)


def _applications(host: BudgetHost, on: bool) -> None:
    if service := host.monitored():
        service.hold_applications(on)


def _monitor(host: BudgetHost, on: bool) -> None:
    if service := host.monitored():
        service.probe.suspended = on


def _flows(host: BudgetHost, on: bool) -> None:
    if flows := flow_probe(host):
        flows.turn_off(on)


def _has_flows(host: BudgetHost) -> bool:
    return flow_probe(host) is not None


def _has_owners(host: BudgetHost) -> bool:
    return host.built_in(SOCKETS) is not None


def _has_monitor(host: BudgetHost) -> bool:
    return host.monitored() is not None


def _runs_applications(host: BudgetHost) -> bool:
    service = host.monitored()
    return service is not None and bool(service.probe.router.running())


STEPS: tuple[Step[BudgetHost], ...] = (
    Step(
        "owners", f"owners of flows only in each window of {OWNERS_EVERY}",
        "owners of flows in every window", _USER, _has_owners, _owners,
    ),
    Step(
        "windows", f"windows of flows last {LONGER} times as long",
        "windows of flows have their own length", _USER, _has_flows, _longer,
    ),
    Step(
        "largest", "windows have their largest flows only, and count the packets of the others",
        "windows have all flows", _USER, _has_flows, lambda host, on: None, limits_rows=True,
    ),
    Step(
        "applications", "applications of policies get no packets", "applications get packets",
        _BOTH, _runs_applications, _applications,
    ),
    Step(
        "monitor", "the monitor sees no packets", "the monitor sees packets",
        _BOTH, _has_monitor, _monitor,
    ),
    Step(
        "flows", "packets are counted in no flow", "packets are counted in flows",
        _BOTH, _has_flows, _flows,
    ),
)  # fmt: skip
"""The steps of a run, in their order; they end in the opposite order."""
