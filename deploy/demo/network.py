"""The demo's namespaces: three hosts, and the collector, joined by two bridges."""

from __future__ import annotations

import contextlib
import ctypes as ct
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.lab import netns
from bpf.machine import enter_network

HOSTS = ("ams", "fra", "lon")
COLLECTOR = "10.97.1.254"
"""Address of the collector, on the bridge that carries no measured traffic."""
Process = subprocess.Popen[bytes]
_LIBC = ct.CDLL(None)
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Network:
    """Descriptors of the namespaces; they live as long as these and their processes."""

    collector: int
    hosts: Mapping[str, int]
    addresses: Mapping[str, str]
    """Of the measured interfaces `eth0`."""
    managed: Mapping[str, str]
    """Of the interfaces `mgmt0`, which the exports take."""


@contextlib.contextmanager
def network() -> Iterator[Network]:
    """Make the namespaces. Raises CalledProcessError without the rights."""
    with contextlib.ExitStack() as stack:

        def fresh() -> int:
            space = netns.fresh()
            stack.callback(os.close, space)
            return space

        made = Network(
            fresh(),
            {name: fresh() for name in HOSTS},
            {name: f"10.97.0.{n}" for n, name in enumerate(HOSTS, 1)},
            {name: f"10.97.1.{n}" for n, name in enumerate(HOSTS, 1)},
        )
        for bridge in ("traffic", "managed"):
            _ip(made.collector, f"link add {bridge} type bridge")
            _ip(made.collector, f"link set {bridge} up")
        _ip(made.collector, f"address add {COLLECTOR}/24 dev managed")
        _ip(made.collector, "link set lo up")
        for name, space in made.hosts.items():
            _ip(space, "link set lo up")
            for interface, bridge, address in (
                ("eth0", "traffic", made.addresses[name]),
                ("mgmt0", "managed", made.managed[name]),
            ):
                peer = f"{name}-{interface}"
                there = f"/proc/{os.getpid()}/fd/{space}"
                _ip(
                    made.collector, f"link add {peer} type veth peer name {interface} netns {there}"
                )
                _ip(made.collector, f"link set {peer} master {bridge} up")
                _ip(space, f"address add {address}/24 dev {interface}")
                _ip(space, f"link set {interface} up")
        yield made


def _ip(space: int, words: str) -> None:
    with netns.inside(space):
        subprocess.run(["ip", *words.split()], check=True)


@contextlib.contextmanager
def running(space: int, command: Sequence[str], log: Path, **environment: str) -> Iterator[Process]:
    """Run a process in a namespace during the block. A killed demo leaves none."""

    def enter() -> None:
        enter_network(space)
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    with (
        log.open("wb") as output,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, preexec_fn=enter,
            env={**os.environ, **environment},
        ) as process,
    ):  # fmt: skip
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
