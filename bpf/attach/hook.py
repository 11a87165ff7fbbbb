"""The places of an interface where packet programs run."""

from __future__ import annotations

from enum import Enum

from bpf.abi import AttachType, ProgType
from bpf.attach.event_hook import EventHook


class Hook(Enum):
    """Where a program sees packets."""

    XDP = "xdp"
    TC_INGRESS = "tc ingress"
    TC_EGRESS = "tc egress"

    @property
    def prog_type(self) -> ProgType:
        return ProgType.XDP if self is Hook.XDP else ProgType.SCHED_CLS

    @property
    def attach_type(self) -> AttachType | None:
        return None

    @property
    def macro(self) -> str:
        """The macro that tells a probe's source which hook it is for (include/probe.h)."""
        return f"HOOK_{self.name}"


AnyHook = Hook | EventHook
"""A place where programs run: of an interface, or another one."""
