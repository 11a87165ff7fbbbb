"""State of the monitor, of its policies and of its applications, as front ends see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from probes.monitor.options import Input
from probes.monitor.state import PolicyState

if TYPE_CHECKING:
    from probes.monitor.policy import Policy

Measured = float
"""NaN where it could not be measured."""


@dataclass(frozen=True, slots=True)
class PolicyInfo:
    """A policy and where it stands."""

    policy: Policy
    state: PolicyState
    since_utc_ns: int
    """Since when it is in that state."""
    until_utc_ns: int
    """When HOLD or COOLDOWN is over; 0 in other states."""
    forced: bool
    """Whether an operator activated it: it stays so until an operator ends it."""
    cause: str
    """Of its last transition, in words; empty where it made none."""
    selected: int
    """Packets that its selection gave to its applications, since it was there."""


@dataclass(frozen=True, slots=True)
class ApplicationInfo:
    """An application of the monitor."""

    name: str
    """Its probe's name too."""
    summary: str
    active: bool
    """Whether any packets go to it now: some policy that runs it is active."""
    packets: int
    """Packets, or telemetry records, that it was given since it was loaded."""
    ns: Measured
    """For each of them, measured when it was loaded."""


@dataclass(frozen=True, slots=True)
class MonitorInfo:
    """The monitor."""

    interface: str
    hook: str
    """`xdp` or `tc ingress`."""
    input: Input
    bits: int
    interval: float
    """Seconds."""
    offload: str
    """What became of a wish for it, in one line; empty where there was none."""
    policies: tuple[PolicyInfo, ...]
    applications: tuple[ApplicationInfo, ...]
    profiles: Mapping[str, tuple[str, ...]]
    """Named sets of applications (S2.12)."""
