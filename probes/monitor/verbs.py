"""Verbs of alarms: what the culprits of a shipped policy do, by the policy's name.

The verb joins the two ends of a finding to a sentence: `192.0.2.7 scans 10.0.0.1`. It names what
the condition measures. An operator's policy of another name has an arrow instead.
"""

from __future__ import annotations

ARROW = "->"
_SCANS = ("scans", "scan")
_FLOODS = ("floods", "flood")
_SWEEPS = ("sweeps", "sweep")
_VERBS = {
    "syn_flood": _FLOODS,
    "syn_ack_flood": _FLOODS,
    "ack_flood": _FLOODS,
    "tcp_flood": _FLOODS,
    "rst_flood": _FLOODS,
    "udp_flood": _FLOODS,
    "carpet_bombing": _FLOODS,
    "icmp_flood": _FLOODS,
    "gre_flood": _FLOODS,
    "protocol_flood": _FLOODS,
    "fragment_flood": ("floods with fragments", "flood with fragments"),
    "dns_amplification": ("sends large DNS answers to", "send large DNS answers to"),
    "amplification": ("sends unasked answers to", "send unasked answers to"),
    "port_scan": _SCANS,
    "slow_scan": _SCANS,
    "udp_scan": _SCANS,
    "protocol_scan": _SCANS,
    "tcp_sweep": _SWEEPS,
    "udp_sweep": _SWEEPS,
    "icmp_sweep": _SWEEPS,
    "worm": ("tries ports of worms at", "try ports of worms at"),
    "slowloris": ("keeps connections open at", "keep connections open at"),
    "http_flood": ("floods with requests", "flood with requests"),
    "brute_force": ("logs in again and again at", "log in again and again at"),
    "dns_water_torture": ("floods with queries", "flood with queries"),
    "dns_tunnel": ("sends long DNS queries to", "send long DNS queries to"),
    "icmp_tunnel": ("sends large pings to", "send large pings to"),
    "outgoing_volume": ("sends much to", "send much to"),
    "dhcp_storm": (
        "asks again and again for an address at",
        "ask again and again for addresses at",
    ),
}


def verb_of(policy: str, sources: int) -> str:
    """Return the verb for so many culprits, or an arrow."""
    one, many = _VERBS.get(policy, (ARROW, ARROW))
    return one if sources == 1 else many
