"""Checks of privileges, kernel settings and the compiler."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bpf import features, requirements
from bpf.abi import ProgType
from bpf.compiler import Compiler, client
from bpf.compiler.store import BUNDLED
from bpf.errors import ProbedeckError
from bpf.features import Capability
from bpf.packages import install
from bpf.programs import grace
from bpf.quantities import duration
from bpf.requirements import HostCheck, Status, fatal, missing, note, ok

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
    """Check the requirements of every run, and privileges that it can do without."""
    yield from requirements.requirements()
    nice = Capability.CAP_SYS_NICE
    if nice in features.capabilities():
        yield ok(nice.name, "held")
    else:
        yield note(nice.name, "not held: a swap waits 10 ms, not 50 us", requirements.get(nice))


def kernel() -> Iterator[HostCheck]:
    """Check the settings of the kernel."""
    system = os.uname()
    yield ok("kernel", f"{system.release} {system.machine}")
    is_mounted = " bpf " in Path("/proc/mounts").read_text(encoding="utf-8", errors="replace")
    yield ok("bpffs", "mounted" if is_mounted else "not mounted, and not needed: nothing is pinned")
    if Path("/sys/kernel/btf/vmlinux").exists():
        yield ok("BTF", "/sys/kernel/btf/vmlinux")
    else:
        remedy = "a kernel with CONFIG_DEBUG_INFO_BTF has it"
        yield note("BTF", "none; packet probes do without", remedy)
    yield _jit()
    yield _lockdown()
    if grace.is_realtime():
        yield note("PREEMPT_RT", "yes: a swap waits 10 ms, not 50 us")
    else:
        yield ok("PREEMPT_RT", "no")
    yield _unprivileged()


def compiler() -> Iterator[HostCheck]:
    """Check the stored programs, the headers and the compile helper: compile a small program.

    With stored programs, only sources of the user and filters need a compiler. If this process can
    load no map, which compiling does, only import bcc.
    """
    stored = len(os.listdir(BUNDLED)) if BUNDLED.is_dir() else 0
    lacks: Callable[..., HostCheck] = missing if stored else fatal
    if stored:
        yield ok("stored programs", f"{stored}: built-in probes start without a compiler")
    else:
        yield note("stored programs", "none: the first start of each built-in probe compiles")
    if UAPI_HEADER.exists():
        yield ok("UAPI headers", str(UAPI_HEADER))
    else:
        yield lacks("UAPI headers", f"no {UAPI_HEADER}", install("headers"))
    name = "bcc and LLVM"
    remedy = install("bcc", "headers")
    if why := client.missing():
        yield lacks(name, f"{why}: no new or edited source compiles", remedy)
        return
    started = time.perf_counter()
    try:
        if requirements.try_bpf().status is Status.OK:
            with Compiler(stores=()) as helper:
                helper.compile(_TRIAL, ProgType.XDP, name="trial.c").close()
                unconfined = helper.unconfined()
        else:
            subprocess.run(
                [client.SYSTEM_PYTHON, "-I", "-c", "import bcc"], capture_output=True, check=True
            )
            yield note(name, "installed; compiling needs the privileges above")
            return
    except ProbedeckError as error:
        yield lacks(name, error.message, error.hint or remedy)
        return
    except (OSError, subprocess.CalledProcessError) as error:
        yield lacks(name, f"the compile helper does not start: {error}", remedy)
        return
    seconds = time.perf_counter() - started
    yield ok(name, f"a trial compiles, {duration(seconds)} with the helper's start")
    if unconfined:
        detail = f"none ({unconfined}): the API takes no sources by TCP"
        remedy = "allow mounts in the container, or use a kernel with Landlock (5.13)"
        yield note("confinement", detail, remedy)
    else:
        yield ok("confinement", "sees no files but libraries and headers")


def _jit() -> HostCheck:
    try:
        is_on = features.jit_works()
    except OSError:
        return note("JIT", "not tried: no program can be loaded")
    if is_on:
        return ok("JIT", "on")
    detail = "off: programs are interpreted, several times slower"
    return note("JIT", detail, "sysctl -w net.core.bpf_jit_enable=1")


def _lockdown() -> HostCheck:
    """`[none] integrity confidentiality`, with the mode that is on in brackets."""
    try:
        modes = LOCKDOWN.read_text(encoding="ascii")
    except OSError:
        return ok("lockdown", "none seen")
    mode = modes.partition("[")[2].partition("]")[0]
    if mode == "confidentiality":
        detail = "confidentiality: packets can be watched, kernel memory can't"
        return note("lockdown", detail, "boot with lockdown=integrity where a probe needs more")
    return ok("lockdown", mode)


def _unprivileged() -> HostCheck:
    name = "unprivileged bpf"
    try:
        value = int(Path("/proc/sys/kernel/unprivileged_bpf_disabled").read_text(encoding="ascii"))
    except OSError:
        return ok(name, "this kernel does not say")
    if value == 0:
        remedy = "sysctl -w kernel.unprivileged_bpf_disabled=2; nothing here needs it"
        return note(name, "open to every user", remedy)
    return ok(name, f"closed (kernel.unprivileged_bpf_disabled = {value})")
