"""Checks of the process and of the kernel that every run must pass.

Runs refuse to start without it, and the doctor lists it.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Literal

from bpf import features
from bpf.errors import MORE_FILES, KernelError
from bpf.features import Capability
from bpf.syscall import PRIVILEGES


class Status(StrEnum):
    """Result of a check, from best to worst."""

    OK = "ok"
    NOTE = "note"
    """Not the best, or unknown; monitoring works."""
    MISSING = "missing"
    """A part of monitoring does not work."""
    FATAL = "fatal"
    """Monitoring does not work."""


@dataclass(frozen=True, slots=True)
class HostCheck:
    """The result of a check."""

    status: Status
    name: str
    detail: str
    remedy: str = ""
    """The remedy in one line, or empty."""


ok = partial(HostCheck, Status.OK)
note = partial(HostCheck, Status.NOTE)
missing = partial(HostCheck, Status.MISSING)
fatal = partial(HostCheck, Status.FATAL)


NOT_ALLOWED = (errno.EPERM, errno.EACCES)
_LEAST_FILES = 256
"""A run without outputs and applications holds about 120. A console with outputs, a trace and five
applications holds about 470.
"""


@dataclass(frozen=True, slots=True)
class OptionalCapability:
    """A capability that a job of a run can do without.

    `when` is the case in which a job loses something without it. Empty: always.
    """

    capability: Capability
    job: str
    """`flow` and the names of other probes, `actions`, `namespaces` or `budget`."""
    without: str
    """The loss without it."""
    when: str = ""


OPTIONAL = (
    OptionalCapability(
        Capability.CAP_SYS_NICE, "flow", "a swap takes 10 ms instead of 0.1 ms"
    ),
    OptionalCapability(
        Capability.CAP_NET_RAW, "path",
        "no echo requests look for hidden hops and the MTU, and own flows are of UDP only",
    ),
    OptionalCapability(
        Capability.CAP_SYS_ADMIN, "sockets", "flows of other network namespaces have no owner",
        when="other namespaces",
    ),
    OptionalCapability(
        Capability.CAP_SYS_PTRACE, "sockets",
        "a connection that another user's process just accepted may have its listener as the owner",
    ),
    OptionalCapability(
        Capability.CAP_SYS_PTRACE, "actions", "actions may cut connections of ssh"
    ),
    OptionalCapability(
        Capability.CAP_SYS_ADMIN, "namespaces", "other network namespaces are not watched"
    ),
    OptionalCapability(
        Capability.CAP_SYS_PTRACE, "namespaces",
        "network namespaces without a name of ip-netns are not watched",
    ),
    OptionalCapability(
        Capability.CAP_SYS_ADMIN, "budget",
        "only user space has a budget, because the kernel keeps no times of programs",
    ),
)  # fmt: skip
"""Capabilities beyond those that every run requires."""


def losses(job: str, when: str = "") -> str:
    """Return the losses of a job by capabilities that this process lacks; empty without loss.

    `when` selects the losses of a case.
    """
    held = features.capabilities()
    return "; ".join(
        f"without {each.capability.name} {each.without}"
        for each in OPTIONAL
        if (each.job, each.when) == (job, when) and each.capability not in held
    )


def requirements() -> Iterator[HostCheck]:
    """Yield a check for each requirement. A run cannot start if one is fatal."""
    held = features.capabilities()
    if Capability.CAP_BPF in features.known_capabilities():
        for capability in (Capability.CAP_BPF, Capability.CAP_PERFMON):
            if Capability.CAP_SYS_ADMIN in held and capability not in held:
                yield ok(capability.name, "CAP_SYS_ADMIN stands in for it")
            else:
                yield _capability(capability, held)
    else:
        yield _capability(Capability.CAP_SYS_ADMIN, held)
    yield _capability(Capability.CAP_NET_ADMIN, held)
    yield try_bpf()
    yield _open_files()
    unwatched = "flows are not watched without"
    yield trial("ring buffer", features.try_ring_buffer, unwatched, "5.8", fatal)
    yield trial("mmap-able arrays", features.try_mmapable_array, unwatched, "5.5", fatal)


def require() -> None:
    """Raise KernelError, with the remedy, if a run cannot start."""
    lacking = [check for check in requirements() if check.status is Status.FATAL]
    if lacking:
        words = ", ".join(f"{check.name}: {check.detail}" for check in lacking)
        hint = PRIVILEGES if "CAP_" in words and os.geteuid() else lacking[0].remedy
        raise KernelError(f"monitoring can't run here: {words}", hint=hint)


def try_bpf() -> HostCheck:
    """Try bpf(2) itself."""
    name = "bpf(2)"
    try:
        features.try_bpf()
    except OSError as error:
        if error.errno == errno.ENOSYS:
            return fatal(name, "this kernel has none", "a kernel with CONFIG_BPF_SYSCALL has")
        if Capability.CAP_BPF not in features.capabilities():
            return fatal(name, "not allowed", "get the capabilities above")
        detail = f"refused ({os.strerror(error.errno or 0)}) in spite of the capabilities"
        remedy = "leave the container's user namespace or seccomp profile; ulimit -l unlimited"
        return fatal(name, detail, remedy)
    return ok(name, "works")


def trial(
    name: str, trial: Callable[[], None], without: str, release: str,
    result: Callable[..., HostCheck] = note,
) -> HostCheck:  # fmt: skip
    """Try a feature. `without` and `result` describe kernels older than `release`."""
    try:
        trial()
    except OSError as error:
        if error.errno in NOT_ALLOWED:
            return note(name, "not tried: not allowed")
        return result(
            name, f"{os.strerror(error.errno or 0)}: {without}", f"kernel {release} has it"
        )
    return ok(name, "works")


def get(capability: Capability) -> str:
    """Return how a process gets a capability."""
    if os.geteuid():
        return f"run with sudo, or with AmbientCapabilities={capability.name} in a unit"
    return f"root is without it: have the container or unit keep {capability.name}"


def _capability(capability: Capability, held: frozenset[Capability]) -> HostCheck:
    if capability in held:
        return ok(capability.name, "held")
    return fatal(capability.name, "not held", get(capability))


def _open_files() -> HostCheck:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < _LEAST_FILES:
        return fatal("open files", f"{soft} at most, and a run needs {_LEAST_FILES}", MORE_FILES)
    return ok("open files", "no limit" if soft < 0 else f"{soft} at most")


Need = Literal["bcc", "clang", "headers", "libbpf"]

_COMMANDS: dict[str, tuple[str, dict[Need, str]]] = {
    "apt-get": (
        "apt install",
        {
            "bcc": "python3-bpfcc",
            "headers": "linux-libc-dev",
            "clang": "clang libbpf-dev",
            "libbpf": "libbpf1",
        },
    ),
    "dnf": (
        "dnf install",
        {
            "bcc": "python3-bcc",
            "headers": "kernel-headers",
            "clang": "clang libbpf-devel",
            "libbpf": "libbpf",
        },
    ),
    "pacman": (
        "pacman -S",
        {
            "bcc": "python-bcc",
            "headers": "linux-api-headers",
            "clang": "clang libbpf",
            "libbpf": "libbpf",
        },
    ),
}


def install(*needs: Need) -> str:
    """Return the command that installs `needs`; on an unknown distribution, each one's command."""
    import shutil  # a run that compiles nothing needs none of its archives

    known = [name for name in _COMMANDS if shutil.which(name)][:1] or list(_COMMANDS)
    commands = (_COMMANDS[name] for name in known)
    return ", or ".join(
        f"{command} {' '.join(names[need] for need in needs)}" for command, names in commands
    )
