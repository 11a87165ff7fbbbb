"""Checks of the sources that name the owners of flows. A missing source loses only itself."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from bpf.abi import AttachType
from bpf.attach.interface import cgroup2, in_the_way
from bpf.errors import KernelError
from bpf.requirements import HostCheck, missing, note, ok
from bpf.sockets import features
from bpf.sockets.cgroup_paths import CgroupPaths
from bpf.sockets.namespaces import Namespaces

_NOT_ALLOWED = (errno.EPERM, errno.EACCES)
_LOOK_S = 0.1
"""Longest search for namespaces."""


def owner_sources() -> Iterator[HostCheck]:
    """Try each source."""
    yield _questions()
    yield _closing()
    yield _events()
    yield _holders()
    yield _translation()
    yield _namespaces()
    yield _cgroups()


def _questions() -> HostCheck:
    name = "socket questions"
    try:
        tells_cgroups = features.try_questions()
    except OSError as error:
        remedy = "a kernel with CONFIG_INET_DIAG and CONFIG_INET_UDP_DIAG"
        return missing(name, f"{_reason(error)}: flows have no owner", remedy)
    if tells_cgroups:
        return ok(name, "works, with cgroups")
    return note(name, "without cgroups: only processes have units", "kernel 5.8 has them")


def _closing() -> HostCheck:
    name = "closed sockets"
    try:
        everywhere = features.try_closing()
    except OSError as error:
        detail = f"{_reason(error)}: short connections have no owner"
        return missing(name, detail, "a kernel with CONFIG_INET_DIAG and CONFIG_INET_UDP_DIAG")
    if everywhere:
        return ok(name, "works")
    return note(name, "of this network namespace only", "CAP_NET_BROADCAST hears of all")


def _events() -> HostCheck:
    name = "socket events"
    without = "closed sockets have no process"
    try:
        folder = cgroup2()
        features.try_events()
    except KernelError as error:
        return missing(name, f"{error.message}: {without}", error.hint)
    except OSError as error:
        if error.errno in _NOT_ALLOWED:
            return note(name, "not tried: not allowed")
        return missing(name, f"{_reason(error)}: {without}", "kernel 5.9 has them")
    for kind in (AttachType.CGROUP_INET_SOCK_CREATE, AttachType.CGROUP_INET_SOCK_RELEASE):
        if way := in_the_way(folder, kind):
            return missing(name, f"{way}: {without}", "end that program")
    return ok(name, "works")


def _holders() -> HostCheck:
    name = "socket holders"
    try:
        features.try_iterator()
    except OSError as error:
        if error.errno in _NOT_ALLOWED:
            return note(name, "not tried: not allowed")
        detail = f"{_reason(error)}: /proc is read, for ten times the CPU time"
        return note(name, detail, "kernel 5.8 with CONFIG_DEBUG_INFO_BTF has an iterator")
    return ok(name, "an iterator finds them")


def _translation() -> HostCheck:
    name = "NAT"
    try:
        tracks = features.try_translation()
    except OSError as error:
        if error.errno in _NOT_ALLOWED:
            return note(name, "not tried: not allowed")
        detail = f"{_reason(error)}: flows behind NAT have no owner"
        return note(name, detail, "a kernel with CONFIG_NF_CT_NETLINK")
    return ok(name, "works" if tracks else "not in use: the kernel tracks no connections")


def _namespaces() -> HostCheck:
    name = "namespaces"
    with contextlib.closing(Namespaces()) as namespaces:
        namespaces.look(_LOOK_S)
        others = len(namespaces) - 1
        if namespaces.refused:
            detail = f"others are closed ({namespaces.refused}): their sockets are not asked for"
            return note(name, detail, "CAP_SYS_ADMIN and CAP_SYS_PTRACE open them")
    return ok(name, f"{others or 'no'} other{'s' if others > 1 else ''}")


def _cgroups() -> HostCheck:
    name = "cgroup names"
    try:
        folder = cgroup2()
    except KernelError as error:
        return note(name, f"{error.message}: units come from /proc", error.hint)
    with contextlib.closing(CgroupPaths()) as paths:
        paths.path(folder.stat().st_ino)
        if paths.walks:
            return note(name, "found by a walk over all folders", "CAP_DAC_READ_SEARCH spares it")
    return ok(name, f"cgroup2 at {folder}")


def _reason(error: OSError) -> str:
    return os.strerror(error.errno or 0)
