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


TUNNELS = {"gre": 1, "ipip": 2, "vxlan": 3, "geneve": 4, "gtp": 5}
"""Kinds of tunnels by name, as `enum tunnel` of bpf/include/tunnel.h; 0: no tunnel."""
_TUNNEL_NAMES = {number: name for name, number in TUNNELS.items()}


def tunnel_name(number: int) -> str:
    """The kind of a tunnel; empty for 0."""
    return _TUNNEL_NAMES.get(number, "")
