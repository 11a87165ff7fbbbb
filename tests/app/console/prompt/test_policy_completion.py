"""Completion inside policies."""

from __future__ import annotations

import pytest

from app.console.prompt.policy_completion import complete
from bpf.quantities import TIMES


def completed(typed: str) -> list[str]:
    """Candidates at `|`, or at the end."""
    before, _, after = typed.partition("|")
    found = complete(before + after, len(before), ("syn_flood", "port_scan"), ("mine", "web"))
    return [found.applied(before + after, len(before), each)[0] for each in found.candidates]


@pytest.mark.parametrize(
    ("typed", "made"),
    [
        ("syn", ["syn_flood"]),
        ("scan", ["port_scan"]),
        ("b: rate(bytes) > 1M -> hea", ["b: rate(bytes) > 1M -> heavy_hitters"]),
        ("b: flows > 5 -> dns, mi", ["b: flows > 5 -> dns, mine"]),
        ("b: flows > 5 -> tra", ["b: flows > 5 -> trace:3"]),
        ("b: flows > 5 -> dns ", ["b: flows > 5 -> dns on"]),
        ("b: flows > 5 -> dns on prot", ["b: flows > 5 -> dns on proto:"]),
        ("b: flows > 5 -> dns on udp or sr", ["b: flows > 5 -> dns on udp or src:"]),
        ("b: flows > 5 -> dns on unit:x or cont", ["b: flows > 5 -> dns on unit:x or container:"]),
        ("b: packets on use", ["b: packets on user:"]),
        ("b: retr", ["b: retransmissions"]),
        ("b: udp_p", ["b: udp_packets"]),
        ("b: base", ["b: baseline("]),
        ("b: rate(byt| > 5", ["b: rate(bytes > 5"]),
        ("b: alw", ["b: always"]),
        ("b: packets on dpo", ["b: packets on dport:"]),
        ("b: rate(packets on proto:gr", ["b: rate(packets on proto:gre"]),
        ("b: udp > 5 an", [f"b: udp > 5 {word}" for word in ("and", "answered_flows")]),
        ("b: rate(bytes) > 15kb", [f"b: rate(bytes) > 15{u}" for u in ("kbit", "kbps", "kbit/s")]),
        ("b: flows > 5 hold 10", [f"b: flows > 5 hold 10{unit}" for unit in TIMES]),
        ("b: flows > 5 unt", ["b: flows > 5 until"]),
        ("b: flows > 5 suspects dp", ["b: flows > 5 suspects dport:"]),
    ],
)  # fmt: skip
def test_every_part_of_a_policy_is_completed(typed: str, made: list[str]) -> None:
    assert completed(typed) == made
