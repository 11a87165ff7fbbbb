"""The doctor on this machine, on machines made worse, and on interfaces made for it."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import io
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from app import doctor
from app.doctor import host, trials
from app.lab import netns
from bpf import features
from bpf.attach import ingress, interface, netlink
from bpf.attach.attachment import Hook, attach
from bpf.attach.chain import Chain
from bpf.compiler import Compiler
from bpf.errors import KernelError, UsageError
from bpf.features import Capability
from tests.support.nobody import become_nobody
from tests.support.veth import End, veth_pair

PR_CAPBSET_DROP = 24
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
NAMES = {
    "CAP_BPF", "CAP_PERFMON", "CAP_NET_ADMIN", "CAP_SYS_NICE", "bpf(2)",
    "kernel", "bpffs", "BTF", "JIT", "lockdown", "PREEMPT_RT", "unprivileged bpf",
    "UAPI headers", "bcc and LLVM", "confinement",
    "XDP bpf_link", "TCX bpf_link", "ring buffer", "mmap-able arrays", "atomic exchange",
    "batch operations",
    "in-kernel drain", "kernel memory", "BPF statistics", "grace period",
}  # fmt: skip


class Report:
    """Printed results by the checks' names."""

    def __init__(self, text: str, code: int) -> None:
        self.text, self.code = text, code
        self.status: dict[str, str] = {}
        self.detail: dict[str, str] = {}
        self.remedy: dict[str, str] = {}
        name = ""
        for line in text.splitlines():
            assert len(line) <= 80, line
            if match := re.match(r"  (ok|note|missing|fatal) +(\S.*?)  +(\S.*)$", line):
                status, name, detail = match.groups()
                self.status[name], self.detail[name] = status, detail
            elif line.startswith(" " * 10 + "-> "):
                self.remedy[name] = line.strip().removeprefix("-> ")
            elif line.startswith(" " * 13) and name in self.remedy:
                self.remedy[name] += " " + line.strip()
            elif line.startswith(" " * 28):
                self.detail[name] += " " + line.strip()


def examine(name: str | None = None) -> Report:
    out = io.StringIO()
    code = doctor.run(name, out)
    return Report(out.getvalue(), code)


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


@pytest.fixture
def veth() -> Iterator[End]:
    with veth_pair() as (left, _), netns.inside(left.ns):
        yield left


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
    assert report.text.splitlines()[-1].startswith("monitoring can't run here: CAP_BPF")


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


