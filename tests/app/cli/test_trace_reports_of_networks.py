"""`trace --report` on networks as people have them."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from app.lab.plan import CLIENT
from tests.support.runs import deck, stop
from tests.topologies.application import application
from tests.topologies.catalogue import LAYOUTS, PARALLEL, Layout
from tests.topologies.network import VERSIONS, topology
from tests.topologies.scenes import TOLERANCE_MS

pytestmark = pytest.mark.slow

FLOWS = 12
"""One of them at least on each branch, but for one run in a thousand."""


def traced(folder: Path, layout: Layout, **options: Any) -> tuple[dict[int, Any], list[float]]:
    """Destinations of the report as JSON by IP version, and the built delays."""
    with topology(layout.plan) as network:
        layout.change(network)
        errors = folder / "stderr"
        arguments = (
            "trace", "-i", network.interface, "--timeout", "0.5", *network.servers.values(),
            "--report", "json",
        )  # fmt: skip
        with (
            errors.open("w") as stderr,
            application(network, **options),
            deck(*arguments, ns=network.nodes[CLIENT], stderr=stderr) as run,
        ):
            end = time.monotonic() + 30
            while "tc egress" not in errors.read_text() and time.monotonic() < end:
                time.sleep(0.02)
            time.sleep(4)
            out = stop(run, signal.SIGINT)[1]
        found = {each["address"]: each for each in json.loads(out)["destinations"]}
        return {v: found[network.servers[v]] for v in VERSIONS}, list(network.delays_ms())


@pytest.mark.parametrize("name", ["plain", "masquerade"])
def test_hops_and_destination_have_the_built_delays(tmp_path: Path, name: str) -> None:
    """The destination may answer probes: then it is the last hop."""
    found, delays = traced(tmp_path, LAYOUTS[name])
    for destination in found.values():
        # A busy machine delays the median, but not the least.
        least = [hop["routers"][0]["min_ns"] / 1e6 for hop in destination["hops"]]
        assert len(delays) - 1 <= len(least) <= len(delays)
        assert least == pytest.approx(delays[: len(least)], abs=TOLERANCE_MS)
        assert [hop["lost"] for hop in destination["hops"]] == [0] * len(least)
        ends = {each["measured_by"]: each for each in destination["end_to_end"]}
        assert {"tcp ack", "icmp echo"} <= ends.keys()
        echo = ends["icmp echo"]
        assert echo["min_ns"] / 1e6 == pytest.approx(delays[-1], abs=TOLERANCE_MS)
        assert echo["lost"] == 0
        assert destination["packets"] > destination["probes"]["sent"] / 10


def test_branches_share_a_hop(tmp_path: Path) -> None:
    found, _ = traced(tmp_path, LAYOUTS["branches"], kinds=("udp",), flows=FLOWS, rate=50)
    extra = PARALLEL.addresses("d1")
    for version, address in ((4, extra.ipv4), (6, extra.ipv6)):
        routers = found[version]["hops"][3]["routers"]
        assert len(routers) == 2
        assert address in [each["address"] for each in routers]
        assert sum(each["share"] for each in routers) == pytest.approx(1, abs=1e-5)
        assert sum(each["flows"] for each in routers) == FLOWS == found[version]["flows"]


def test_routers_that_answer_seldom_lose_nothing(tmp_path: Path) -> None:
    """r3 is silent, and r5, the last router, limits its answers: the flow itself clears both."""
    found, _ = traced(tmp_path, LAYOUTS["limited"])
    for destination in found.values():
        silent, limited = destination["hops"][2], destination["hops"][4]
        assert (silent["routers"], silent["loss"], silent["cleared"]) == ([], 1.0, True)
        assert 0 < limited["loss"] < 1
        assert limited["cleared"]
        own = destination["probes"]
        assert (own["lost"], own["cleared"]) == (0, silent["lost"] + limited["lost"])
