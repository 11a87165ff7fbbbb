"""Times of packets: the timer's cell, the kernel's own clock, and jiffies."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time

import numpy as np
import pytest

from bpf.arrays import Array
from bpf.syscall import map_lookup, map_update, prog_fd_by_id
from bpf.syscall import prog_test_run as run
from probes.flow import clock as module
from probes.flow.clock import TickClock, TimerClock
from tests.probes.conftest import LooseProbe, MakeProbe
from tests.probes.flow.test_windows import frame

run.__test__ = False  # type: ignore[attr-defined]
CELL = np.dtype([("units", "u4"), ("until", "u4"), ("end", "u8"), ("since", "u8"), ("calls", "u8")])
"""`struct clock` of clock.h, without its timer."""
BURST = 100
"""So many packets at once start the timer."""


@pytest.fixture
def loose(make_probe: MakeProbe) -> LooseProbe:
    return make_probe()


@pytest.fixture
def timed(loose: LooseProbe) -> LooseProbe:
    """A probe with a timer; older kernels have none, and some have ticks of a millisecond."""
    if not isinstance(loose.probe._clock, TimerClock):
        pytest.skip("no timer")
    return loose


@pytest.fixture
def ticks(make_probe: MakeProbe, monkeypatch: pytest.MonkeyPatch) -> LooseProbe:
    """A probe on a kernel without timers."""

    def refused() -> TimerClock:
        raise OSError("as Linux 5.10")

    monkeypatch.setattr(module, "TimerClock", refused)
    return make_probe()


def cell_of(loose: LooseProbe) -> Array:
    """The cell of a probe's clock."""
    value = map_lookup(loose.probe._clock.fds["clock"], bytes(4), 48)
    assert value
    cell: Array = np.frombuffer(value, CELL, 1)[0]
    return cell


def count_packets(loose: LooseProbe, packets: int) -> tuple[Array, Array]:
    """Count packets of as many flows, one after the other.

    Returns their times (n,), and how much each lies before or after the moment of its packet.
    """
    moments = [time.monotonic_ns()]
    for number in range(packets):
        run(loose.fd, frame(number))
        moments.append(time.monotonic_ns())
    rows = loose.probe.poll().rows
    assert len(rows) == packets
    assert (rows["first_ns"] == rows["last_ns"]).all()
    numbers = rows["source"][:, :4].copy().view(">u4").ravel()
    times = rows["first_ns"][np.argsort(numbers)]
    return times, np.maximum(times - moments[1:], 0) + np.minimum(times - moments[:-1], 0)


def test_a_lone_packet_has_its_exact_time(loose: LooseProbe) -> None:
    _, errors = count_packets(loose, 5)
    assert np.abs(errors).max() <= loose.probe._clock.error_ns


def test_without_a_timer_times_are_jiffies(ticks: LooseProbe) -> None:
    clock = ticks.probe._clock
    assert type(clock) is TickClock
    assert (clock.macros, clock.fds) == ({}, {})
    assert "clock" not in ticks.probe._shapes["ingress"]
    _, errors = count_packets(ticks, 5)
    # A busy host's tick comes late.
    assert np.abs(errors).max() <= clock.error_ns + 10**7


@pytest.mark.timing
def test_fast_packets_start_the_timer_and_it_ends(timed: LooseProbe) -> None:
    run(timed.fd, frame(0), repeat=BURST // 4)
    assert cell_of(timed)["until"] == 0
    run(timed.fd, frame(0), repeat=BURST)
    seen = set()
    end = time.monotonic() + 10
    while (cell := cell_of(timed))["until"]:
        seen.add(int(cell["units"]))
        assert time.monotonic() < end
    # Of 100 runs; a busy host has fewer.
    assert len(seen) > 5
    assert time.monotonic_ns() > int(cell["end"])


@pytest.mark.timing
def test_a_fast_packets_time_is_right_and_never_goes_back(timed: LooseProbe) -> None:
    run(timed.fd, frame(0), repeat=BURST)
    timed.probe.poll()
    # Longer than the timer runs: it ends and starts meanwhile.
    times, errors = count_packets(timed, 4000)
    assert (np.diff(times) >= 0).all()
    error_ns = timed.probe._clock.error_ns
    assert error_ns < 10**6
    assert np.abs(np.median(errors)) < error_ns
    assert np.percentile(np.abs(errors), 95) <= error_ns


def uses_cell(loose: LooseProbe, ticks: int) -> bool:
    """Whether a packet gets the time of a cell, which is for jiffies up to `ticks` from now.

    The timer ends.
    """
    loose.probe.poll()
    clock = TickClock()
    time.sleep(0.03)
    begin = time.monotonic_ns()
    early = begin - 20_000_000 >> module._SHIFT & 0xFFFFFFFF
    value = struct.pack("<II40x", early, (clock._read() + ticks) & 0xFFFFFFFF)
    map_update(loose.probe._clock.fds["clock"], bytes(4), value)
    run(loose.fd, frame(1))
    clock.close()
    (row,) = loose.probe.poll().rows
    return begin - int(row["first_ns"]) > 10**7


def test_a_valid_cell_is_the_time_and_a_stale_one_is_not(timed: LooseProbe) -> None:
    assert not uses_cell(timed, 1000)
    assert not uses_cell(timed, -1)
    # A busy host may run the packet too late.
    assert any(uses_cell(timed, 1) for _ in range(20))


def test_many_packets_do_not_put_the_timer_off(timed: LooseProbe) -> None:
    run(timed.fd, frame(0), repeat=BURST)
    first = cell_of(timed)
    run(timed.fd, frame(0), repeat=BURST)
    assert cell_of(timed)["end"] == first["end"]


CHILD = """
from bpf.assembler import Assembler, HelperFunction as Helper, Register as R
from bpf.syscall import map_lookup, prog_info, prog_load, prog_test_run
from bpf.abi import ProgType
from probes.flow import clock

load = clock.load_with_callback

def watched(*arguments):
    fd = load(*arguments)
    print(prog_info(fd).id, flush=True)
    return fd

clock.load_with_callback = watched
fd = clock.TimerClock().fds["clock"]
code = Assembler()
code.store(R.FP, -8, 0)
code.load_map(R.R1, fd)
code.move(R.R2, R.FP)
code.add(R.R2, -8)
code.call(Helper.MAP_LOOKUP_ELEM)
code.jump_if_zero(R.R0, "done")
code.store(R.R0, 8, -1)
code.move(R.R1, R.R0)
code.add(R.R1, 32)
code.move(R.R2, 0)
code.move(R.R3, 0)
code.call(Helper.TIMER_START)
code.label("done")
code.exit(0)
prog_test_run(prog_load(code.assemble(), ProgType.XDP, "start"), bytes(64))
seen = set()
while len(seen) < 5:
    seen.add(map_lookup(fd, bytes(4), 48))
print(flush=True)
input()
"""
"""A process whose timer runs on; it prints the number of the timer's program."""


def is_loaded(number: int) -> bool:
    try:
        os.close(prog_fd_by_id(number))
    except FileNotFoundError:
        return False
    return True


def test_a_killed_process_leaves_no_timer(timed: LooseProbe) -> None:
    child = subprocess.Popen(
        [sys.executable, "-I", "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        assert child.stdout
        number = int(child.stdout.readline())
        child.stdout.readline()
        assert is_loaded(number)
        child.kill()
    end = time.monotonic() + 10
    while is_loaded(number):
        assert time.monotonic() < end
        time.sleep(0.01)
