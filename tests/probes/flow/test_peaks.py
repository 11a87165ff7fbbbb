"""Peaks: exact bytes of bursts, over swaps, laps of the ring, long windows and interfaces."""

from __future__ import annotations

import os
import socket
from dataclasses import replace

import numpy as np
import pytest

from app.lab.netns import inside
from app.outputs.views import VIEWS
from bpf.attach.attachment import Hook
from bpf.syscall import prog_test_run as run
from probes.flow.clock import GivenClock
from probes.flow.interfaces import INTERFACE
from probes.flow.kinds import INTERFACES
from probes.flow.records import BINS
from probes.snapshot import Peak, Snapshot
from tests.probes.conftest import MakeProbe
from tests.probes.flow.test_interfaces import watching
from tests.probes.flow.test_windows import silent_pair
from tests.support.console.feed import window
from tests.support.generator import SIZE, frame

_BIN = 1 << 22
"""Nanoseconds of a bin of GivenClock."""
_BEGIN = 1 << 60


class Timed:
    """A probe whose packets come at given times."""

    def __init__(self, make: MakeProbe) -> None:
        self._clock = GivenClock()
        self._loose = make(Hook.XDP, clock=self._clock)
        self.probe = self._loose.probe
        self._now = _BEGIN
        self.probe.keep_time(lambda: self._now)

    def burst(self, bins: float, frames: int, size: int = SIZE[4]) -> None:
        self._now = _BEGIN + round(bins * _BIN)
        self._clock.give(self._now)
        run(self._loose.fd, frame(4).ljust(size, b"x"), repeat=frames)

    def peak(self, bins: float) -> int:
        """End the window at that time; return the bytes of its peak, 0 if there is none."""
        self._now = _BEGIN + round(bins * _BIN)
        return sum(peak.bytes for peak in self.probe.poll().peaks)


@pytest.fixture
def timed(make_probe: MakeProbe) -> Timed:
    return Timed(make_probe)


def test_a_burst_counts_whole_wherever_it_begins(timed: Timed) -> None:
    for begin in (10.0, 20.3, 30.99):
        timed.burst(begin, 3)
        timed.burst(begin + 0.9, 4)
    timed.burst(60, 5, 3000)
    assert timed.peak(100) == 5 * 3000
    timed.burst(130, 1)
    timed.burst(132, 1)
    assert timed.peak(200) == SIZE[4]
    assert timed.peak(300) == 0


def test_a_swap_within_a_burst_does_not_split_it(timed: Timed) -> None:
    timed.burst(99.5, 3)
    assert timed.peak(99.8) == 3 * SIZE[4]
    timed.burst(100.1, 4)
    assert timed.peak(200) == 7 * SIZE[4]


def test_a_lap_of_the_ring_does_not_add_to_the_one_before(timed: Timed) -> None:
    timed.burst(10, 3)
    assert timed.peak(500) == 3 * SIZE[4]
    timed.burst(10 + BINS, 2)
    assert timed.peak(20 + BINS) == 2 * SIZE[4]


def test_a_window_that_is_longer_than_the_ring_has_no_peak(timed: Timed) -> None:
    timed.burst(BINS - 10, 3)
    assert timed.peak(BINS - 5) == 3 * SIZE[4]
    timed.burst(BINS + 20, 3)
    assert timed.peak(2 * BINS) == 0


def test_packets_of_all_cpus_and_interfaces_count_in_real_time() -> None:
    with silent_pair() as (left, right), watching(right.ns, f"{right.ifname},lo") as end:
        with inside(left.ns), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for cpu, frames in ((0, 40), (1, 60)):
                os.sched_setaffinity(0, {cpu % (os.cpu_count() or 1)})
                for _ in range(frames):
                    sender.sendto(bytes(58), (right.ipv4, 9))
        found = [each for item in end().tables for each in item.peaks]
    (peak,) = (each for each in found if each.direction == "ingress")
    # A preempted sender takes longer than a peak; an address was asked for.
    assert 60 <= peak.bytes / 100 < 102
    assert peak.interface == right.ifname


def test_files_have_rates_and_leave_unknown_ones_empty() -> None:
    rows = np.zeros(2, INTERFACE)
    rows["interface"] = ["eth0", "eth1"]
    peaks = (Peak("eth0", "ingress", 500, 8_000_000), Peak("lo", "ingress", 600, 8_000_000))
    table = replace(window(rows, 1), metric=INTERFACES, peaks=peaks)
    first, second = _rows(table, "interfaces")
    assert (first["peak_in_bps"], first["peak_out_bps"]) == (500_000, None)
    assert second["peak_in_bps"] is None
    (row,) = _rows(table, "windows")
    assert (row["peak_in_bps"], row["peak_out_bps"]) == (600_000, None)


def _rows(item: Snapshot, view: str) -> list[dict[str, object]]:
    return [dict(record) for record in VIEWS[view].records(item, nested=True)]
