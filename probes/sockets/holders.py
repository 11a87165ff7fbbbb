"""Processes that hold sockets: by the kernel's iterator of descriptors, or by /proc without it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from bpf.abi import ProgType
from bpf.compiler import Compiler
from bpf.errors import ProbedeckError
from bpf.kernel_types import kernel_types
from bpf.programs.program import KernelIterator
from probes.sockets.opened import TICK_NS

BUDGET_S = 0.0015
"""Time of one slice, by default."""
HOLDER = np.dtype(
    [
        ("cookie", "u8"),  # 0 before anything has asked for it
        ("cgroup", "u8"),  # of the socket
        ("start_ns", "u8"),  # ns, CLOCK_BOOTTIME, in steps of TICK_NS: of the process
        ("inode", "u4"),
        ("netns", "u4"),  # inode number of the socket's network namespace
        ("tgid", "u4"),
        ("uid", "u4"),  # who made the socket
        ("port", "u2"),  # on this host; identifier of an ICMP echo socket
        ("protocol", "u1"),
        ("family", "u1"),
        ("type", "u1"),  # SOCK_STREAM, SOCK_DGRAM, SOCK_RAW
        ("_unused", "V3"),
        ("comm", "S16"),
    ]
)
"""A process that holds a socket; several rows have the inode of a shared socket.

