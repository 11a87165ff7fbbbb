"""A week of a deployment loop: probes added, replaced, exported and removed under traffic.

    python -I -m bench.deploy [--rounds 1000]

A controller in another process writes tables and is asked by REST, as a deployment does it. Two
senders are known to the packet: one never stops, and is counted by the flow probe and by a probe
that stays; the other one sends between the steps of each round, and is counted by the probe that
comes and goes. The layout of that probe's map changes with each round.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path

from app.api.address import Remote
from app.api.client import Client
from app.lab import netns
from bench.support.report import Report
from bpf.errors import ProbedeckError
from probes.config.model import ProbeConfig, parse
from tests.support.veth import End, veth_pair

_STEADY_PORT, _ROUND_PORT = 7001, 7002
_BURST = 20
"""Packets after each step."""
_SPARE = 2
"""Descriptors, maps or threads more, such as a connection's: a leak has one for each round."""
_STEADY = """
import signal, socket, sys, time
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sent, going = 0, [True]
signal.signal(signal.SIGTERM, lambda *_: going.clear())
while going:
    out.sendto(b"x", (sys.argv[1], int(sys.argv[2])))
    sent += 1
    time.sleep(0.0005)
print(sent)
"""
_SOURCE = """
#include "packet.h"
struct counted { u64 packets; u64 FIELD; };
BPF_PERCPU_ARRAY(hits, struct counted, 1);
int count(CONTEXT *ctx) {
    struct packet packet = {};
    if (parse_packet(ctx, &packet) != PARSED || PROTOCOL(&packet.key) != IPPROTO_UDP)
        return VERDICT_PASS;
    if (DESTINATION_PORT(&packet.key) != bpf_htons(PORT))
        return VERDICT_PASS;
    int zero = 0;
    struct counted *n = hits.lookup(&zero);
    if (n)
        n->packets++;
    return VERDICT_PASS;
}
"""


@dataclass(frozen=True)
class Held:
    """Resources of the controller's process."""

    descriptors: int
    maps: int
    programs: int
    threads: int
    kib: int

    @classmethod
    def by(cls, pid: int) -> Held:
        infos = []
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                infos.append(Path(f"/proc/{pid}/fdinfo/{name}").read_text())
            except FileNotFoundError:
                continue
        status = Path(f"/proc/{pid}/status").read_text()
        return cls(
            len(infos),
            sum("map_id:" in info for info in infos),
            sum("prog_id:" in info for info in infos),
            len(os.listdir(f"/proc/{pid}/task")),
            int(re.findall(r"VmRSS:\s+(\d+)", status)[0]),
        )

    def __str__(self) -> str:
        return (
            f"{self.descriptors} descriptors, {self.maps} maps, {self.programs} programs,"
            f" {self.threads} threads, {self.kib / 1024:.1f} MiB"
        )


def config(name: str, interface: str, port: int, layout: int, interval: float = 0) -> ProbeConfig:
    source = _SOURCE.replace("PORT)", f"{port})").replace("FIELD", f"field{layout}")
    metric = {"name": "hits", "map": "hits", "snapshot": True, "agg": "sum"}
    direction = {"interface": interface, "source": source, "metrics": [metric]}
    return parse({"name": name, "interval": interval, "ingress": direction}, "bench")


@contextmanager
def controller(end: End, out: Path, door: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-I", "-m", "app", "run", "-i", end.ifname, "--headless"]
    flags = ["-o", str(out), "--format", "csv", "--api-socket", str(door), "--interval", "0.5"]
    with netns.inside(end.ns):
        process = subprocess.Popen([*command, *flags], stderr=subprocess.PIPE, text=True)
    try:
        while not door.exists() and process.poll() is None:
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


def counted(out: Path, probe: str) -> int:
    """Packets in all files of a probe's metric."""
    total = 0
    for path in out.glob(f"{probe}.ingress.hits*.csv"):
        with path.open(newline="") as file:
            total += sum(int(row["value.packets"]) for row in csv.DictReader(file))
    return total


def in_flows(out: Path, port: int) -> int:
    with (out / "flows.csv").open(newline="") as file:
        rows = csv.DictReader(file)
        return sum(int(row["packets"]) for row in rows if row["destination_port"] == str(port))


def deploy(report: Report, rounds: int) -> None:
    with veth_pair() as (left, right), tempfile.TemporaryDirectory() as directory:
        out, door = Path(directory, "out"), Path(directory, "api.sock")
        with netns.inside(left.ns):
            burst = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            burst.sendto(b"x", (right.ipv4, 9))  # the neighbour is known from now on
            time.sleep(0.2)
        with controller(right, out, door) as process:
            client = Client(Remote(f"unix:{door}"))
            with closing(client), closing(burst):
                client.add(config("steady", right.ifname, _STEADY_PORT, 0, interval=0.1))
                with netns.inside(left.ns):
                    command = [sys.executable, "-I", "-c", _STEADY, right.ipv4, str(_STEADY_PORT)]
                    steady = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
                held = go_round(report, process.pid, client, burst, right, rounds)
                steady.send_signal(signal.SIGTERM)
                steady_sent = int(steady.communicate()[0])
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=30)
        first, last = held
        report.target(
            f"held after {rounds} rounds", str(last),
            all(b <= a + _SPARE for a, b in zip(astuple(first)[:4], astuple(last)[:4], strict=True))
            and last.kib < first.kib * 1.1 + 4096,
        )  # fmt: skip
        sent = 3 * _BURST * rounds
        for name, found, expected in (
            ("the probe that comes and goes", counted(out, "round"), sent),
            ("the probe that stays", counted(out, "steady"), steady_sent),
            ("flows of the rounds", in_flows(out, _ROUND_PORT), sent),
            ("flows beside them", in_flows(out, _STEADY_PORT), steady_sent),
        ):
            report.target(name, f"{found} packets counted, {expected} sent", found == expected)
        lines = said.splitlines()
        report.target("exit", f"code {process.returncode}; {lines[-1]}", process.returncode == 0)


def go_round(
    report: Report, pid: int, client: Client, burst: socket.socket, right: End, rounds: int
) -> tuple[Held, Held]:
    """Return the resources held after a tenth of the rounds, and at the end."""

    def send() -> None:
        for _ in range(_BURST):
            burst.sendto(b"x", (right.ipv4, _ROUND_PORT))

    first = Held.by(pid)
    started = time.perf_counter()
    for number in range(1, rounds + 1):
        client.add(config("round", right.ifname, _ROUND_PORT, number % 3))
        send()
        client.replace(config("round", right.ifname, _ROUND_PORT, (number + 1) % 3))
        send()
        client.export("round")
        send()
        client.remove("round")
        if number in (rounds // 10, rounds // 4, rounds // 2, rounds):
            time.sleep(1.5)
            held = Held.by(pid)
            seconds = time.perf_counter() - started
            report.row(f"after {number} rounds, {seconds:.0f} s", str(held))
            first = held if number == rounds // 10 else first
    return first, held


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    options = parser.parse_args()
    report = Report("a deployment loop")
    try:
        deploy(report, options.rounds)
    except ProbedeckError as error:
        report.target("requests", str(error), False)
    report.end()


if __name__ == "__main__":
    main()
