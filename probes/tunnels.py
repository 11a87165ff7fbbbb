"""Flows of tunnels: which of the packets in a packet has a flow."""

from __future__ import annotations

from enum import StrEnum


class Tunnels(StrEnum):
    """The packets in GRE, IP in IP, VXLAN, Geneve and GTP-U that flows are made of."""

    OUTER = "outer"
    """The tunnel's own packet."""
    INNER = "inner"
    """The innermost IP packet."""
    BOTH = "both"
    """Each packet counts in both flows; the monitor counts it once, by the inner one."""

    @property
    def macro(self) -> int:
        """TUNNELS of bpf/include/packet.h."""
        return list(Tunnels).index(self)
