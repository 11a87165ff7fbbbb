"""State of the monitor, of its policies and of its applications, as front ends see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from probes.monitor.actions.state import ActionInfo
from probes.monitor.finding import Finding
from probes.monitor.options import Input
from probes.monitor.state import PolicyState

if TYPE_CHECKING:
    from probes.monitor.policy import Policy

Measured = float
"""NaN if it could not be measured."""


@dataclass(frozen=True, slots=True)
class PolicyInfo:
    policy: Policy
    state: PolicyState
    since_utc_ns: int
    """When it entered the state."""
    until_utc_ns: int
    """When HOLD or COOLDOWN ends; 0 in other states."""
    forced: bool
    """Whether an operator activated it: only an operator ends it."""
    cause: str
    """Cause of the last transition; empty if there was none."""
    selected: int
    """Packets that it selected for its applications since it was added."""
    finding: Finding | None = None
    """Culprits of its last begin; None before the first."""
    action: ActionInfo | None = None
    """Its action on packets; None without one."""


@dataclass(frozen=True, slots=True)
class ApplicationInfo:
    name: str
    """The name of its probe, too."""
    summary: str
    active: bool
    """Whether packets go to it now: an active policy runs it."""
    packets: int
    """Packets or telemetry records that it got since it was loaded."""
    ns: Measured
    """Nanoseconds a packet, measured at load."""
    held: bool = False
    """Whether an active policy runs it, and the CPU budget gives it no packets."""

    @property
    def state(self) -> str:
        """`active`, `held` or `idle`."""
        return "active" if self.active else "held" if self.held else "idle"


@dataclass(frozen=True, slots=True)
class MonitorInfo:
    interface: str
    hook: str
    """`xdp` or `tc ingress`."""
    input: Input
    bits: int
    interval: float
    """Seconds."""
    offload: str
    """Result of the request to offload, in one line; empty without a request."""
    policies: tuple[PolicyInfo, ...]
    applications: tuple[ApplicationInfo, ...]
    profiles: Mapping[str, tuple[str, ...]]
    """Named sets of applications (S2.12)."""
    held: bool = False
    """Whether the CPU budget keeps packets from the monitor: conditions have no outcomes."""
