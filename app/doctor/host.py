"""Privileges, the kernel's settings and the compiler."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from app.doctor.check import HostCheck, Status
from bpf import features
from bpf.abi import ProgType
from bpf.compiler import Compiler, client
from bpf.compiler.packages import install
from bpf.errors import ProbedeckError
from bpf.features import Capability
from bpf.programs import grace

UAPI_HEADER = Path("/usr/include/linux/bpf.h")
LOCKDOWN = Path("/sys/kernel/security/lockdown")
_TRIAL = """
#include <uapi/linux/bpf.h>
BPF_HASH(seen, u32, u64);
int trial(struct xdp_md *ctx)
{
    seen.increment(0);
    return XDP_PASS;
}
"""


def privileges() -> Iterator[HostCheck]:
    """The capabilities, and whether bpf(2) is open with them."""
    held = features.capabilities()
    is_all_powerful = Capability.CAP_SYS_ADMIN in held
    if Capability.CAP_BPF in features.known_capabilities():
        for capability in (Capability.CAP_BPF, Capability.CAP_PERFMON):
            if is_all_powerful and capability not in held:
                yield HostCheck(capability.name, Status.OK, "CAP_SYS_ADMIN stands in for it")
            else:
                yield _capability(capability, held)
    else:
        yield _capability(Capability.CAP_SYS_ADMIN, held)
    yield _capability(Capability.CAP_NET_ADMIN, held)
    if Capability.CAP_SYS_NICE in held:
        yield _capability(Capability.CAP_SYS_NICE, held)
    else:
        yield HostCheck(
            Capability.CAP_SYS_NICE.name,
            Status.NOTE,
            "not held: a swap waits 10 ms, not 50 us",
            _get(Capability.CAP_SYS_NICE),
        )
    yield _bpf()


def can_load() -> bool:
    """Whether bpf(2) is open to this process."""
    try:
        features.try_bpf()
    except OSError:
        return False
    return True


def kernel() -> Iterator[HostCheck]:
    """The kernel's settings, as far as they matter to monitoring."""
    system = os.uname()
    yield HostCheck("kernel", Status.OK, f"{system.release} {system.machine}")
    is_mounted = " bpf " in Path("/proc/mounts").read_text(encoding="utf-8", errors="replace")
    yield HostCheck(
        "bpffs",
        Status.OK,
        "mounted" if is_mounted else "not mounted, and not needed: nothing is pinned",
    )
    if Path("/sys/kernel/btf/vmlinux").exists():
        yield HostCheck("BTF", Status.OK, "/sys/kernel/btf/vmlinux")
    else:
        yield HostCheck(
            "BTF",
            Status.NOTE,
            "none; packet probes do without",
            "a kernel with CONFIG_DEBUG_INFO_BTF has it",
        )
    yield _jit()
    yield _lockdown()
    if grace.is_realtime():
        yield HostCheck("PREEMPT_RT", Status.NOTE, "yes: a swap waits 10 ms, not 50 us")
    else:
        yield HostCheck("PREEMPT_RT", Status.OK, "no")
    yield _unprivileged()


def compiler() -> Iterator[HostCheck]:
    """The headers and the compile helper, by compiling a small program."""
    if UAPI_HEADER.exists():
        yield HostCheck("UAPI headers", Status.OK, str(UAPI_HEADER))
    else:
        yield HostCheck("UAPI headers", Status.FATAL, f"no {UAPI_HEADER}", install("headers"))
    yield from _compile()


