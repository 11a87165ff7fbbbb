"""Network interfaces of this namespace, by ioctl (netdevice(7)), and the places where programs run.

A program runs at a hook of an interface, or outside of interfaces: one of a tracepoint or a cgroup
observes events of the whole host, or of the processes of that folder of cgroups."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path

from bpf.abi import AttachType, ProgType
from bpf.errors import KernelError, ProbedeckError, UsageError, did_you_mean, printable
from bpf.links import cgroup_query, link_create, raw_tracepoint_open
from bpf.syscall import PRIVILEGES, opened, prog_fd_by_id, prog_info

_SIOCGIFFLAGS = 0x8913
_SIOCGIFHWADDR = 0x8927
_IFF_UP = 0x1
LOOPBACK = 772
"""ARPHRD_LOOPBACK of linux/if_arp.h."""
WITH_ETHERNET_HEADER = frozenset((1, LOOPBACK))
"""Also ARPHRD_ETHER."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Interface:
    """A network interface. Its name, index and state change as `HookWatch` follows it."""

    name: str
    index: int
    ethernet: bool
    """Whether its frames begin with an Ethernet header; False for tun, WireGuard, PPP."""
    up: bool | None = True
    """As last followed; None: it is away, and its probes wait for its return."""
    former: set[str] = field(default_factory=set)
    """Names before it was renamed."""

    def __post_init__(self) -> None:
        self.name = printable(self.name)

    @property
    def indices(self) -> tuple[int, ...]:
        """Its index, or the indices of the interfaces of a group."""
        return (self.index,)

    def is_up(self) -> bool:
        """Whether the interface exists and is up."""
        try:
            flags: int = struct.unpack_from("H", _ioctl(_SIOCGIFFLAGS, self.name_now()), 16)[0]
        except OSError:
            return False
        return bool(flags & _IFF_UP)

    def packets(self) -> tuple[int, int]:
        """Return the packets received and sent so far; zeros if the interface is gone."""
        name = self.name_now()
        # This thread's network namespace may differ from the process's.
        for line in Path("/proc/thread-self/net/dev").read_text(encoding="utf-8").splitlines():
            of, _, counts = line.partition(":")
            if of.strip() == name:
                fields = counts.split()
                return int(fields[1]), int(fields[9])
        return 0, 0

    def name_now(self) -> str:
        """Ask the kernel for its present name; empty if the interface is gone."""
        try:
            return socket.if_indextoname(self.index)
        except OSError:
            return ""


def find(name: str) -> Interface:
    """Return an interface by name. Raises UsageError with the nearest name if it is unknown."""
    try:
        index = socket.if_nametoindex(name)
        hardware = struct.unpack_from("H", _ioctl(_SIOCGIFHWADDR, name), 16)[0]
    except (OSError, ValueError):
        names = [n for _, n in socket.if_nameindex()]
        text = f"no interface {name!r}" if name else "the interface is missing: give its name"
        raise UsageError(text, hint=did_you_mean(name, names)) from None
    return Interface(name, index, hardware in WITH_ETHERNET_HEADER)


def _ioctl(request: int, name: str) -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return fcntl.ioctl(sock, request, struct.pack("16s24x", name.encode()[:15]))


@dataclass(frozen=True, slots=True)
class HookProgram:
    """A program or filter on a hook."""

    kind: str
    """`XDP`, `TCX`, `clsact`, `cgroup`, or the kind of a filter without a program: `u32`."""
    id: int
    """The program's id, 0 for a filter without a program."""
    name: str
    """The program's name; empty if the kernel does not tell."""

    def __str__(self) -> str:
        """How users read it: `TCX program 'cil_from_netdev' id 12`."""
        if not self.id:
            return f"{self.kind} filter {self.name}"
        return f"{self.kind} program {self.name or '(no name)'!r} id {self.id}"