def test_memory_that_the_kernel_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before kernel 5.11 maps count against RLIMIT_MEMLOCK, and small ones pass."""
    asked: list[int] = []

    def refuse(size: int) -> None:
        asked.append(size)
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(features, "try_memory", refuse)
    (check,) = (check for check in trials.try_features() if check.name == "kernel memory")
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
    monkeypatch.setattr(netlink, "STATE", tmp_path)
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

    monkeypatch.setattr(trials, "attach", attach_others)
    report = examine()
    assert report.code == code
    if hook is Hook.XDP:
        assert report.status["XDP bpf_link"] == "missing"
        assert "--ingress auto" in report.remedy["XDP bpf_link"]


def test_lockdown_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(host, "LOCKDOWN", tmp_path / "lockdown")
    host.LOCKDOWN.write_text("none integrity [confidentiality]\n")
    report = examine()
    assert report.status["lockdown"] == "note"
    host.LOCKDOWN.write_text("none [integrity] confidentiality\n")
    assert examine().detail["lockdown"] == "integrity"


def test_an_unknown_interface() -> None:
    out = io.StringIO()
    with pytest.raises(UsageError, match="no interface 'nonesuch0'"):
        doctor.run("nonesuch0", out)
    assert out.getvalue() == ""


def test_a_veth(veth: End) -> None:
    report = examine(veth.ifname)
    assert report.code == 0
    assert report.detail["state"] == "up"
    assert report.detail["driver"] == "veth"
    assert report.status["native XDP"] == "ok"
    assert report.detail["ingress auto"] == "TC: veth: native XDP takes its peer's TSO away"
    assert report.detail["tc ingress order"] == "no program is there yet"
    assert report.detail["tc egress order"] == "no program is there yet"


def test_an_interface_that_is_down_and_generic() -> None:
    space = netns.fresh()
    try:
        with netns.inside(space):
            report = examine("lo")
    finally:
        os.close(space)
    assert report.code == 0
    assert (report.status["state"], report.remedy["state"]) == ("missing", "ip link set lo up")
    assert "generic" in report.detail["native XDP"]
    assert report.detail["ingress auto"] == "TC: loopback is a virtual interface"


def test_somebody_elses_program_is_named(veth: End) -> None:
    program = features.load_passing(Hook.XDP)
    theirs = attach(Hook.XDP, program, interface.find(veth.ifname))
    try:
        report = examine(veth.ifname)
    finally:
        theirs.close()
        os.close(program)
    assert report.status["tc ingress order"] == "note"
    found = re.search(
        r"XDP program 'doctor' id (\d+) runs first", report.detail["tc ingress order"]
    )
    assert found
    assert (
        report.detail["ingress auto"]
        == f"TC: XDP program 'doctor' id {found[1]} is on {veth.ifname}"
    )


def test_the_order_of_programs_is_told(veth: End) -> None:
    """Before a run: who will come behind it; during a run: who came before it."""
    where = interface.find(veth.ifname)
    theirs = features.load_passing(Hook.TC_EGRESS)
    with closing(Chain(Hook.TC_EGRESS.prog_type)) as chain, ExitStack() as stack:
        stack.callback(os.close, theirs)
        stack.callback(attach(Hook.TC_EGRESS, theirs, where).close)
        report = examine(veth.ifname)
        assert report.status["tc egress order"] == "ok"
        assert re.fullmatch(
            r"TCX program 'doctor' id \d+ comes behind probedeck's",
            report.detail["tc egress order"],
        )
        ours = attach(Hook.TC_EGRESS, chain.fd, where)
        assert "behind probedeck's" in examine(veth.ifname).detail["tc egress order"]
        stack.callback(ours.close)
        later = features.load_passing(Hook.TC_EGRESS)
        stack.callback(os.close, later)
        stack.callback(attach(Hook.TC_EGRESS, later, where).close)
        report = examine(veth.ifname)
        assert report.status["tc egress order"] == "note"
        assert (
            "runs first: packets dropped or redirected there are not counted"
            in report.detail["tc egress order"]
        )


def test_an_interface_without_ethernet() -> None:
    space = netns.fresh()
    with netns.inside(space), open("/dev/net/tun", "r+b", buffering=0) as tun:
        fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", b"tun0", IFF_TUN | IFF_NO_PI))
        report = examine("tun0")
    os.close(space)
    assert "TC" in report.detail["framing"]


def test_offloads_in_the_way(monkeypatch: pytest.MonkeyPatch, veth: End) -> None:
    monkeypatch.setattr(features, "receive_offloads", lambda _: {"rx-gro-hw": True})
    assert examine(veth.ifname).remedy["receive offloads"] == (
        f"ethtool -K {veth.ifname} rx-gro-hw off"
    )
    monkeypatch.setattr(features, "receive_offloads", lambda _: {"rx-gro-hw": False})
    assert "at TC" in examine(veth.ifname).remedy["receive offloads"]


@pytest.mark.parametrize(("offloads", "status"), [({}, "note"), ({"rx-lro": True}, "ok")])
def test_a_network_card_that_native_xdp_interrupts(
    monkeypatch: pytest.MonkeyPatch, veth: End, offloads: dict[str, bool], status: str
) -> None:
    monkeypatch.setattr(ingress, "_virtual_kind", lambda _: "")
    monkeypatch.setattr(features, "driver", lambda _: "ixgbe")
    monkeypatch.setattr(features, "receive_offloads", lambda _: offloads)
    report = examine(veth.ifname)
    assert report.status["XDP interrupts"] == status
    assert "ixgbe may make its rings anew" in report.detail["XDP interrupts"]
    if status == "note":
        assert report.detail["ingress auto"] == "native XDP: ixgbe runs XDP itself"
        assert "--ingress tc" in report.remedy["XDP interrupts"]
    else:
        assert report.detail["ingress auto"].startswith("TC: rx-lro on")