def _compile() -> Iterator[HostCheck]:
    """Compile a trial; if this process can load no map, which compiling does, only import bcc."""
    name = "bcc and LLVM"
    remedy = install("bcc", "headers")
    started = time.perf_counter()
    try:
        if can_load():
            with Compiler() as helper:
                helper.compile(_TRIAL, ProgType.XDP, name="trial.c").close()
                unconfined = helper.unconfined()
        else:
            subprocess.run(
                [client.SYSTEM_PYTHON, "-I", "-c", "import bcc"], capture_output=True, check=True
            )
            yield HostCheck(name, Status.NOTE, "installed; compiling needs the privileges above")
            return
    except ProbedeckError as error:
        yield HostCheck(name, Status.FATAL, error.message, error.hint or remedy)
        return
    except (OSError, subprocess.CalledProcessError) as error:
        yield HostCheck(name, Status.FATAL, f"the compile helper does not start: {error}", remedy)
        return
    seconds = time.perf_counter() - started
    yield HostCheck(name, Status.OK, f"a trial compiles, {seconds:.2f} s with the helper's start")
    if unconfined:
        yield HostCheck(
            "confinement",
            Status.NOTE,
            f"none ({unconfined}): the API takes no sources by TCP",
            "allow mounts in the container, or use a kernel with Landlock (5.13)",
        )
    else:
        yield HostCheck("confinement", Status.OK, "sees no files but libraries and headers")


def _capability(capability: Capability, held: frozenset[Capability]) -> HostCheck:
    if capability in held:
        return HostCheck(capability.name, Status.OK, "held")
    return HostCheck(capability.name, Status.FATAL, "not held", _get(capability))


def _get(capability: Capability) -> str:
    if os.geteuid():
        return f"run with sudo, or with AmbientCapabilities={capability.name} in a unit"
    return f"root is without it: have the container or unit keep {capability.name}"


def _bpf() -> HostCheck:
    name = "bpf(2)"
    try:
        features.try_bpf()
    except OSError as error:
        if error.errno == errno.ENOSYS:
            return HostCheck(
                name,
                Status.FATAL,
                "this kernel has none",
                "a kernel with CONFIG_BPF_SYSCALL has",
            )
        if Capability.CAP_BPF not in features.capabilities():
            return HostCheck(name, Status.FATAL, "not allowed", "get the capabilities above")
        return HostCheck(
            name,
            Status.FATAL,
            f"refused ({os.strerror(error.errno or 0)}) in spite of the capabilities",
            "leave the container's user namespace or seccomp profile; ulimit -l unlimited",
        )
    return HostCheck(name, Status.OK, "works")


def _jit() -> HostCheck:
    try:
        is_on = features.jit_works()
    except OSError:
        return HostCheck("JIT", Status.NOTE, "not tried: no program can be loaded")
    if is_on:
        return HostCheck("JIT", Status.OK, "on")
    return HostCheck(
        "JIT",
        Status.NOTE,
        "off: programs are interpreted, several times slower",
        "sysctl -w net.core.bpf_jit_enable=1",
    )


def _lockdown() -> HostCheck:
    """`[none] integrity confidentiality`, with the mode that is on in brackets."""
    try:
        modes = LOCKDOWN.read_text(encoding="ascii")
    except OSError:
        return HostCheck("lockdown", Status.OK, "none seen")
    mode = modes.partition("[")[2].partition("]")[0]
    if mode == "confidentiality":
        return HostCheck(
            "lockdown",
            Status.NOTE,
            "confidentiality: packets can be watched, kernel memory can't",
            "boot with lockdown=integrity where a probe needs more",
        )
    return HostCheck("lockdown", Status.OK, mode)


def _unprivileged() -> HostCheck:
    name = "unprivileged bpf"
    try:
        value = int(Path("/proc/sys/kernel/unprivileged_bpf_disabled").read_text(encoding="ascii"))
    except OSError:
        return HostCheck(name, Status.OK, "this kernel does not say")
    if value == 0:
        return HostCheck(
            name,
            Status.NOTE,
            "open to every user",
            "sysctl -w kernel.unprivileged_bpf_disabled=2; nothing here needs it",
        )
    return HostCheck(name, Status.OK, f"closed (kernel.unprivileged_bpf_disabled = {value})")
