"""Whole probes are valid packets of their flow: connection tracking translates and passes them.

Probes of UDP are whole with `--guard none` only.
"""

from __future__ import annotations

import json
import time

import pytest

from app.lab import netns
from app.lab.plan import CLIENT
from bpf.compiler import Compiler
from probes.path.options import Guard
from probes.path.records import DESTINATION_HOP, Altered, ProbeOutcome
from probes.path.targets import TracedDestination
from tests.probes.path.wire.frames import ECHO, TCP, UDP, Tracing, packed, tracing_options
from tests.topologies.application import application
from tests.topologies.network import ROUTERS, VERSIONS, Topology, topology

FIREWALLS = ("r2", "r3")
RULE = "ct state invalid counter drop"


def dropped(network: Topology, router: str) -> int:
    """Packets that the router's rule has dropped."""
    found = json.loads(network.run(router, "nft -j list chain inet filter_forward rules"))
    (rule,) = (each["rule"] for each in found["nftables"] if "rule" in each)
    (counter,) = (each["counter"] for each in rule["expr"] if "counter" in each)
    return int(counter["packets"])


@pytest.mark.slow
def test_whole_probes_pass_translation_and_firewalls(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every hop answers, each quote is as sent, and the application notices nothing."""
    monkeypatch.setattr(TracedDestination, "decide", lambda *_: None)
    with topology() as network:
        network.translate("r2")
        for router in FIREWALLS:
            network.rules(router, "filter forward 0", RULE)
        with netns.inside(network.nodes[CLIENT]):
            options = tracing_options(Guard.NONE)
            tracing = Tracing(compiler, network.interface, options)
        try:
            for destination in network.servers.values():
                tracing.probe.trace(destination)
            tracing.force(*range(1, ROUTERS + 1))
            for target in tracing.probe._targets:
                target._kernel["interval_ns"] = 2_000_000
            with application(network) as running:
                time.sleep(2)
                report = running.finish()
            rows = tracing.rows()
            rows = rows[rows["hop"] < DESTINATION_HOP]
        finally:
            tracing.close()
        invalid = {router: dropped(network, router) for router in FIREWALLS}
        routers = network.responders()
    assert invalid == dict.fromkeys(FIREWALLS, 0)
    assert report.harm() == {}
    assert set(rows["outcome"]) == {ProbeOutcome.ANSWERED}
    assert rows["whole"].all()
    for version in VERSIONS:
        for protocol in (TCP, UDP, ECHO[version]):
            for hop, addresses in enumerate(routers, 1):
                found = rows[
                    (rows["version"] == version)
                    & (rows["protocol"] == protocol)
                    & (rows["hop"] == hop)
                ]
                responders = {bytes(row["responder"]) for row in found}
                assert responders == {packed(addresses[version]).ljust(16, b"\0")}
                assert set(found["altered"]) <= {Altered(0)}, (version, protocol, hop)
