"""System calls by number: only where the numbers are known."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from bpf import syscall
from bpf.abi import MapType
from bpf.errors import KernelError
from bpf.machine import LIBC, system_calls
from bpf.syscall import MapSpec


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Nothing is cached from the real machine before a test, or from a pretended one after it."""
    system_calls.cache_clear()
    yield
    system_calls.cache_clear()


@pytest.mark.parametrize("machine", ["armv7l", "s390x", "ppc64le", "riscv64", "i686"])
def test_another_machine_is_refused_in_one_line(
    machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine=machine))
    monkeypatch.setattr(LIBC, "syscall", lambda *_: pytest.fail("a system call was made"))
    with pytest.raises(KernelError, match=f"{machine}.*x86_64 and aarch64") as refusal:
        syscall.map_create(MapSpec("any", MapType.ARRAY, 4, 4, 1))
    assert "\n" not in str(refusal.value)
    assert refusal.value.exit_code == 4


def test_a_big_endian_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine="aarch64"))
    monkeypatch.setattr(sys, "byteorder", "big")
    with pytest.raises(KernelError, match="64-bit big-endian aarch64"):
        system_calls()


@pytest.mark.parametrize(("machine", "number"), [("x86_64", 321), ("aarch64", 280)])
def test_the_numbers_of_supported_machines(
    machine: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine=machine))
    assert system_calls().bpf == number