def described(kind: str, prog_id: int) -> HookProgram:
    """Return a program by its id; without its name if the kernel does not tell."""
    try:
        fd = prog_fd_by_id(prog_id)
    except OSError:  # gone meanwhile, or no CAP_SYS_ADMIN
        return HookProgram(kind, prog_id, "")
    with opened(fd):
        return HookProgram(kind, prog_id, prog_info(fd).name)


MOUNTS = Path("/proc/self/mountinfo")


def cgroup2() -> Path:
    """Return the folder where cgroup2 is mounted, also beside cgroup v1.

    In a container that is the container's own folder. Raises KernelError without such a mount.
    """
    mounts = []
    # Fields of a line: proc_pid_mountinfo(5).
    for line in MOUNTS.read_text(encoding="utf-8").splitlines():
        fields, _, filesystem = line.partition(" - ")
        if filesystem.split()[0] == "cgroup2":
            _, _, _, root, written, *_ = fields.split()
            point = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), written)
            # Another mount can hide this one.
            if Path(point, "cgroup.controllers").exists():
                mounts.append((root != "/", point))
    if not mounts:
        raise KernelError("no cgroup2 is mounted here", hint="mount it, or boot with it")
    return Path(min(mounts)[1])


def attach_cgroup(folder: Path, prog_fd: int, attach_type: AttachType) -> int:
    """Attach a program to a folder of cgroup2; returns the link's descriptor.

    Raises ProbedeckError if another program keeps it out, KernelError if the kernel refuses.
    """
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise KernelError(f"the cgroup {folder}: {error.strerror}") from None
    with opened(fd):
        try:
            return link_create(prog_fd, fd, attach_type)
        except OSError as error:
            what = f"{attach_type.name.lower()} on the cgroup {folder}"
            if error.errno == errno.EPERM:
                if way := in_the_way(folder, attach_type):
                    raise ProbedeckError(
                        f"{what}: {way}", hint="end it, or attach below it"
                    ) from None
                raise KernelError(f"not allowed to attach {what}", hint=PRIVILEGES) from None
            reason = (
                "this is no folder of cgroup2" if error.errno == errno.EBADF else error.strerror
            )
            raise KernelError(f"{what}: {reason}") from None


