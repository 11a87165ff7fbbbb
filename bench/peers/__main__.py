"""One path in the eyes of four tracers: probedeck, mtr, traceroute and trippy.

    python -I -m bench.peers [--trip PATH]

Three things happen while all of them look: a queue builds up at a bottleneck, the route changes in
the middle of a flow, and flows are shared out over two routers. mtr, traceroute and trippy must be
installed.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from app.lab.network import Lab
from app.lab.plan import Detour, LabPlan
from bench.support.application import PORT, closing_fd, running
from bench.support.traced_lab import application, network, rtts, traced
from bpf.errors import UsageError
from tests.support.lab_truth import interface_counters

_HOPS = 6
_SECONDS = 10
_FLOWS = 16
_LOOK = 8
"""Hops that the others look at: none of them gets an answer from the server."""


class Peers:
    """The other tools, each as a process in the lab's client."""

    def __init__(self, trip: str) -> None:
        self.tools = {"mtr": "mtr", "traceroute": "traceroute", "trippy": trip}
        for name, program in self.tools.items():
            if not shutil.which(program):
                raise UsageError(f"{name} is not installed")

    @contextmanager
    def running(self, address: str) -> Iterator[dict[str, subprocess.Popen[str]]]:
        """All at once, for about `_SECONDS`."""
        # trippy asks name servers for each host, and waits long: what it asks here does not exist.
        commands = {
            "mtr": f"mtr -n -j -u -P {PORT} -m {_LOOK} -i 0.1 -c {_SECONDS * 10}",
            "traceroute": f"traceroute -n -m {_LOOK} -q 10 -N 1 -w 1 -p {PORT}",
            "trippy": f"{self.tools['trippy']} -m json -C {_SECONDS * 5 // 2} -i 200ms -T 400ms "
            f"-t {_LOOK} -p udp -P {PORT} -R classic -r cloudflare --dns-timeout 50ms",
        }
        started = {
            name: subprocess.Popen(
                [*command.split(), address],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for name, command in commands.items()
        }
        try:
            yield started
        finally:
            for process in started.values():
                process.kill()
                process.communicate()


def hops_of(name: str, text: str) -> dict[int, tuple[float, set[str]]]:
    """A tool's median or mean round-trip time in ms, and its responders, by hop."""
    found: dict[int, tuple[float, set[str]]] = {}
    if name == "mtr":
        for hub in json.loads(text)["report"]["hubs"]:
            found[int(hub["count"])] = float(hub["Avg"]), {hub["host"]}
    elif name == "trippy":
        for hop in json.loads(text)["hops"]:
            who = {host["ip"] for host in hop["hosts"]}
            found[int(hop["ttl"])] = float(hop["avg"]), who
    else:
        for line in text.splitlines()[1:]:
            times = [float(t) for t in re.findall(r"([\d.]+) ms", line)]
            who = set(re.findall(r"\d+\.\d+\.\d+\.\d+", line))
            if times:
                found[int(line.split()[0])] = float(np.median(times)), who
    return found


def queue(peers: Peers) -> None:
    """A bulk transfer fills the bottleneck at r3, beside a gentle flow that is traced."""
    with (
        network(LabPlan(_HOPS)) as lab,
        application(lab, "udp", lab.server_ipv4, _SECONDS + 20, 500),
        closing_fd(lab.open_namespace()) as here,
        traced(lab, lab.server_ipv4) as (_, collected),
    ):
        time.sleep(3)
        began = time.monotonic_ns()
        with (
            running("bulk", lab.server_ipv4, _SECONDS + 20, node_fd=here),
            peers.running(lab.server_ipv4) as started,
        ):
            texts = {name: process.communicate()[0] for name, process in started.items()}
        rows = collected.rows()
        rows = rows[rows["sent_ns"] > began]
        print("queue (ms at hops 1 to 6)")
        ours = [float(np.median(rtts(rows, hop, 4))) / 1e6 for hop in range(1, _HOPS + 1)]
        print("  probedeck ", *(f"{ms:.2f}" for ms in ours), f"({len(rows)} probes)")
        for moment, event in collected.events:
            if "queue" in event.text:
                print(f"             after {(moment - began) / 1e9:.2f} s: {event.text}")
        for name, text in texts.items():
            told = hops_of(name, text)
            print(f"  {name:10}", *(f"{told[h][0]:.2f}" if h in told else "-" for h in range(1, 7)))


def detour(peers: Peers) -> None:
    """The route changes half way."""
    plan = LabPlan(_HOPS, bottleneck_bits=0, detour=Detour(3))
    with network(plan) as lab, application(lab, "udp", lab.server_ipv4, _SECONDS + 10, 1000):
        with (
            traced(lab, lab.server_ipv4) as (_, collected),
            peers.running(lab.server_ipv4) as started,
        ):
            time.sleep(_SECONDS / 2)
            at = lab.detour(True)
            texts = {name: process.communicate()[0] for name, process in started.items()}
        print("detour")
        for moment, event in collected.events:
            if moment > at:
                print(f"  probedeck  after {(moment - at) / 1e9:.2f} s: {event.text}")
        for name, text in texts.items():
            told = hops_of(name, text)
            print(f"  {name:10}", *(f"{h}:{'/'.join(sorted(told[h][1]))}" for h in sorted(told)))


def shared(peers: Peers) -> None:
    """Flows are shared out over r3 and its twin: which way does an application's own flow go?"""
    plan = LabPlan(_HOPS, bottleneck_bits=0, twin=3)
    with network(plan) as lab:
        truth: dict[int, bool] = {}
        with (
            traced(lab, lab.server_ipv4) as (_, collected),
            peers.running(lab.server_ipv4) as started,
        ):
            for _ in range(_FLOWS):
                _flow(lab, truth)
            texts = {name: process.communicate()[0] for name, process in started.items()}
        twin = np.array([int(part) for part in plan.addresses("r3b").ipv4.split(".")], "u1")
        rows = collected.rows()
        rows = rows[(rows["hop"] == 3) & (rows["outcome"] == 0)]
        right = 0
        for port, by_twin in truth.items():
            answers = rows[rows["source_port"] == port]["responder"][:, :4]
            right += bool(len(answers)) and bool(((answers == twin).all(axis=1) == by_twin).all())
        print("ECMP")
        print(f"  probedeck  the way of {right} of {_FLOWS} flows of the application's own")
        for name, text in texts.items():
            told = hops_of(name, text)
            print(f"  {name:10} hop 3: {' '.join(sorted(told.get(3, (0, set()))[1]))}")


def _flow(lab: Lab, truth: dict[int, bool]) -> None:
    """One flow of the application's, and whether the twin's counter says that it went there."""
    from app.lab import netns

    client = lab.open_namespace()
    with netns.inside(client):
        out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    out.connect((lab.server_ipv4, 9))
    before = interface_counters(lab, "r3b", "left").received_packets
    for _ in range(400):
        try:
            out.send(bytes(160))
        except OSError:
            continue
        time.sleep(0.001)
    moved = interface_counters(lab, "r3b", "left").received_packets - before
    truth[out.getsockname()[1]] = moved > 50
    out.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trip", default="trip")
    peers = Peers(parser.parse_args().trip)
    for scene in (queue, detour, shared):
        scene(peers)


if __name__ == "__main__":
    main()
