"""Trials against the real kernel and its devices."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from bpf import features
from bpf.attach.attachment import Hook
from bpf.features import Capability
from bpf.syscall import enable_run_time_stats, prog_info, prog_test_run
from tests.support.nobody import become_nobody

RELEASE = tuple(int(number) for number in os.uname().release.split(".")[:2])
TRIALS = {
    features.try_bpf: (4, 4),
    features.try_ring_buffer: (5, 8),
    features.try_mmapable_array: (5, 5),
    features.try_atomic_exchange: (5, 18) if os.uname().machine == "aarch64" else (5, 12),
    features.try_coarse_clock: (5, 11),
    features.try_batch: (5, 6),
    features.try_kernel_drain: (5, 14),
    features.try_statistics: (5, 8),
}
"""Trials, and the releases of Linux that brought what they try."""
prog_test_run.__test__ = False  # type: ignore[attr-defined]


@pytest.mark.parametrize("trial", TRIALS)
def test_this_kernel_has_it_unless_it_is_too_old(trial: Callable[[], None]) -> None:
    refused = 0
    try:
        trial()
    except OSError as error:
        refused = error.errno or -1
    assert refused == 0 or (refused == errno.EINVAL and TRIALS[trial] > RELEASE)


def test_nobody_may_try_nothing() -> None:
    program = (
        "from bpf import features\n"
        "for name in sorted(dir(features)):\n"
        "    if name.startswith('try_'):\n"
        "        try:\n"
        "            getattr(features, name)(*[4096] * (name == 'try_memory'))\n"
        "        except OSError as error:\n"
        "            print(name, error.errno)\n"
        "print(sorted(features.capabilities()))\n"
    )
    said = subprocess.run(
        [sys.executable, "-I", "-c", program],
        preexec_fn=become_nobody, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    names = {trial.__name__ for trial in TRIALS} | {features.try_memory.__name__}
    assert said[:-1] == [f"{name} {errno.EPERM}" for name in sorted(names)]
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


def test_a_kernel_without_a_feature_gets_its_substitute(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(code: int) -> None:
        raise OSError(code, os.strerror(code))

    features.kernel_macros.cache_clear()
    try:
        newest = {"HAS_COARSE_CLOCK": 1, "HAS_ATOMICS": 1}
        assert features.kernel_macros() == newest or RELEASE < (5, 12)
        monkeypatch.setattr(features, "try_atomic_exchange", lambda: refuse(errno.EINVAL))
        monkeypatch.setattr(features, "try_coarse_clock", lambda: refuse(errno.EPERM))
        features.kernel_macros.cache_clear()
        assert features.kernel_macros() == {"HAS_COARSE_CLOCK": 1, "HAS_ATOMICS": 0}
    finally:
        features.kernel_macros.cache_clear()
