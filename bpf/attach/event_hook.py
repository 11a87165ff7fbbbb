"""Places of the kernel outside of interfaces where programs run: tracepoints and cgroups.

A program there observes events of the whole host, or of the processes of a cgroup. Attachments are
links: they end with the process that holds them, also by `kill -9`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bpf.abi import AttachType, ProgType
from bpf.attach.cgroup import attach_cgroup, cgroup2
from bpf.errors import KernelError, UsageError
from bpf.links import raw_tracepoint_open
from bpf.syscall import PRIVILEGES

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
