"""Processes that hold sockets, and events of processes that open or close them.

Holders come from the kernel's iterator of descriptors, or from /proc without it; events come from
two cgroup programs (owner.c)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bpf.abi import AttachType, ProgType
from bpf.attach.interface import attach_cgroup, cgroup2
from bpf.compiler import Compiled, Compiler
from bpf.compiler.diagnostics import parse_verifier
from bpf.errors import Closing, KernelError, ProbedeckError, UsageError
from bpf.kernel_types import kernel_types
from bpf.links import link_update
from bpf.machine import possible_cpus
from bpf.maps.kinds import map_memory
from bpf.maps.ring import RingReader
from bpf.programs.program import KernelIterator, Program, create_like
from bpf.syscall import VerifierError, map_lookup
from probes.life import Bundle

OPENED, CLOSED = 0, 1
"""Values of `what`."""
EVENT = np.dtype(
    [
        ("cookie", "u8"),
        ("time_ns", "u8"),  # ns, CLOCK_MONOTONIC
        ("start_ns", "u8"),  # ns, CLOCK_BOOTTIME, in steps of TICK_NS: of the process
        ("cgroup", "u8"),
        ("tgid", "u4"),
        ("uid", "u4"),
        ("netns", "u4"),  # inode number of the socket's network namespace
        ("what", "u2"),
        ("family", "u1"),
        ("protocol", "u1"),
        ("comm", "S16"),
    ]
)
"""An event. `start_ns` and `netns` are 0 if the kernel does not describe its types (BTF)."""
TICK_NS = 10_000_000
"""Steps in which /proc tells when a process began (USER_HZ)."""
RING_BYTES = 2 << 20
"""Holds 26,000 events: of one window, as the ring is read once in it."""
SOURCE = Path(__file__).with_name("owner.c")
PROGRAMS = {
    "socket_opened": AttachType.CGROUP_INET_SOCK_CREATE,
    "socket_closed": AttachType.CGROUP_INET_SOCK_RELEASE,
}
"""Functions of the source, and where each is attached."""
_MAPS = {"events", "lost"}
_SIZES = {"events": RING_BYTES}
"""Sizes of maps that the source declares as small as possible."""
_OFFSETS = {
    "TASK_LEADER": ("task_struct", "group_leader"),
    "TASK_COMMAND": ("task_struct", "comm"),
    "TASK_START": ("task_struct", "start_boottime"),
    "SOCKET_NET": ("sock_common", "skc_net"),
    "NET_NUMBER": ("net", "ns.inum"),
}


class SocketEvents(Closing):
    """The two programs, attached to a folder of cgroup2, and the ring of their events.

    `close` detaches the programs; so does the end of the process, whatever its cause. One thread
    at a time may use an instance.
    """

    def __init__(self, compiler: Compiler, folder: Path | None = None) -> None:
        """Compile, load and attach; without a folder, for all processes of the host.

        Takes some 0.3 s. Raises KernelError if the kernel, its privileges or a missing cgroup2
        refuse, and ProbedeckError if another program keeps these out.
        """
        folder = cgroup2() if folder is None else folder
        self.programs: dict[str, int] = {}
        """Ids of the attached programs, by function."""
        self._unreadable = 0
        self._links: dict[str, int] = {}
        self._maps: dict[str, int] = {}
        with ExitStack() as undo:
            source = SOURCE.read_text(encoding="utf-8")
            compiled = undo.enter_context(self.compile(compiler, source))
            for name, declared in compiled.maps.items():
                self._maps[name] = create_like(declared, entries=_SIZES.get(name))
                undo.callback(os.close, self._maps[name])
            self._ring = RingReader(self._maps["events"], RING_BYTES, EVENT)
            undo.callback(self._ring.close)
            self.first = self.load(compiled)
            """The programs of the probe's own source."""
            undo.callback(self.first.close)
            for program, (function, attach_type) in zip(self.first, PROGRAMS.items(), strict=True):
                self._links[function] = attach_cgroup(folder, program.fd, attach_type)
                undo.callback(os.close, self._links[function])
                self.programs[function] = program.info().id
            self._undo = undo.pop_all()

    @staticmethod
    def compile(compiler: Compiler, source: str) -> Compiled:
        """Compile the programs. Raises CompileError, or UsageError for other programs or maps."""
        macros = {"HAS_OFFSETS": 0, **dict.fromkeys(_OFFSETS, 0)}
        with suppress(KernelError):
            types = kernel_types()
            offsets = {name: types.offset(*member) for name, member in _OFFSETS.items()}
            macros = {"HAS_OFFSETS": 1, **offsets}
        compiled = compiler.compile(
            source,
            ProgType.CGROUP_SOCK,
            attach_type=AttachType.CGROUP_INET_SOCK_CREATE,
            name=SOURCE.name,
            cflags=[f"-D{name}={value}" for name, value in macros.items()],
        )
        if missing := (PROGRAMS.keys() - compiled.programs.keys()) | (_MAPS - compiled.maps.keys()):
            compiled.close()
            raise UsageError(f"the source must have {', '.join(sorted(missing))}")
        return compiled

    def load(self, compiled: Compiled) -> Bundle[Program]:
        """Load both programs; they write to the same ring as the programs before.

        Raises KernelError or VerifierError if a program does not fit the maps.
        """
        # An edited source that returns 0 would forbid every socket of the host.
        return Bundle(
            Program(compiled, name, shared=self._maps, passes=True, attach_type=attach_type)
            for name, attach_type in PROGRAMS.items()
        )

    def become(self, programs: Sequence[Program]) -> None:
        """Replace both programs; no event is lost, as a link's program changes in one step."""
        for name, program in zip(PROGRAMS, programs, strict=True):
            link_update(self._links[name], program.fd)
            self.programs[name] = program.info().id

    def read(self) -> np.ndarray[tuple[int, ...], np.dtype[Any]]:
        """Return the events since the last read, oldest first: rows of EVENT, shape (n,).

        If an edited source writes records of another size, they are lost, and no later ones.
        """
        try:
            rows = self._ring.read()
        except UsageError:
            self._ring.skip()
            self._unreadable += 1
            return np.empty(0, EVENT)
        rows["start_ns"] -= rows["start_ns"] % TICK_NS
        return rows

    @property
    def lost(self) -> int:
        """Events so far that found the ring full, and reads that gave up unreadable ones."""
        value = map_lookup(self._maps["lost"], bytes(4), 8 * possible_cpus())
        return self._unreadable + sum(memoryview(value or b"").cast("Q"))

    def memory(self) -> int:
        """Return the bytes of kernel memory of the maps."""
        return sum(map(map_memory, self._maps.values()))

    def close(self) -> None:
        """Detach the programs and free the ring."""
        self._undo.close()


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
HOLDERS_SOURCE = Path(__file__).with_name("holders.c")
_HOLDER_OFFSETS = {
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


class Holders(Closing):
    """Finds the holders of all sockets of the host, a slice at a time."""

    def __init__(self, compiler: Compiler, source: str = "") -> None:
        """Load the iterator, or begin with /proc; takes some 0.3 s.

        With an edited `source`, raises CompileError, KernelError or VerifierError instead.
        """
        self.why_proc = ""
        """Why /proc is read, which costs some ten times as much; empty with the iterator."""
        self._source: _Source
        try:
            self._source = _iterator(compiler, source or HOLDERS_SOURCE.read_text(encoding="utf-8"))
        except (ProbedeckError, OSError) as error:
            if source:
                raise
            self.why_proc = str(error)
            if isinstance(error, VerifierError):
                self.why_proc = parse_verifier("holders", error.log).text
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


def _iterator(compiler: Compiler, source: str) -> KernelIterator:
    types = kernel_types()
    flags = [f"-D{name}={types.offset(*member)}" for name, member in _HOLDER_OFFSETS.items()]
    with compiler.compile(
        source, ProgType.TRACING, name=HOLDERS_SOURCE.name, cflags=flags
    ) as compiled:
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
