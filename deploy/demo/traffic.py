"""Traffic of the demo: a known number of datagrams between the hosts."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from itertools import permutations

from app.lab import netns
from deploy.demo.network import Network

PORTS = 40
"""Flows from each host to each other."""
DATAGRAMS = 25
"""Of each flow."""
_PORT = 4000
_PAUSE_S = 0.002


def send(made: Network) -> int:
    """Send all datagrams, in a few seconds. Returns their number."""
    sent = 0
    with ExitStack() as stack:

        def opened(name: str) -> socket.socket:
            with netns.inside(made.hosts[name]):
                return stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))

        for name, address in made.addresses.items():
            opened(name).bind((address, _PORT))
        flows = []
        for near, far in permutations(made.hosts, 2):
            for _ in range(PORTS):
                flow = opened(near)
                flow.connect((made.addresses[far], _PORT))
                flows.append(flow)
        for number in range(DATAGRAMS):
            for place, flow in enumerate(flows):
                flow.send(bytes(100 + 40 * (place % 20) + number))
                sent += 1
            time.sleep(_PAUSE_S)
    return sent
