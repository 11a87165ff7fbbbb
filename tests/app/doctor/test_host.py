"""The doctor on this machine, and on machines made worse."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from app.doctor import host
from bpf import features, machine
from bpf.attach import attachment, interface
from bpf.attach.attachment import Hook, attach
from bpf.compiler import Compiler
from bpf.compiler.diagnostics import parse_verifier
from bpf.errors import KernelError
from bpf.features import Capability
from bpf.sockets import features as sources
from tests.app.doctor.report import Report, examine
from tests.support.nobody import become_nobody

PR_CAPBSET_DROP = 24
NAMES = {
    "CAP_BPF", "CAP_PERFMON", "CAP_NET_ADMIN", "CAP_SYS_NICE", "CAP_NET_RAW",
    "CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "bpf(2)", "open files",
    "kernel", "bpffs", "BTF", "JIT", "lockdown", "PREEMPT_RT", "unprivileged bpf",
    "stored programs", "UAPI headers", "bcc and LLVM", "confinement",
    "XDP bpf_link", "TCX bpf_link", "ring buffer", "mmap-able arrays", "atomic exchange",
    "batch operations",
    "in-kernel drain", "clock of flows", "kernel memory", "BPF statistics", "grace period",
    "socket questions", "closed sockets", "socket events", "socket holders", "NAT", "namespaces",
    "cgroup names",
}  # fmt: skip


def examine_as(change: Callable[[], object]) -> Report:
    """Examine in a process that `change` has taken something away from."""
    program = "import sys; from app import doctor; sys.exit(doctor.run(None))"
    done = subprocess.run(
        [sys.executable, "-I", "-c", program],
        preexec_fn=change, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    return Report(done.stdout, done.returncode)


def drop(*capabilities: Capability) -> Callable[[], None]:
    def change() -> None:
        for capability in capabilities:
            ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, int(capability), 0, 0, 0)

    return change


def refuse(code: int) -> Callable[..., None]:
    def refused(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    return refused


def test_all_is_named_and_well_for_root() -> None:
    report = examine()
    assert report.code == 0
    assert set(report.status) == NAMES
    assert {n for n, status in report.status.items() if status in ("missing", "fatal")} == set()
    assert report.status["bcc and LLVM"] == "ok"
    assert report.text.endswith("monitoring can run here\n")


def test_nothing_stays_behind() -> None:
    here = os.stat("/proc/thread-self/ns/net").st_ino
    examine()  # The types that a program with a callback needs are loaded once, and stay open.
    before = os.listdir("/proc/self/fd")
    examine()
    assert os.listdir("/proc/self/fd") == before
    assert os.stat("/proc/thread-self/ns/net").st_ino == here


def test_nobody_is_told_what_to_get() -> None:
    report = examine_as(become_nobody)
    assert report.code == 4
    assert set(report.status) == NAMES - {"confinement"}
    for name in ("CAP_BPF", "CAP_PERFMON", "CAP_NET_ADMIN"):
        assert report.status[name] == "fatal"
        assert "sudo" in report.remedy[name]
        assert name in report.remedy[name]
    assert report.detail["bcc and LLVM"].startswith("installed")
    assert report.detail["XDP bpf_link"].startswith("not tried")
    assert report.detail["batch operations"] == "not tried: not allowed"
    assert report.detail["socket holders"] == "not tried: not allowed"
    assert "CAP_NET_BROADCAST" in report.remedy["closed sockets"]
    assert "CAP_SYS_ADMIN" in report.remedy["namespaces"]
    assert report.text.splitlines()[-1].startswith("monitoring can't run here: CAP_BPF")


@pytest.mark.slow
@pytest.mark.parametrize(
    "capability", [Capability.CAP_BPF, Capability.CAP_PERFMON, Capability.CAP_NET_ADMIN]
)
def test_a_capability_that_root_lost_is_named(capability: Capability) -> None:
    report = examine_as(drop(capability, Capability.CAP_SYS_ADMIN))
    assert report.code == 4
    lost = {n for n, s in report.status.items() if n.startswith("CAP_") and s == "fatal"}
    assert lost == {capability.name}
    assert f"keep {capability.name}" in report.remedy[capability.name]


def test_the_three_capabilities_are_enough() -> None:
    report = examine_as(drop(Capability.CAP_SYS_ADMIN, Capability.CAP_SYS_NICE))
    assert report.code == 0
    assert report.status["bcc and LLVM"] == "ok"
    assert report.status["CAP_SYS_NICE"] == "note"
    assert "membarrier" in report.detail["grace period"]
    assert report.status["BPF statistics"] == "missing"
    assert "bpf_stats_enabled" in report.remedy["BPF statistics"]
    for name in ("socket questions", "closed sockets", "socket events", "socket holders", "NAT"):
        assert report.status[name] == "ok"


def test_memory_that_the_kernel_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before kernel 5.11 maps count against RLIMIT_MEMLOCK, and small ones pass."""
    asked: list[int] = []

    def refuse(size: int) -> None:
        asked.append(size)
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(features, "try_memory", refuse)
    (check,) = (check for check in host.try_features() if check.name == "kernel memory")
    assert asked[0] > 1 << 20
    assert check.status == "fatal"
    assert re.match(r"Operation not permitted for \d+ MiB of flow tables", check.detail)
    assert "ulimit -l unlimited" in check.remedy


def test_sys_admin_stands_in() -> None:
    report = examine_as(drop(Capability.CAP_BPF, Capability.CAP_PERFMON))
    assert report.code == 0
    assert "CAP_SYS_ADMIN" in report.detail["CAP_BPF"]


