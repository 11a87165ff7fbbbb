"""Destinations of this host's connections, while no path is traced."""

from __future__ import annotations

import ipaddress
import os
from typing import Any

import numpy as np

from app.console.live.flows import LiveFlows
from app.console.live.frames import Frame, HostFrame
from app.console.live.owners import LIVE_SOCKET, OwnerView
from app.console.live.paths import LivePaths
from app.console.screens.paths.untraced import Untraced, untraced
from probes.sockets.records import Limit

NOW = 100_000_000_000


def frame(*sockets: dict[str, Any]) -> Frame:
    rows = np.zeros(len(sockets), LIVE_SOCKET)
    rows["protocol"], rows["version"], rows["state"], rows["seen_ns"] = 6, 4, 1, NOW
    for row, fields in zip(rows, sockets, strict=True):
        for name, value in fields.items():
            if name == "far":
                address = ipaddress.ip_address(str(value))
                row["version"] = address.version
                row["far"] = np.frombuffer(address.packed.ljust(16, b"\0"), row["far"].dtype)
            else:
                row[name] = value
    return Frame(LiveFlows().view(), LivePaths().view(), (), owners=OwnerView(rows, now_ns=NOW))


def listed(of: Frame) -> list[Untraced]:
    return untraced(of)


def test_a_destination_has_the_times_of_its_largest_connection() -> None:
    small = {"far": "192.0.2.1", "rtt_us": 900, "min_rtt_us": 800, "sent": 10}
    large = {"far": "192.0.2.1", "rtt_us": 40_000, "min_rtt_us": 30_000, "received": 10_000}
    other = {"far": "2001:db8::1", "rtt_us": 500, "min_rtt_us": 400, "sent": 20_000}
    first, second = listed(frame(small, other, large))
    assert (first.key.destination, first.state[0]) == ("2001:db8::1", "")
    assert (second.key.destination, second.connections, second.bytes) == ("192.0.2.1", 2, 10_010)
    assert (second.rtt, second.least) == (0.04, 0.03)
    assert second.state[0] == "10.0 ms above least"
    held = large | {"limit": int(Limit.RECEIVER)}
    assert listed(frame(held))[0].state[0] == "its window is full: it reads slowly"


def test_idle_and_silent_destinations_say_so_and_listeners_are_none() -> None:
    idle = {"far": "192.0.2.2", "rtt_us": 900, "min_rtt_us": 900, "seen_ns": NOW - 20_000_000_000}
    silent = {"far": "192.0.2.3", "sent": 60}
    listener = {"far": "0.0.0.0", "state": 10}
    scanner = {"far": "192.0.2.66", "state": 0, "limit": int(Limit.REFUSED)}
    datagrams = {"far": "192.0.2.4", "protocol": 17, "sent": 90_000}
    vain = {"far": "192.0.2.5", "rtt_us": 900, "limit": int(Limit.NO_ANSWER), "limit_s": 12}
    rows = frame(idle, silent, listener, scanner, datagrams, vain)
    found = {one.key.destination: one for one in listed(rows)}
    assert {name: one.state[0] for name, one in found.items()} == {
        "192.0.2.2": "the flow has sent nothing for 20 s", "192.0.2.3": "no answer yet",
        "192.0.2.4": "UDP: Enter times its DNS answers", "192.0.2.5": "no answer since 12 s",
    }  # fmt: skip
    assert np.isnan(found["192.0.2.3"].rtt)
    assert not listed(Frame(LiveFlows().view(), LivePaths().view(), ()))


def test_networks_are_those_of_the_routes_of_the_connections_own_namespace() -> None:
    here = {"far": "127.0.0.1", "rtt_us": 900, "min_rtt_us": 900,
            "netns": os.stat("/proc/self/ns/net").st_ino}  # fmt: skip
    elsewhere = {"far": "127.0.0.2", "rtt_us": 900, "min_rtt_us": 900, "netns": 7}
    rows = frame(here, elsewhere)
    found = {one.key.destination: one for one in untraced(rows, local=True)}
    assert found["127.0.0.1"].network.startswith("127.0.0.")
    assert found["127.0.0.1"].state[0] == "no router between: the same network"
    assert (found["127.0.0.2"].network, found["127.0.0.2"].state[0]) == ("", "")
    assert [one.network for one in untraced(rows)] == ["", ""], "another host's"
    left = untraced(rows, {"127.0.0.1"}, local=True)
    assert [one.key.destination for one in left] == ["127.0.0.2"]


def test_hosts_of_a_fleet_have_rows_of_their_own() -> None:
    one = frame({"far": "192.0.2.2", "rtt_us": 900, "min_rtt_us": 900})
    parts = HostFrame("a", one), HostFrame("b", one)
    both = Frame(LiveFlows().view(), LivePaths().view(), (), parts=parts)
    assert {(each.key.host, each.key.destination) for each in listed(both)} == {
        ("a", "192.0.2.2"), ("b", "192.0.2.2"),
    }  # fmt: skip
