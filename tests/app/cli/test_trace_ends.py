"""Ends of `probedeck trace` that nobody asked for: its words and exit codes."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.lab.netns import inside, open_netlink
from tests.support.runs import deck, deck_ends, rows
from tests.support.sight import becomes
from tests.support.veth import End, veth_pair


def remove(end: End) -> None:
    async def ask() -> None:
        netlink = open_netlink(end.ns)
        await netlink.link("del", index=end.ifindex)
        netlink.close()

    asyncio.run(ask())


@pytest.mark.slow
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
            # It waits for the interface's return.
            run.send_signal(signal.SIGINT)
            _, err = run.communicate(timeout=10)
    assert run.returncode == 0
    assert err.splitlines()[-1].startswith(f"probedeck: {len(rows(table))} probes, ")


def test_the_interface_of_the_default_route_is_the_usual_one() -> None:
    with veth_pair() as (left, right), inside(left.ns):
        code, _, err = deck_ends("trace", right.ipv4, "--duration", "0.1", ns=left.ns)
        assert (code, "no default route" in err) == (2, True)
        subprocess.run(["ip", "route", "add", "default", "dev", left.ifname], check=True)
        code, _, err = deck_ends("trace", right.ipv4, "--duration", "0.1", ns=left.ns)
    assert (code, f"no packet to it left by {left.ifname}" in err) == (0, True)


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[End, End]]:
    with veth_pair() as ends:
        yield ends


@pytest.mark.parametrize(
    ("to", "reason"),
    [
        ("{0.ipv4}", "it is an address of this host"),
        ("{0.ipv6}", "it is an address of this host"),
        ("10.95.0.255", "it is a broadcast address"),
    ],
)
def test_an_address_of_no_other_host_is_refused(
    pair: tuple[End, End], tmp_path: Path, to: str, reason: str
) -> None:
    """Before tables are made; by `run`, too."""
    left, _ = pair
    to = to.format(left)
    out = tmp_path / "out"
    end = ("-o", str(out), "--duration", "1")
    for arguments in (
        ("trace", "-i", left.ifname, to, *end),
        ("run", "--headless", "-i", left.ifname, "--trace", to, *end),
    ):
        assert deck_ends(*arguments, ns=left.ns) == (
            2, "", f"probedeck: cannot trace {to}: {reason}\n",
        )  # fmt: skip
    assert not out.exists()


def test_a_destination_behind_another_interface_is_told_at_once_and_at_the_end(
    pair: tuple[End, End],
) -> None:
    left, right = pair
    nowhere = "192.0.2.1"
    code, out, err = deck_ends(
        "trace", "-i", "lo", right.ipv4, nowhere, "--report", "json", "--duration", "0.5",
        ns=left.ns,
    )  # fmt: skip
    assert code == 0
    lines = [line for line in err.splitlines() if right.ipv4 in line or nowhere in line]
    assert lines == [
        f"probedeck: path: {right.ipv4} is routed over left, not lo",
        f"probedeck: path: {nowhere} has no route: Network is unreachable",
        f"probedeck: {right.ipv4}: no probe: it is routed over left, not lo",
        f"probedeck: {nowhere}: no probe: it has no route: Network is unreachable",
    ]
    first, _ = json.loads(out)["destinations"]
    assert first["notes"] == ["no probe: it is routed over left, not lo"]
    assert [each["text"] for each in first["events"]] == ["is routed over left, not lo"]


def test_nothing_sent_and_nothing_that_can_be_probed(pair: tuple[End, End]) -> None:
    """Datagrams larger than the MTU leave in fragments."""
    left, right = pair
    send = (
        "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM);"
        f"[s.sendto(bytes(4000), ({right.ipv4!r}, 9)) for _ in range(5)]"
    )
    program = (sys.executable, "-I", "-c", send)
    code, _, err = deck_ends(
        "trace", "-i", left.ifname, right.ipv4, "10.95.0.9", "--timeout", "0.2", "--", *program,
        ns=left.ns,
    )  # fmt: skip
    assert code == 0
    fragmented, unsent = err.splitlines()[-3:-1]
    words = "no probe: 15 packets could not be probed: fragments (15)"
    assert fragmented == f"probedeck: {right.ipv4}: {words}"
    assert unsent == "probedeck: 10.95.0.9: no probe: no packet to it left by left"
