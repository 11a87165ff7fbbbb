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
        for n in (0, 1):
            ip(spaces[0], f"link add eth{n} type veth peer name eth{n} netns {path(spaces[1])}")
        for what in ("try0 type bond", "link eth0 name try0 type vlan id 9"):
            line = f"link add {what}"
            with inside(spaces[0]):
                made = subprocess.run(["ip", *line.split()], capture_output=True, check=False)
            if made.returncode:
                pytest.skip(f"this kernel has no VLANs or no bonds: {line}")
            ip(spaces[0], "link del try0")
        for space, address in zip(spaces, (NEAR, FAR), strict=True):
            ip(space, "link set lo up", "link add bond0 type bond mode balance-rr",
               "link set eth0 master bond0", "link set eth1 master bond0", "link set eth0 up",
               "link set eth1 up", "link set bond0 up",
               "link add link bond0 name bond0.5 type vlan id 5",
               f"addr add {address}/24 dev bond0.5", "link set bond0.5 up")  # fmt: skip
        yield spaces
