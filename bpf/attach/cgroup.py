"""Attaching programs to a folder of cgroup2: they run for the processes of that folder and below.

Attachments are links, which end with the process that holds them, also by `kill -9`. Other people's
programs are never replaced; an exclusive one keeps ours out, and the error names it.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from bpf.abi import AttachType
from bpf.attach.hook_program import described
from bpf.errors import KernelError, ProbedeckError
from bpf.links import cgroup_query, link_create
from bpf.syscall import PRIVILEGES, opened

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