def test_an_old_kernel_asks_for_sys_admin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        features, "known_capabilities", lambda: frozenset({Capability.CAP_NET_ADMIN})
    )
    monkeypatch.setattr(features, "capabilities", lambda: frozenset({Capability.CAP_NET_ADMIN}))
    report = examine()
    assert report.code == 4
    assert report.status["CAP_SYS_ADMIN"] == "fatal"
    assert "CAP_BPF" not in report.status


@pytest.mark.parametrize(
    ("python", "reason"),
    [
        ("/bin/false", "does not start"),
        (sys.executable, "cannot import bcc"),
        ("/nonexistent", "there is no /nonexistent"),
    ],
)
def test_a_broken_compiler(monkeypatch: pytest.MonkeyPatch, python: str, reason: str) -> None:
    monkeypatch.setattr("bpf.compiler.client.SYSTEM_PYTHON", python)
    report = examine()
    assert report.code == 4
    assert report.status["bcc and LLVM"] == "fatal"
    assert reason in report.detail["bcc and LLVM"]
    assert report.remedy["bcc and LLVM"] == "apt install python3-bpfcc linux-libc-dev"


def test_a_broken_compiler_is_named_without_privileges_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bpf.compiler.client.SYSTEM_PYTHON", sys.executable)
    monkeypatch.setattr(features, "try_bpf", refuse(errno.EPERM))
    assert examine().remedy["bcc and LLVM"] == "apt install python3-bpfcc linux-libc-dev"


def test_a_compiler_that_cannot_be_confined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Compiler, "unconfined", lambda self: "mount: Operation not permitted")
    report = examine()
    assert report.status["confinement"] == "note"
    assert report.detail["confinement"] == (
        "none (mount: Operation not permitted): the API takes no sources by TCP"
    )
    assert "Landlock" in report.remedy["confinement"]


def test_missing_headers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(host, "UAPI_HEADER", tmp_path / "bpf.h")
    report = examine()
    assert report.code == 4
    assert report.remedy["UAPI headers"] == "apt install linux-libc-dev"


def test_no_bpf_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "try_bpf", refuse(errno.ENOSYS))
    report = examine()
    assert report.code == 4
    assert "CONFIG_BPF_SYSCALL" in report.remedy["bpf(2)"]


def test_a_container_that_forbids_bpf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "try_bpf", refuse(errno.EPERM))
    report = examine()
    assert report.code == 4
    assert "in spite of the capabilities" in report.detail["bpf(2)"]
    assert "seccomp" in report.remedy["bpf(2)"]


def test_what_has_a_fallback_is_a_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(attachment, "STATE", tmp_path)
    monkeypatch.setattr("bpf.attach.attachment.link_create", refuse(errno.EINVAL))
    monkeypatch.setattr(features, "try_atomic_exchange", refuse(errno.EINVAL))
    monkeypatch.setattr(features, "try_batch", refuse(errno.EINVAL))
    monkeypatch.setattr(features, "try_kernel_drain", refuse(errno.EINVAL))
    monkeypatch.setattr(features, "jit_works", lambda: False)
    report = examine()
    assert report.code == 0
    for name, instead, release in (
        ("TCX bpf_link", "clsact is used", "6.6"),
        ("atomic exchange", "paths are not traced", "5.12"),
        ("batch operations", "entry by entry", "5.6"),
        ("in-kernel drain", "in batches", "5.14"),
        ("JIT", "interpreted", ""),
    ):
        assert report.status[name] == "note"
        assert instead in report.detail[name]
        assert f"kernel {release} " in report.remedy[name] or not release
    assert list(tmp_path.iterdir()) == []


def test_a_missing_source_of_owners_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("questions", "closing", "events", "iterator", "translation"):
        monkeypatch.setattr(sources, f"try_{name}", refuse(errno.ENOENT))
    report = examine()
    assert report.code == 0
    for name, without in (
        ("socket questions", "flows have no owner"),
        ("closed sockets", "short connections have no owner"),
        ("socket events", "closed sockets have no process"),
        ("socket holders", "/proc is read"),
        ("NAT", "flows behind NAT have no owner"),
    ):
        assert report.status[name] in ("note", "missing")
        assert without in report.detail[name]
        assert "kernel" in report.remedy[name]


@pytest.mark.parametrize("name", ["try_ring_buffer", "try_mmapable_array"])
def test_what_has_no_fallback_is_fatal(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(features, name, refuse(errno.EINVAL))
    assert examine().code == 4


@pytest.mark.parametrize(("hook", "code"), [(Hook.XDP, 0), (Hook.TC_EGRESS, 4)])
def test_a_hook_that_takes_no_program(
    monkeypatch: pytest.MonkeyPatch, hook: Hook, code: int
) -> None:
    def attach_others(asked: Hook, fd: int, where: interface.Interface) -> object:
        if asked is hook:
            raise KernelError(f"lo takes no {hook.value} program")
        return attach(asked, fd, where)

    monkeypatch.setattr(host, "attach", attach_others)
    report = examine()
    assert report.code == code
    if hook is Hook.XDP:
        assert report.status["XDP bpf_link"] == "missing"
        assert "--ingress auto" in report.remedy["XDP bpf_link"]


def test_lockdown_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "LOCKDOWN", tmp_path / "lockdown")
    machine.LOCKDOWN.write_text("none integrity [confidentiality]\n")
    report = examine()
    assert report.status["lockdown"] == "note"
    log = "85: (85) call bpf_probe_read_kernel#113\nprogram of this type cannot use helper {}#113\n"
    refused = parse_verifier("f", log.format("bpf_probe_read_kernel")).text
    assert "Linux is locked down (confidentiality)" in refused
    assert "locked down" not in parse_verifier("f", log.format("bpf_get_cgroup_id")).text
    machine.LOCKDOWN.write_text("none [integrity] confidentiality\n")
    assert examine().detail["lockdown"] == "integrity"
