"""`probedeck explain` in a network with a queue at a known hop."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.topologies.bulk import bulk
from tests.topologies.network import PLAIN, Topology, topology

_QUEUE = "tbf rate 8mbit burst 4kb latency 400ms"
_HOP = 4
"""The queue is behind r3: packets to r4 and farther wait."""
_FLOW = "dport:9010"


@pytest.fixture(scope="module")
def network() -> Iterator[Topology]:
    """A lab in which an upload fills the queue."""
    with ExitStack() as stack:
        made = stack.enter_context(topology(PLAIN))
        made.run(f"r{_HOP - 1}", f"tc qdisc add dev right root {_QUEUE}")
        stack.enter_context(bulk(made, made.servers[4]))
        # A few lost acknowledgements change no verdict.
        rule = "tcp sport 9010 limit rate 2/second burst 1 packets drop"
        made.rules("client", "filter input 0", rule)
        yield made


def _start(network: Topology, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-I", "-m", "app", "explain", "-i", network.interface, *arguments]
    pipe = subprocess.PIPE
    return network.start("client", command, stdout=pipe, stderr=pipe)


def test_the_upload_waits_at_its_hop_and_other_filters_name_it(network: Topology) -> None:
    found, missed = (
        _start(network, _FLOW, "--json"), _start(network, "port:1")
    )  # fmt: skip
    output, errors = found.communicate(timeout=60)
    assert found.returncode == 0, errors
    document: dict[str, Any] = json.loads(output)
    assert document["where"]["hop"] == _HOP, document
    assert (document["why"]["limit"], document["why"]["floor_us"] > 0) == ("queue", True), document
    assert document["where"]["queue_ms"] > 10
    assert document["who"]["process"].startswith("python")
    assert document["sentence"].startswith("python")
    assert f"of queue at hop {_HOP}, since " in document["sentence"]
    drops = [each for each in document["lost"] if "netfilter_drop" in each["reason"]]
    assert [(each["of_flow"], each["packets"] > 0) for each in drops] == [(True, True)], document
    # Routers and the server are namespaces of this kernel, which drops the path's probes there.
    reasons = " ".join(each["reason"] for each in document["lost"])
    assert "ip_inhdr" not in reasons, document
    assert "tcp_flags" not in reasons, document
    assert document["counts_drops"]
    output, errors = missed.communicate(timeout=60)
    assert (missed.returncode, output) == (1, "")
    assert "no conversation passes the filter 'port:1'" in errors
    assert f"{network.servers[4]}:9010" in errors
