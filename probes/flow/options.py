"""How flows are counted: what an operator chooses."""

from __future__ import annotations

from dataclasses import dataclass, field

from bpf.attach.attachment import Hook
from probes.flow.filter import FlowFilter
from probes.tunnels import Tunnels


@dataclass(frozen=True, slots=True)
class FlowOptions:
    """The flow probe on one interface."""

    interval: float = 1.0
    """Seconds of a window; 0: only exports end windows."""
    ingress: Hook | None = None
    """XDP or TC_INGRESS; None: the hook that suits the interface."""
    capture: FlowFilter = field(default_factory=FlowFilter)
    """Flows that are counted."""
    tunnels: Tunnels = Tunnels.OUTER
