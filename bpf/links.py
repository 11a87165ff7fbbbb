"""Attaching programs by link: it ends with its last descriptor, also by `kill -9`.

Every function raises OSError, with the command's name in it, when the kernel refuses.
"""

from __future__ import annotations

import ctypes as ct

from bpf.abi import (
    AttachType,
    BpfCommand,
    IterCreate,
    LinkCreate,
    LinkUpdate,
    ProgQuery,
    RawTracepointOpen,
)
from bpf.syscall import call

_ALLOW_MULTI = 1 << 1
"""BPF_F_ALLOW_MULTI."""
_MAX_PROGRAMS = 64
"""BPF_MPROG_MAX and BPF_CGROUP_MAX_PROGS of the kernel."""


def link_create(prog_fd: int, target: int, attach_type: AttachType, flags: int = 0) -> int:
    """Attach a program; returns the link's descriptor.

    `target` is the index of an interface, the descriptor of a cgroup2 folder, or 0 for an iterator.
    """
    attr = LinkCreate(prog_fd=prog_fd, target=target, attach_type=attach_type, flags=flags)
    return call(BpfCommand.LINK_CREATE, attr)


def link_update(link_fd: int, prog_fd: int) -> None:
    """Replace a link's program: one atomic write. The kernel can't for raw tracepoints."""
    call(BpfCommand.LINK_UPDATE, LinkUpdate(link_fd=link_fd, new_prog_fd=prog_fd))


def raw_tracepoint_open(name: str, prog_fd: int) -> int:
    """Attach a program to a tracepoint, such as `kfree_skb`; returns the link's descriptor.

    Raises FileNotFoundError for an unknown tracepoint.
    """
    text = ct.create_string_buffer(name.encode())
    attr = RawTracepointOpen(name=ct.addressof(text), prog_fd=prog_fd)
    return call(BpfCommand.RAW_TRACEPOINT_OPEN, attr)


def iterator_open(link_fd: int) -> int:
    """Begin a pass of an iterator; returns a descriptor whose reads return the program's output."""
    return call(BpfCommand.ITER_CREATE, IterCreate(link_fd=link_fd))


def prog_query(target: int, attach_type: AttachType) -> list[int]:
    """Return the ids of an interface's TCX programs, in the order in which they run."""
    return _query(target, attach_type)[0]


def cgroup_query(folder_fd: int, attach_type: AttachType) -> tuple[list[int], bool]:
    """Return the ids of the programs of a cgroup2 folder, and whether they let others in.

    Programs of folders above are not among them.
    """
    ids, flags = _query(folder_fd, attach_type)
    return ids, not ids or bool(flags & _ALLOW_MULTI)


def _query(target: int, attach_type: AttachType) -> tuple[list[int], int]:
    ids = (ct.c_uint32 * _MAX_PROGRAMS)()
    attr = ProgQuery(
        target=target,
        attach_type=attach_type,
        prog_ids=ct.addressof(ids),
        count=_MAX_PROGRAMS,
    )
    call(BpfCommand.PROG_QUERY, attr)
    return list(ids[: attr.count]), attr.attach_flags
