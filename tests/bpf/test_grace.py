"""Reading what a swapped-out program counted: exact after the grace period, and not before."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest

from bpf import grace, syscall
from bpf.abi import ProgType
from bpf.chain import Chain, Stage
from bpf.compiler import Compiled, Compiler
from bpf.program import Program
from tests.bpf.tools import PACKET, open_fds, read_u64

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


def refuse(*_: object) -> None:
    raise PermissionError(1, "not permitted")


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
    assert open_fds() == before


def test_a_realtime_kernel_is_not_visited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grace, "_is_realtime", lambda: True)
    assert grace.wait().method == "membarrier"


@pytest.mark.parametrize("call", ["sched_setscheduler", "sched_setaffinity"])
def test_where_a_cpu_cannot_be_visited_another_method_is_taken(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = getattr(os, call)

    def only_back(pid: int, *arguments: object) -> None:
        """Refuse what the visit asks for, and not that all is put back."""
        if arguments[0] in ({0}, os.SCHED_FIFO):
            refuse()
        original(pid, *arguments)

    monkeypatch.setattr(os, call, only_back)
    before = (os.sched_getscheduler(0), os.sched_getaffinity(0))
    assert grace.wait().method == "membarrier"
    assert (os.sched_getscheduler(0), os.sched_getaffinity(0)) == before


def test_the_threads_cpus_and_policy_are_as_before() -> None:
    def narrowed() -> None:
        os.sched_setaffinity(0, {0})
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        assert grace.wait().method == "visit"
        assert os.sched_getaffinity(0) == {0}
        assert os.sched_getscheduler(0) == os.SCHED_BATCH

    with ThreadPoolExecutor(1) as thread:
        thread.submit(narrowed).result()
