"""Reading what a swapped-out program counted: exact after the grace period, and not before."""

from __future__ import annotations

import os
import resource
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from bpf import machine, syscall
from bpf.abi import ProgType
from bpf.attach.chain import Chain, Stage
from bpf.compiler import Compiled, Compiler
from bpf.programs import grace
from bpf.programs.program import Program
from tests.bpf.tools import PACKET, python, read_u64, without_capability
from tests.support.descriptors import open_fds

pytestmark = pytest.mark.timing

CAP_SYS_NICE = 23

SLOW = """\
#include "probe.h"

BPF_ARRAY(marks, u64, 2);

int slow(CONTEXT *ctx)
{
    u32 first = 0, second = 1;
    u64 *begun = marks.lookup(&first), *ended = marks.lookup(&second);
    if (!begun || !ended)
        return VERDICT_PASS;
    lock_xadd(begun, 1);
    for (int i = 0; i < 64000; i++)
        bpf_get_prandom_u32();
    lock_xadd(ended, 1);
    return VERDICT_PASS;
}
"""
"""Takes some 400 us between its two marks."""


def fail(*_: object) -> bool:
    return False


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Visits that failed elsewhere keep no test from visiting."""
    monkeypatch.setattr(grace, "_pause", grace.Pause())


@pytest.fixture(scope="module")
def slow(compiler: Compiler) -> Iterator[Compiled]:
    with compiler.compile(SLOW, ProgType.SCHED_CLS, cflags=["-DHOOK_TC_INGRESS"]) as compiled:
        yield compiled


def swap_and_read(slow: Compiled, seconds: float, *, wait: bool) -> tuple[list[bool], int, int]:
    """Swap two generations under packets, reading and emptying each when it is swapped out.

    Returns for each reading whether it was consistent, then the packets read and the packets sent.
    """
    stop = threading.Event()
    consistent, read = [], 0
    with ExitStack() as stack:
        chain = stack.enter_context(closing(Chain(ProgType.SCHED_CLS)))
        stage = Stage()
        active, idle = (
            stack.enter_context(closing(Program(slow, "slow", next_fd=stage.next_fd)))
            for _ in range(2)
        )
        chain.append(stage, active.fd)

        def send() -> int:
            sent = 0
            while not stop.is_set():
                syscall.prog_test_run(chain.fd, PACKET, repeat=20)
                sent += 20
            return sent

        def drain(program: Program) -> int:
            fd = program.map_fd("marks")
            begun, ended = read_u64(fd, 0), read_u64(fd, 1)
            for index in range(2):
                syscall.map_update(fd, index.to_bytes(4, "little"), bytes(8))
            consistent.append(begun == ended)
            return begun

        with ThreadPoolExecutor(1) as thread:
            sending = thread.submit(send)
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                active, idle = idle, active
                chain.replace(stage, active.fd)
                if wait:
                    grace.wait()
                read += drain(idle)
                time.sleep(0.003)
            stop.set()
            sent = sending.result()
        return consistent, read + drain(active), sent


@pytest.mark.parametrize("method", ["visit", "membarrier", "map-in-map"])
def test_after_the_grace_period_every_reading_is_consistent_and_no_packet_is_lost(
    slow: Compiled, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(method, monkeypatch)
    consistent, read, sent = swap_and_read(slow, 0.8, wait=True)
    assert len(consistent) > 3
    assert all(consistent)
    assert read == sent


def test_without_it_readings_are_torn(slow: Compiled) -> None:
    """The control: were this consistent too, the test above would show nothing."""
    # Chance: on a machine that has other things to do it may take a while.
    assert any(not all(swap_and_read(slow, 0.5, wait=False)[0]) for _ in range(20))


def force(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if method != "visit":
        monkeypatch.setattr(grace, "_visit_every_cpu", fail)
    if method == "map-in-map":
        monkeypatch.setattr(grace, "_membarrier", fail)


@pytest.mark.parametrize("method", ["visit", "membarrier", "map-in-map"])
def test_the_method_is_told_and_leaves_nothing_behind(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(method, monkeypatch)
    before = open_fds()
    waited = grace.wait()
    assert waited.method == method
    assert 0 < waited.seconds < 1
    assert open_fds() <= before


@pytest.mark.parametrize(
    ("build", "patched"),
    [
        ("#1 SMP PREEMPT_RT Debian 6.12.9-1", False),
        ("#1 SMP PREEMPT Debian 6.1.2-1", True),
        ("#1 SMP PREEMPT_DYNAMIC Debian 6.12.9-1", False),
    ],
)
def test_a_realtime_kernel_is_not_visited(
    build: str, patched: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = os.uname_result(("Linux", "host", "6.12.9", build, "x86_64"))
    monkeypatch.setattr(os, "uname", lambda: kernel)
    monkeypatch.setattr(grace, "_PATCHED", tmp_path if patched else tmp_path / "none")
    grace.is_realtime.cache_clear()
    try:
        realtime = patched or "PREEMPT_RT" in build
        assert grace.wait().method == ("membarrier" if realtime else "visit")
    finally:
        grace.is_realtime.cache_clear()


@pytest.mark.parametrize("kind", ["isolated", "nohz_full"])
def test_a_reserved_cpu_is_not_visited(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = machine._cpu_list
    monkeypatch.setattr(machine, "_cpu_list", lambda k: [0] if k == kind else read(k))
    machine.reserved_cpus.cache_clear()
    try:
        assert grace.wait().method == "membarrier"
    finally:
        machine.reserved_cpus.cache_clear()


def test_without_the_right_to_run_in_real_time_another_method_is_taken() -> None:
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(wait_without_privilege).result() == "membarrier"


def wait_without_privilege() -> str:
    """Wait in a thread that may not use SCHED_FIFO; other threads keep the right."""
    without_capability(CAP_SYS_NICE)
    before = resource.getrlimit(resource.RLIMIT_RTPRIO)
    resource.setrlimit(resource.RLIMIT_RTPRIO, (0, before[1]))
    try:
        return grace.wait().method
    finally:
        resource.setrlimit(resource.RLIMIT_RTPRIO, before)


def test_where_a_cpu_cannot_be_visited_another_method_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A CPU of another cpuset, or one that goes offline: the kernel says EINVAL."""
    before, threads = (os.sched_getscheduler(0), os.sched_getaffinity(0)), tasks()
    monkeypatch.setattr(grace, "online_cpus", lambda: [*machine.online_cpus(), 1000])
    assert grace.wait().method == "membarrier"
    assert (os.sched_getscheduler(0), os.sched_getaffinity(0)) == before
    assert settled(threads) <= threads


