"""Whether applications suffer while their paths are traced, on networks as people have them.

    python -I -m bench.undisturbed [--seconds 20] [--rounds 6]

Every datagram, byte and ping is checked, also while the route becomes longer and shorter by one to
ten routers every two seconds, and while a routing loop comes and heals. Each scene has three flows
of each kind. A transfer runs with and without tracing in turns.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from app.lab.plan import Detour
from bench.support.report import Report
from tests.topologies.application import KINDS, Application
from tests.topologies.bulk import Transfer, bulk
from tests.topologies.catalogue import LAYOUTS, LONG, Layout, loop
from tests.topologies.network import DELAYS, PLAIN, Topology, topology
from tests.topologies.scenes import During, play
from tests.topologies.tracing import Tracing, tracing

_FLIP_SECONDS = 2
_FLOWS, _RATE = 3, 70
"""Flows of each kind and IP version, and packets a second of each."""
_ROUND_SECONDS = 2.0
_LINE = "tbf rate 200mbit burst 64kb latency 50ms"
_LEAST = 0.99
"""Of the throughput without tracing."""


def packets(report: Report, folder: Path, seconds: float) -> None:
    """Check every packet of an application on each network, and on routes that change."""
    for name, layout in LAYOUTS.items():
        # Packets that overtake others make TCP retransmit, with and without tracing.
        kinds = ("udp", "echo") if name == "scattered" else KINDS
        check(report, folder, name, layout, lambda *_: time.sleep(seconds), kinds)
    for more in (1, 2, *LONG):
        delays = DELAYS | ({110: 0.005} if more <= 2 else {})
        plan = replace(PLAIN, detour=Detour(3, more), delays=delays)
        name = f"a route that changes by {more} every {_FLIP_SECONDS} s"
        turns = flips(seconds, lambda network, detour: network.lab.detour(detour))
        check(report, folder, name, Layout(plan=plan), turns)
    turns = flips(seconds, lambda network, looping: loop(network, healed=not looping))
    name = f"a routing loop that heals every {2 * _FLIP_SECONDS} s"
    check(report, folder, name, LAYOUTS["plain"], turns, loses=True)


def flips(seconds: float, change: Callable[[Topology, bool], object]) -> During:
    """Return an activity that changes the network to and fro."""

    def during(network: Topology, app: Application, trace: Tracing) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for there in (True, False):
                time.sleep(_FLIP_SECONDS)
                change(network, there)
        time.sleep(_FLIP_SECONDS)

    return during


def check(
    report: Report, folder: Path, name: str, layout: Layout, during: During,
    kinds: Sequence[str] = KINDS, *, loses: bool = False,
) -> None:  # fmt: skip
    """Trace three flows of each kind. `loses`: the network itself loses packets."""
    try:
        scene = play(folder / name, layout, during, kinds=kinds, flows=_FLOWS, rate=_RATE)
    except AssertionError as error:
        report.target(name, str(error), False)
        return
    harm = {} if loses else scene.report.harm()
    sent = scene.report.sent
    units = f"{sent['udp4'] + sent['udp6']} datagrams, {sum(sent.values())} packets and bytes"
    report.target(f"{name}: {units}", str(harm or "nothing foreign, nothing twice"), not harm)


def rate(transfer: Transfer) -> float:
    """Wait half a round, then return the rate of a transfer in Mbit/s."""
    time.sleep(_ROUND_SECONDS / 2)
    before, begun = transfer.bytes, time.monotonic()
    time.sleep(_ROUND_SECONDS)
    return (transfer.bytes - before) * 8 / (time.monotonic() - begun) / 1e6


def throughput(report: Report, folder: Path, rounds: int) -> None:
    """Compare a transfer with and without tracing, in turns."""
    for name in ("plain", "masquerade"):
        with topology(LAYOUTS[name].plan) as network:
            LAYOUTS[name].change(network)
            network.run("r1", f"tc qdisc replace dev right root {_LINE}")
            taken: dict[bool, list[float]] = {False: [], True: []}
            with bulk(network, network.servers[4]) as transfer:
                for number in range(rounds):
                    taken[False].append(rate(transfer))
                    with tracing(network, folder / f"{name} round {number}", timeout=3):
                        taken[True].append(rate(transfer))
        without, traced = (statistics.median(taken[on]) for on in (False, True))
        report.target(
            f"{name}: transfer with tracing, and without",
            f"{traced:.1f} / {without:.1f} Mbit/s = {traced / without:.3f}",
            traced >= _LEAST * without,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20, help="for each network")
    parser.add_argument("--rounds", type=int, default=6, help="of the transfer")
    options = parser.parse_args()
    report = Report("undisturbed applications")
    with tempfile.TemporaryDirectory() as folder:
        packets(report, Path(folder), options.seconds)
        throughput(report, Path(folder), options.rounds)
    report.end()


if __name__ == "__main__":
    main()
