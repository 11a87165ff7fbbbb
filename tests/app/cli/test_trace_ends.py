"""Ends of `probedeck trace` that nobody asked for: its words and exit codes."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from app.lab.netns import inside, open_netlink
from tests.support.runs import deck, rows
from tests.support.sight import becomes
from tests.support.veth import End, veth_pair


def remove(end: End) -> None:
    async def ask() -> None:
        netlink = open_netlink(end.ns)
        await netlink.link("del", index=end.ifindex)
        netlink.close()

    asyncio.run(ask())


def test_counts_are_printed_although_the_interface_is_gone(tmp_path: Path) -> None:
    table = tmp_path / "hops.csv"
    with veth_pair() as (left, right):
        with inside(left.ns):
            sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

        def traced() -> bool:
            sender.sendto(b"x", (right.ipv4, 9))
            return len(rows(table)) > 5

        arguments = ("trace", "-i", left.ifname, right.ipv4, "--timeout", "0.5")
        with sender, deck(*arguments, "-o", str(tmp_path), ns=left.ns) as run:
            assert becomes(traced, 15)
            remove(left)
            _, err = run.communicate(timeout=10)
    assert run.returncode == 1
    *_, counted, error = err.splitlines()
    assert counted.startswith(f"probedeck: {len(rows(table))} probes, ")
    assert left.ifname in error