From /proc, only `inode`, `netns` (of the process), `tgid`, `uid` (of the process), `start_ns` and
`comm` are known."""
SOURCE = Path(__file__).with_name("holders.c")
_OFFSETS = {
    "SOCKET_SOCK": ("socket", "sk"),
    "SOCK_COOKIE": ("sock_common", "skc_cookie"),
    "SOCK_FAMILY": ("sock_common", "skc_family"),
    "SOCK_PORT": ("sock_common", "skc_num"),
    "SOCK_NET": ("sock_common", "skc_net"),
    "SOCK_PROTOCOL": ("sock", "sk_protocol"),
    "SOCK_TYPE": ("sock", "sk_type"),
    "SOCK_USER": ("sock", "sk_uid"),
    "SOCK_CGROUP": ("sock", "sk_cgrp_data"),
    "NET_NUMBER": ("net", "ns.inum"),
    "CGROUP_NODE": ("cgroup", "kn"),
    "NODE_ID": ("kernfs_node", "id"),
    "FILE_INODE": ("file", "f_inode"),
    "INODE_NUMBER": ("inode", "i_ino"),
    "TASK_PROCESS": ("task_struct", "tgid"),
    "TASK_LEADER": ("task_struct", "group_leader"),
    "TASK_COMMAND": ("task_struct", "comm"),
    "TASK_START": ("task_struct", "start_boottime"),
}
_LOOK_EVERY = 32
"""Descriptors in /proc between two looks at the clock."""
MOST_SEARCHED = 1000
"""Descriptors of one search, some 2 ms; a thread counts as _COST_OF_TASK."""
_COST_OF_TASK = 10


class _Source(Protocol):
    passes: int

    def read(self, budget_s: float) -> np.ndarray[tuple[int, ...], np.dtype[Any]]: ...

    def close(self) -> None: ...


class Holders:
    """Finds the holders of all sockets of the host, a slice at a time."""

    def __init__(self, compiler: Compiler, source: str = "") -> None:
        """Load the iterator, or begin with /proc; takes some 0.3 s.

        With an edited `source`, raises CompileError, KernelError or VerifierError instead.
        """
        self.why_proc = ""
        """Why /proc is read, which costs some ten times as much; empty with the iterator."""
        self._source: _Source
        try:
            self._source = _iterator(compiler, source or SOURCE.read_text(encoding="utf-8"))
        except (ProbedeckError, OSError) as error:
            if source:
                raise
            self.why_proc = str(error)
            self._source = ProcHolders()

    @property
    def passes(self) -> int:
        """Passes over all descriptors so far that came to their end."""
        return self._source.passes

    def read(self, budget_s: float = BUDGET_S) -> np.ndarray[tuple[int, ...], np.dtype[Any]]:
        """Continue the pass for some `budget_s` of CPU time: rows of HOLDER, shape (n,).

        The next call continues where this one ended, and begins again behind the last process.
        Raises OSError.
        """
        rows = self._source.read(budget_s)
        rows = rows[rows["inode"] > 0]
        rows["start_ns"] -= rows["start_ns"] % TICK_NS
        return rows

    def close(self) -> None:
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _iterator(compiler: Compiler, source: str) -> KernelIterator:
    types = kernel_types()
    flags = [f"-D{name}={types.offset(*member)}" for name, member in _OFFSETS.items()]
    with compiler.compile(source, ProgType.TRACING, name=SOURCE.name, cflags=flags) as compiled:
        return KernelIterator(compiled, "holders", "task_file", HOLDER)


def search(tgids: Sequence[int]) -> tuple[np.ndarray[tuple[int, ...], np.dtype[Any]], bool]:
    """Return the sockets of processes and their descendants, and whether these are all of them.

    Rows of HOLDER, shape (n,), from /proc. The bound is a number of files, not a time, so the
    result does not depend on the load of the host.
    """
    rows: list[tuple[Any, ...]] = []
    waiting, left, lives, refused = list(dict.fromkeys(tgids)), MOST_SEARCHED, False, False
    seen = set(waiting)
    while waiting and left > 0:
        tgid = waiting.pop()  # The youngest child first: it has few descriptors.
        try:
            tasks = os.listdir(f"/proc/{tgid}/task")
            left -= _COST_OF_TASK * len(tasks)
            children = _children(tgid, tasks) if left > 0 else []
            for row in _rows_of_process(f"/proc/{tgid}", tgid):
                left -= 1
                if row:
                    rows.append(row)
                if left <= 0:
                    break
        except (FileNotFoundError, ProcessLookupError):
            continue  # It has ended.
        except OSError:
            refused = True
            continue
        lives |= tgid in tgids
        waiting += (each for each in children if each not in seen)
        seen.update(children)
    complete = lives and left > 0 and not refused and os.path.exists("/proc/thread-self/children")
    return np.array(rows, HOLDER), complete


def _children(tgid: int, tasks: Sequence[str]) -> list[int]:
    found: list[int] = []
    for task in tasks:
        with suppress(FileNotFoundError, ProcessLookupError):  # The thread has ended.
            text = Path(f"/proc/{tgid}/task/{task}/children").read_text(encoding="ascii")
            found += map(int, text.split())
    return found


class ProcHolders:
    """The same by /proc/PID/fd, of the processes that this one may look into."""

    def __init__(self) -> None:
        self.passes = 0
        self._rows = _rows_of_proc()

    def read(self, budget_s: float) -> np.ndarray[tuple[int, ...], np.dtype[Any]]:
        end = time.thread_time() + budget_s
        found = []
        for count, row in enumerate(self._rows, 1):
            if row:
                found.append(row)
            if count % _LOOK_EVERY == 0 and time.thread_time() >= end:
                break
        else:
            self.passes += 1
            self._rows = _rows_of_proc()
        return np.array(found, HOLDER)

    def close(self) -> None:
        self._rows = iter(())


def _rows_of_proc() -> Iterator[tuple[Any, ...] | None]:
    """Yield a row for each descriptor of a socket, and None for other descriptors."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):  # gone meanwhile, or another user's
                yield from _rows_of_process(f"/proc/{name}", int(name))


def _rows_of_process(folder: str, tgid: int) -> Iterator[tuple[Any, ...] | None]:
    process: tuple[int, int, int, bytes] | None = None
    for descriptor in os.listdir(f"{folder}/fd"):
        try:
            target = os.readlink(f"{folder}/fd/{descriptor}")
        except OSError:
            continue
        if not target.startswith("socket:["):
            yield None
            continue
        process = process or _process(folder)
        start, netns, uid, comm = process
        yield (0, 0, start, int(target[8:-1]), netns, tgid, uid, 0, 0, 0, 0, b"", comm)


def _process(folder: str) -> tuple[int, int, int, bytes]:
    """Return start (ns, CLOCK_BOOTTIME), network namespace, user and name of a process."""
    stat = Path(folder, "stat").read_bytes()
    _, _, fields = stat.rpartition(b")")
    start = int(fields.split()[19]) * TICK_NS
    comm = stat[stat.index(b"(") + 1 : stat.rindex(b")")]
    return start, os.stat(f"{folder}/ns/net").st_ino, os.stat(folder).st_uid, comm
