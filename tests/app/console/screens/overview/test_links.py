"""Use of links: exact rates of interfaces, queues of the kernel, and speeds that mean something."""

from __future__ import annotations

import math
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.console.live.flows import LiveFlows
from app.console.live.frames import Frame
from app.console.live.overview_feed import LivePulses
from app.console.live.paths import LivePaths
from app.console.screens.overview.blocks import Links, LinkUse, full_links, link_items
from app.lab.netns import inside
from bpf import features
from probes.flow.interfaces import INTERFACE
from probes.flow.kinds import INTERFACES
from probes.snapshot import Peak
from tests.support.console.feed import window
from tests.support.veth import veth_pair


def frame(**interfaces: dict[str, int]) -> Frame:
    """A frame after a window of a second with such rows of the table of interfaces."""
    rows = np.zeros(len(interfaces), INTERFACE)
    for row, (name, fields) in zip(rows, interfaces.items(), strict=True):
        row["interface"] = name.encode()
        for field, value in fields.items():
            row[field] = value
    pulses = LivePulses()
    peaks = (Peak("lan", "egress", 8000, 8_000_000),)
    pulses.add(replace(window(rows, 1), metric=INTERFACES, peaks=peaks), time.monotonic())
    return Frame(LiveFlows().view(), LivePaths().view(), (), pulses=pulses.view())


def test_a_rate_is_the_interfaces_own_counter_and_a_share_has_the_gaps_of_ethernet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.console.screens.overview.blocks.link_speed", lambda name: 10_000_000)
    # 8,223 frames a second of 1,520 bytes on the wire fill 100 Mbit/s; here a tenth of them.
    busy = {"in_bytes": 500 * 1496, "in_packets": 500, "repeated_in_bytes": 322 * 1496,
            "repeated_in_packets": 322}  # fmt: skip
    first, second = Links().look(frame(wan=busy, lan={"out_bytes": 1000, "out_packets": 1}))
    assert (first.name, first.way, first.bits) == ("wan", "in", 822 * 1496 * 8)
    assert first.share == pytest.approx(822 * 1520 * 8 / 10e6)
    assert (first.is_full, second.is_full) == (True, False)
    assert second.text.endswith(" of 10.0 Mbit/s, peak 8.00 Mbit/s in 8.00 ms")
    (told,) = full_links((first, second))
    assert told.text == "Link wan is full: in 9.84 Mbit/s, >99.9 % of 10.0 Mbit/s"
    (item,) = link_items((first, second))
    assert (item.label, item.text) == ("wan", "in 9.84 Mbit/s, >99.9 % of 10.0 Mbit/s")


def test_packets_that_wait_for_three_looks_make_a_link_full() -> None:
    with veth_pair() as (left, right), inside(left.ns):
        shaped = ("tc", "qdisc", "add", "dev", left.ifname, "root", "tbf", "rate", "1mbit", "burst",
                  "2k", "latency", "1s")  # fmt: skip
        subprocess.run(shaped, check=True)
        links = Links()
        busy = frame(**{left.ifname: {"out_bytes": 1000, "out_packets": 1}})
        assert [one.looks for one in links.look(busy)] == [0]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            found: list[tuple[LinkUse, ...]] = []
            for _ in range(4):
                with suppress(BlockingIOError):
                    for _ in range(60):
                        sender.sendto(bytes(1400), (right.ipv4, 9))
                found.append(links.look(busy))
                time.sleep(0.02)
        assert [one.looks for (one,) in found] == [1, 2, 3, 4]
        assert [one.is_full for (one,) in found] == [False, False, True, True]
        (link,) = found[-1]
        assert (link.queue, math.isnan(link.share)) == ("tbf", True)
        (told,) = full_links((link,))
        assert told.text.startswith(f"Link {left.ifname} is full: out 8.00 kbit/s, ")
        assert told.text.endswith("wait in its tbf")
        subprocess.run(("tc", "qdisc", "del", "dev", left.ifname, "root"), check=True)
        assert [one.looks for one in links.look(busy)] == [0]


def test_a_speed_is_the_drivers_unless_it_limits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """veth reports 10 Gbit/s and carries more."""
    with veth_pair() as (left, _), inside(left.ns):
        assert features.link_speed(left.ifname) == 0
        assert features.link_speed("lo") == 0
        assert features.link_speed("none") == 0
        driver: Any = lambda name: "ixgbe"  # noqa: E731
        monkeypatch.setattr(features, "driver", driver)
        assert features.link_speed(left.ifname) == 10_000_000_000
