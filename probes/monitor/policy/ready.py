"""Policies that come with probedeck, with their purposes."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache
from pathlib import Path

from bpf.errors import UsageError, did_you_mean
from probes.monitor.policy.file import PolicyFile, load
from probes.monitor.policy.model import Policy

FILE = Path(__file__).with_name("ready.toml")
_POLICY = re.compile(r'((?:^# .*\n)+)\[\[policy\]\]\nname = "(\w+)"', re.MULTILINE)
"""A policy's comment, and its name."""
_NAME = re.compile(r"\s*(\w+)\s*")
ALL = "all"
GROUPS = {
    "floods": (
        "syn_flood", "syn_ack_flood", "ack_flood", "tcp_flood", "rst_flood", "udp_flood",
        "carpet_bombing", "icmp_flood", "gre_flood", "protocol_flood", "fragment_flood",
        "slowloris", "http_flood", "dns_water_torture", "dhcp_storm", "arp_storm",
    ),
    "scans": (
        "port_scan", "slow_scan", "udp_scan", "tcp_sweep", "worm", "udp_sweep", "icmp_sweep",
        "protocol_scan",
    ),
    "amplification": ("dns_amplification", "amplification"),
    "logins": ("brute_force",),
    "tunnels": ("dns_tunnel", "icmp_tunnel", "outgoing_volume"),
}  # fmt: skip
"""Names of the policies that tell attacks, by kind of attack."""


@cache
def shipped() -> PolicyFile:
    """Return the file of ready policies."""
    return load(FILE)


@cache
def purposes() -> dict[str, str]:
    """Return the first sentence of each policy's comment, by name, without reading conditions."""
    found = _POLICY.findall(FILE.read_text(encoding="utf-8"))
    texts = ((name, re.sub(r"\s*\n?# ", " ", comment).strip()) for comment, name in found)
    return {name: text.split(". ")[0].rstrip(".") for name, text in texts}


def menu() -> dict[str, str]:
    """Return the answers to the question for a policy, with their meanings: groups, then names."""
    groups = {name: f"Group: {', '.join(of)}" for name, of in GROUPS.items()}
    return {ALL: f"All {len(purposes())} policies", **groups, **(purposes() | groups)}


def policies_of(text: str) -> tuple[Policy, ...]:
    """Return the ready policies of a group or of a name, or else the policy in the short form
    `NAME: ... -> RUN`.

    The group `amplification` has the policy of this name. Raises UsageError.
    """
    if (named := _NAME.fullmatch(text)) is None:
        return (Policy.parse_short(text),)
    groups: dict[str, Collection[str]] = {**{name: [name] for name in purposes()}, **GROUPS}
    groups[ALL] = purposes()
    if (wanted := groups.get(named[1])) is None:
        hint = did_you_mean(named[1], groups) or "or type one: NAME: CONDITION -> RUN"
        raise UsageError(f"no ready policy is called {named[1]!r}", hint=hint)
    return tuple(policy for policy in shipped().policy if policy.name in wanted)
