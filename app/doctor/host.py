"""Privileges, the kernel's settings and the compiler."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from app.doctor.check import Check, Status
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


def privileges() -> Iterator[Check]:
    """The capabilities, and whether bpf(2) is open with them."""
    held = features.capabilities()
    is_all_powerful = Capability.CAP_SYS_ADMIN in held
    if Capability.CAP_BPF in features.known_capabilities():
        for capability in (Capability.CAP_BPF, Capability.CAP_PERFMON):
            if is_all_powerful and capability not in held:
                yield Check(capability.name, Status.OK, "CAP_SYS_ADMIN stands in for it")
            else:
                yield _capability(capability, held)
    else:
        yield _capability(Capability.CAP_SYS_ADMIN, held)
    yield _capability(Capability.CAP_NET_ADMIN, held)
    if Capability.CAP_SYS_NICE in held:
        yield _capability(Capability.CAP_SYS_NICE, held)
    else:
        yield Check(
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


def kernel() -> Iterator[Check]:
    """The kernel's settings, as far as they matter to monitoring."""
    system = os.uname()
    yield Check("kernel", Status.OK, f"{system.release} {system.machine}")
    is_mounted = " bpf " in Path("/proc/mounts").read_text(encoding="utf-8", errors="replace")
    yield Check(
        "bpffs",
        Status.OK,
        "mounted" if is_mounted else "not mounted, and not needed: nothing is pinned",
    )
    if Path("/sys/kernel/btf/vmlinux").exists():
        yield Check("BTF", Status.OK, "/sys/kernel/btf/vmlinux")
    else:
        yield Check(
            "BTF",
            Status.NOTE,
            "none; packet probes do without",
            "a kernel with CONFIG_DEBUG_INFO_BTF has it",
        )
    yield _jit()
    yield _lockdown()
    if grace.is_realtime():
        yield Check("PREEMPT_RT", Status.NOTE, "yes: a swap waits 10 ms, not 50 us")
    else:
        yield Check("PREEMPT_RT", Status.OK, "no")
    yield _unprivileged()


def compiler() -> Iterator[Check]:
    """The headers and the compile helper, by compiling a small program."""
    if UAPI_HEADER.exists():
        yield Check("UAPI headers", Status.OK, str(UAPI_HEADER))
    else:
        yield Check("UAPI headers", Status.FATAL, f"no {UAPI_HEADER}", install("headers"))
    yield from _compile()


def _compile() -> Iterator[Check]:
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
            yield Check(name, Status.NOTE, "installed; compiling needs the privileges above")
            return
    except ProbedeckError as error:
        yield Check(name, Status.FATAL, error.message, error.hint or remedy)
        return
    except (OSError, subprocess.CalledProcessError) as error:
        yield Check(name, Status.FATAL, f"the compile helper does not start: {error}", remedy)
        return
    seconds = time.perf_counter() - started
    yield Check(name, Status.OK, f"a trial compiles, {seconds:.2f} s with the helper's start")
    if unconfined:
        yield Check(
            "confinement",
            Status.NOTE,
            f"none ({unconfined}): the API takes no sources by TCP",
            "allow mounts in the container, or use a kernel with Landlock (5.13)",
        )
    else:
        yield Check("confinement", Status.OK, "sees no files but libraries and headers")


def _capability(capability: Capability, held: frozenset[Capability]) -> Check:
    if capability in held:
        return Check(capability.name, Status.OK, "held")
    return Check(capability.name, Status.FATAL, "not held", _get(capability))


def _get(capability: Capability) -> str:
    if os.geteuid():
        return f"run with sudo, or with AmbientCapabilities={capability.name} in a unit"
    return f"root is without it: have the container or unit keep {capability.name}"


def _bpf() -> Check:
    name = "bpf(2)"
    try:
        features.try_bpf()
    except OSError as error:
        if error.errno == errno.ENOSYS:
            return Check(
                name, Status.FATAL, "this kernel has none", "a kernel with CONFIG_BPF_SYSCALL has"
            )
        if Capability.CAP_BPF not in features.capabilities():
            return Check(name, Status.FATAL, "not allowed", "get the capabilities above")
        return Check(
            name,
            Status.FATAL,
            f"refused ({os.strerror(error.errno or 0)}) in spite of the capabilities",
            "leave the container's user namespace or seccomp profile; ulimit -l unlimited",
        )
    return Check(name, Status.OK, "works")


def _jit() -> Check:
    try:
        is_on = features.jit_works()
    except OSError:
        return Check("JIT", Status.NOTE, "not tried: no program can be loaded")
    if is_on:
        return Check("JIT", Status.OK, "on")
    return Check(
        "JIT",
        Status.NOTE,
        "off: programs are interpreted, several times slower",
        "sysctl -w net.core.bpf_jit_enable=1",
    )


def _lockdown() -> Check:
    """`[none] integrity confidentiality`, with the mode that is on in brackets."""
    try:
        modes = LOCKDOWN.read_text(encoding="ascii")
    except OSError:
        return Check("lockdown", Status.OK, "none seen")
    mode = modes.partition("[")[2].partition("]")[0]
    if mode == "confidentiality":
        return Check(
            "lockdown",
            Status.NOTE,
            "confidentiality: packets can be watched, kernel memory can't",
            "boot with lockdown=integrity where a probe needs more",
        )
    return Check("lockdown", Status.OK, mode)


def _unprivileged() -> Check:
    name = "unprivileged bpf"
    try:
        value = int(Path("/proc/sys/kernel/unprivileged_bpf_disabled").read_text(encoding="ascii"))
    except OSError:
        return Check(name, Status.OK, "this kernel does not say")
    if value == 0:
        return Check(
            name,
            Status.NOTE,
            "open to every user",
            "sysctl -w kernel.unprivileged_bpf_disabled=2; nothing here needs it",
        )
    return Check(name, Status.OK, f"closed (kernel.unprivileged_bpf_disabled = {value})")
