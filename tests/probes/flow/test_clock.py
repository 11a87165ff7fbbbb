"""Times of packets: the timer's cell, the kernel's own clock, and jiffies."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time

import numpy as np
import pytest

from bpf.syscall import map_lookup, map_update, prog_fd_by_id
from bpf.syscall import prog_test_run as run
from probes.flow import clock as module
from probes.flow.clock import TickClock, TimerClock, flow_clock
from probes.flow.records import Array
from tests.probes.conftest import LooseProbe, MakeProbe
from tests.probes.flow.test_windows import frame
from tests.probes.test_old_kernels import assert_runs_on_old_kernels

run.__test__ = False  # type: ignore[attr-defined]
CELL = np.dtype([("units", "u4"), ("until", "u4"), ("end", "u8"), ("since", "u8"), ("calls", "u8")])
"""`struct clock` of clock.h, without its timer."""
BURST = 100
"""So many packets at once start the timer."""


def has_timer() -> bool:
    clock = flow_clock()
    clock.close()
    return isinstance(clock, TimerClock)


needs_timer = pytest.mark.skipif(not has_timer(), reason="no timer, or ticks are as short")


@pytest.fixture
def loose(make_probe: MakeProbe) -> LooseProbe:
    return make_probe()


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


def put_cell(loose: LooseProbe, ahead_ns: int, ticks: int) -> None:
    """Write the time of `ahead_ns` from now, for jiffies up to `ticks` from now. Ends the timer."""
    with_jiffies = TickClock()
    jiffies = with_jiffies._jiffies + ticks
    with_jiffies.close()
    units = (time.monotonic_ns() + ahead_ns) >> module._SHIFT
    value = struct.pack("<II40x", units & 0xFFFFFFFF, jiffies & 0xFFFFFFFF)
    map_update(loose.probe._clock.fds["clock"], bytes(4), value)


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
    times = rows["first_ns"][
        np.argsort(rows["source"][:, 3] + 256 * rows["source"][:, 2].astype(int))
    ]
    return times, np.maximum(times - moments[1:], 0) + np.minimum(times - moments[:-1], 0)


def test_a_lone_packet_has_its_exact_time(loose: LooseProbe) -> None:
    _, errors = count_packets(loose, 5)
    assert np.abs(errors).max() <= loose.probe._clock.error_ns


def test_without_a_timer_times_are_jiffies(ticks: LooseProbe) -> None:
    clock = ticks.probe._clock
    assert isinstance(clock, TickClock)
    assert (clock.macros, clock.fds) == ({}, {})
    _, errors = count_packets(ticks, 5)
    # A busy host's tick comes late.
    assert np.abs(errors).max() <= clock.error_ns + 10**7


@needs_timer
def test_fast_packets_start_the_timer_and_it_ends(loose: LooseProbe) -> None:
    run(loose.fd, frame(0), repeat=BURST // 4)
    assert cell_of(loose)["until"] == 0
    run(loose.fd, frame(0), repeat=BURST)
    seen = set()
    end = time.monotonic() + 10
    while (cell := cell_of(loose))["until"]:
        seen.add(int(cell["units"]))
        assert time.monotonic() < end
    # Of 100 runs; a busy host has fewer.
    assert len(seen) > 5
    assert time.monotonic_ns() > int(cell["end"])


@needs_timer
@pytest.mark.timing
def test_a_fast_packets_time_is_right_and_never_goes_back(loose: LooseProbe) -> None:
    run(loose.fd, frame(0), repeat=BURST)
    loose.probe.poll()
    # Longer than the timer runs: it ends and starts meanwhile.
    times, errors = count_packets(loose, 4000)
    assert (np.diff(times) >= 0).all()
    error_ns = loose.probe._clock.error_ns
    assert np.abs(np.median(errors)) < error_ns
    assert np.percentile(np.abs(errors), 95) <= error_ns


@needs_timer
@pytest.mark.timing
def test_a_valid_cell_is_the_time_and_a_stale_one_is_not(loose: LooseProbe) -> None:
    for ticks, valid in ((1000, False), (-1, False), (1, True)):
        loose.probe.poll()
        time.sleep(0.03)
        begin = time.monotonic_ns()
        put_cell(loose, -20_000_000, ticks)
        run(loose.fd, frame(1))
        (row,) = loose.probe.poll().rows
        early = begin - int(row["first_ns"])
        assert (early > 10**7) == valid, ticks


@needs_timer
def test_many_packets_do_not_put_the_timer_off(loose: LooseProbe) -> None:
    run(loose.fd, frame(0), repeat=BURST)
    first = cell_of(loose)
    run(loose.fd, frame(0), repeat=BURST)
    assert cell_of(loose)["end"] == first["end"]


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


@needs_timer
def test_a_killed_process_leaves_no_timer() -> None:
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


def test_a_kernel_without_timers_needs_no_new_helper(ticks: LooseProbe) -> None:
    ((side, source),) = ticks.probe._current.sources.items()
    with ticks.probe._compile(side, source) as compiled:
        assert "clock" not in compiled.maps
        assert_runs_on_old_kernels(compiled)