def in_the_way(folder: Path, attach_type: AttachType) -> str:
    """Say which program of a folder, or of one above, lets no other in; empty if none does.

    An exclusive program keeps others out of the folders below too, an overridable one does not.
    """
    for at in (folder, *folder.parents):
        try:
            fd = os.open(at, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            with opened(fd):
                ids, shares = cgroup_query(fd, attach_type)
        except OSError:
            return ""  # above cgroup2, or no right to ask
        if not shares:
            return f"{described('cgroup', ids[0])} of {at} lets no other in"
    return ""


CGROUP_EVENTS: dict[str, tuple[ProgType, AttachType]] = {
    "sock_create": (ProgType.CGROUP_SOCK, AttachType.CGROUP_INET_SOCK_CREATE),
    "sock_release": (ProgType.CGROUP_SOCK, AttachType.CGROUP_INET_SOCK_RELEASE),
    "post_bind4": (ProgType.CGROUP_SOCK, AttachType.CGROUP_INET4_POST_BIND),
    "post_bind6": (ProgType.CGROUP_SOCK, AttachType.CGROUP_INET6_POST_BIND),
    "bind4": (ProgType.CGROUP_SOCK_ADDR, AttachType.CGROUP_INET4_BIND),
    "bind6": (ProgType.CGROUP_SOCK_ADDR, AttachType.CGROUP_INET6_BIND),
    "connect4": (ProgType.CGROUP_SOCK_ADDR, AttachType.CGROUP_INET4_CONNECT),
    "connect6": (ProgType.CGROUP_SOCK_ADDR, AttachType.CGROUP_INET6_CONNECT),
    "sendmsg4": (ProgType.CGROUP_SOCK_ADDR, AttachType.CGROUP_UDP4_SENDMSG),
    "sendmsg6": (ProgType.CGROUP_SOCK_ADDR, AttachType.CGROUP_UDP6_SENDMSG),
    "recvmsg4": (ProgType.CGROUP_SOCK_ADDR, AttachType.CGROUP_UDP4_RECVMSG),
    "recvmsg6": (ProgType.CGROUP_SOCK_ADDR, AttachType.CGROUP_UDP6_RECVMSG),
    "sock_ops": (ProgType.SOCK_OPS, AttachType.CGROUP_SOCK_OPS),
}
"""Attach types of cgroups by their names in configurations."""


@dataclass(frozen=True, slots=True)
class EventHook:
    """A tracepoint, or an event of the processes of a cgroup."""

    event: str
    """Name of the tracepoint, or one of CGROUP_EVENTS."""
    folder: str | None = None
    """None: a tracepoint. Path below the cgroup2 mount, or absolute; empty: every process."""

    @property
    def value(self) -> str:
        """Name in tables and messages: `raw_tp` or `cgroup sock_create`."""
        return "raw_tp" if self.folder is None else f"cgroup {self.event}"

    @property
    def place(self) -> str:
        """The tracepoint, or the cgroup's path: in place of an interface."""
        return self.event if self.folder is None else self.folder or "/"

    @property
    def macro(self) -> str:
        """The macro that tells a probe's source which hook it is for."""
        return "HOOK_RAW_TP" if self.folder is None else f"HOOK_{self.event.upper()}"

    @property
    def prog_type(self) -> ProgType:
        return ProgType.RAW_TRACEPOINT if self.folder is None else CGROUP_EVENTS[self.event][0]

    @property
    def attach_type(self) -> AttachType | None:
        return None if self.folder is None else CGROUP_EVENTS[self.event][1]

    def attach(self, prog_fd: int) -> Callable[[], None]:
        """Attach a program; returns a function that detaches it.

        Raises KernelError, or ProbedeckError if another program keeps it out of the cgroup.
        """
        if self.folder is None:
            link = self._open_tracepoint(prog_fd)
        else:
            _, attach_type = CGROUP_EVENTS[self.event]
            link = attach_cgroup(Path(cgroup2(), self.folder), prog_fd, attach_type)
        return partial(os.close, link)

    def check(self, prog_fd: int) -> None:
        """Attach a program for a moment. Raises UsageError if it does not fit the tracepoint.

        Behind a dispatcher the kernel would not compare the arguments that it reads.
        """
        if self.folder is None:
            os.close(self._open_tracepoint(prog_fd))

    def _open_tracepoint(self, prog_fd: int) -> int:
        try:
            return raw_tracepoint_open(self.event, prog_fd)
        except OSError as error:
            if error.errno == errno.EINVAL:
                raise UsageError(
                    f"the program reads more arguments than tracepoint {self.event} has"
                ) from None
            if error.errno == errno.EPERM:
                text = f"not allowed to attach to tracepoint {self.event}"
                raise KernelError(text, hint=PRIVILEGES) from None
            if error.errno == errno.ENOENT:
                raise KernelError(
                    f"the kernel has no tracepoint {self.event!r}",
                    hint="give its name without the subsystem, such as kfree_skb",
                ) from None
            raise KernelError(f"tracepoint {self.event}: {error.strerror}") from None


class Hook(Enum):
    """Where a program sees packets."""

    XDP = "xdp"
    TC_INGRESS = "tc ingress"
    TC_EGRESS = "tc egress"

    @property
    def prog_type(self) -> ProgType:
        return ProgType.XDP if self is Hook.XDP else ProgType.SCHED_CLS

    @property
    def attach_type(self) -> AttachType | None:
        return None

    @property
    def macro(self) -> str:
        """The macro that tells a probe's source which hook it is for (include/probe.h)."""
        return f"HOOK_{self.name}"


AnyHook = Hook | EventHook
"""A place where programs run: of an interface, or another one."""
