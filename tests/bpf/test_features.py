"""Trials against the real kernel, and what its devices tell."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from app.lab import netns
from bpf import features
from bpf.attach import Hook
from bpf.features import Capability
from bpf.syscall import enable_run_time_stats, prog_info, prog_test_run
from tests.nobody import become_nobody

TRIALS = [
    features.try_bpf,
    features.try_ring_buffer,
    features.try_mmapable_array,
    features.try_atomic_exchange,
    features.try_coarse_clock,
    features.try_batch,
    features.try_kernel_drain,
    features.try_statistics,
]
prog_test_run.__test__ = False  # type: ignore[attr-defined]


@pytest.fixture
def veth() -> Iterator[netns.End]:
    with netns.veth_pair() as (left, _), netns.inside(left.ns):
        yield left


@pytest.mark.parametrize("trial", TRIALS)
def test_this_kernel_has_it(trial: Callable[[], None]) -> None:
    trial()


def test_nobody_may_try_nothing() -> None:
    program = (
        "from bpf import features\n"
        "for name in sorted(dir(features)):\n"
        "    if name.startswith('try_'):\n"
        "        try:\n"
        "            getattr(features, name)()\n"
        "        except OSError as error:\n"
        "            print(name, error.errno)\n"
        "print(sorted(features.capabilities()))\n"
    )
    said = subprocess.run(
        [sys.executable, "-I", "-c", program],
        preexec_fn=become_nobody, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    assert said[:-1] == [
        f"{t.__name__} {errno.EPERM}" for t in sorted(TRIALS, key=lambda t: t.__name__)
    ]
    assert said[-1] == "[]"


def test_root_has_every_capability_and_the_kernel_knows_them() -> None:
    assert features.capabilities() == frozenset(Capability)
    assert features.known_capabilities() == frozenset(Capability)


@pytest.mark.parametrize("hook", list(Hook))
def test_the_passing_program_passes(hook: Hook) -> None:
    program = features.load_passing(hook)
    try:
        # XDP_PASS, and TC_ACT_UNSPEC as an unsigned number.
        expected = 2 if hook is Hook.XDP else 0xFFFFFFFF
        assert prog_test_run(program, bytes(64)).verdict == expected
    finally:
        os.close(program)


def test_statistics_are_off_again() -> None:
    features.try_statistics()
    program = features.load_passing(Hook.XDP)
    prog_test_run(program, bytes(64), repeat=10)
    idle = prog_info(program).run_count
    statistics = enable_run_time_stats()
    prog_test_run(program, bytes(64), repeat=10)
    counted = prog_info(program).run_count
    os.close(statistics)
    os.close(program)
    assert (idle, counted) == (0, 10)


def test_the_jit_is_seen() -> None:
    with open("/proc/sys/net/core/bpf_jit_enable", encoding="ascii") as file:
        assert features.jit_works() == (int(file.read()) > 0)


def test_what_a_veth_tells(veth: netns.End) -> None:
    assert features.driver(veth.ifname) == "veth"
    assert features.native_xdp(veth.ifindex) is True
    assert features.receive_offloads(veth.ifname) == {}


def test_what_loopback_tells() -> None:
    assert features.driver("lo") == ""
    assert features.native_xdp(socket.if_nametoindex("lo")) is False


def test_an_interface_that_is_not_there() -> None:
    assert features.driver("nonesuch0") == ""
    assert features.native_xdp(1 << 30) is None
    with pytest.raises(OSError, match="No such device"):
        features.receive_offloads("nonesuch0")


def test_an_offload_that_can_be_changed_is_told(
    monkeypatch: pytest.MonkeyPatch, veth: netns.End
) -> None:
    # No device made here has LRO or GRO_HW; these two are read in the same way.
    monkeypatch.setattr(features, "_RECEIVE_OFFLOADS", ("rx-vlan-hw-parse", "tx-lockless"))
    assert features.receive_offloads(veth.ifname) == {"rx-vlan-hw-parse": True}


def test_a_kernel_without_a_feature_gets_its_substitute(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(code: int) -> None:
        raise OSError(code, os.strerror(code))

    features.kernel_macros.cache_clear()
    try:
        assert set(features.kernel_macros().values()) == {1}
        monkeypatch.setattr(features, "try_atomic_exchange", lambda: refuse(errno.EINVAL))
        monkeypatch.setattr(features, "try_coarse_clock", lambda: refuse(errno.EPERM))
        features.kernel_macros.cache_clear()
        assert features.kernel_macros() == {"HAS_COARSE_CLOCK": 1, "HAS_ATOMICS": 0}
    finally:
        features.kernel_macros.cache_clear()
