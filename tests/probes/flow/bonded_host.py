"""A host whose wire is a bond of two links, with a VLAN above it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from app.lab.netns import fresh, inside
from tests.probes.flow.pod_host import ip, path, still

NEAR, FAR = "10.97.5.1", "10.97.5.2"
"""Addresses of the ends in the VLAN."""


@contextmanager
def bonded_host() -> Iterator[tuple[int, int]]:
    """Make the namespaces of the host and of its peer; skip the test without VLANs or bonds."""
    with ExitStack() as stack:
        spaces = fresh(), fresh()
        for space in spaces:
            stack.callback(os.close, space)
            still(space)
            with inside(space):
                for kind in ("bond", "vlan"):
                    above = ["link", "lo"] if kind == "vlan" else []
                    end = ["id", "9"] if kind == "vlan" else []
                    tried = ["ip", "link", "add", *above, "name", "try0", "type", kind, *end]
                    if subprocess.run(tried, capture_output=True, check=False).returncode:
                        pytest.skip(f"this kernel has no {kind}")
                    subprocess.run(["ip", "link", "del", "try0"], check=True)
        for n in (0, 1):
            ip(spaces[0], f"link add eth{n} type veth peer name eth{n} netns {path(spaces[1])}")
        for space, address in zip(spaces, (NEAR, FAR), strict=True):
            ip(space, "link set lo up", "link add bond0 type bond mode balance-rr",
               "link set eth0 master bond0", "link set eth1 master bond0", "link set eth0 up",
               "link set eth1 up", "link set bond0 up",
               "link add link bond0 name bond0.5 type vlan id 5",
               f"addr add {address}/24 dev bond0.5", "link set bond0.5 up")  # fmt: skip
        yield spaces