@pytest.mark.skipif(os.cpu_count() == 1, reason="the only CPU cannot be taken")
def test_a_real_time_thread_holds_up_neither_the_window_nor_any_other_thread() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    with ThreadPoolExecutor(2) as threads, spinning(cpus[-1], 3.0) as spinner:
        watching = threads.submit(longest_pause, cpus[0], 0.2)
        threads.submit(run_ahead, cpus[0], 5).result()
        before = tasks()
        waits = [threads.submit(grace.wait).result() for _ in range(4)]
        # The late visitor is gone although its CPU is still taken.
        assert settled(before) <= before
        assert spinner.poll() is None
        assert watching.result() < 0.012
    assert [waited.method for waited in waits] == ["membarrier"] * 4
    # Only the first one waited for the deadline.
    assert not grace._pause.is_over()


def test_visits_come_back_after_a_pause() -> None:
    pause = grace.Pause()
    assert pause.is_over()
    pause.report(success=False)
    assert not pause.is_over()
    pause.report(success=True)
    assert pause.is_over()


def test_each_failure_makes_the_pause_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pause = grace.Pause()
    lengths = []
    for _ in range(9):
        pause.report(success=False)
        began = now
        while not pause.is_over():
            now += 1
        lengths.append(now - began)
    assert lengths == [1, 2, 4, 8, 16, 32, 64, 64, 64]


def tasks() -> int:
    """The process's threads, whether or not Python knows them."""
    return len(os.listdir("/proc/self/task"))


def settled(expected: int) -> int:
    """Wait until the process has at most `expected` threads, 50 ms at most; return their number."""
    until = time.monotonic() + 0.05
    while tasks() > expected and time.monotonic() < until:
        time.sleep(0.001)
    return tasks()


SPIN = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(30))
print("runs", flush=True)
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    pass
"""


@contextmanager
def spinning(cpu: int, seconds: float) -> Iterator[subprocess.Popen[str]]:
    """A real-time process of higher priority than a visitor owns the CPU; the caller leaves it."""
    affinity = os.sched_getaffinity(0)
    os.sched_setaffinity(0, affinity - {cpu})
    try:
        with python(SPIN, str(cpu), str(seconds)) as process:
            assert process.stdout
            assert process.stdout.readline() == "runs\n"
            yield process
            process.kill()
    finally:
        os.sched_setaffinity(0, affinity)


def run_ahead(cpu: int, priority: int) -> None:
    """Have this thread run on the CPU before whatever else the machine does."""
    os.sched_setaffinity(0, {cpu})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))


def longest_pause(cpu: int, seconds: float) -> float:
    """Longest time in which this thread did not run, though its CPU was free for it."""
    run_ahead(cpu, 10)
    longest, last = 0.0, time.monotonic()
    end = last + seconds
    while last < end:
        time.sleep(0.001)
        now = time.monotonic()
        longest, last = max(longest, now - last), now
    return longest


def test_the_threads_cpus_and_policy_are_as_before() -> None:
    def narrowed() -> None:
        os.sched_setaffinity(0, {0})
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        assert grace.wait().method == "visit"
        assert os.sched_getaffinity(0) == {0}
        assert os.sched_getscheduler(0) == os.SCHED_BATCH

    with ThreadPoolExecutor(1) as thread:
        thread.submit(narrowed).result()
