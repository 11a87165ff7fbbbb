"""Events of processes that open or close sockets, by two cgroup programs (owner.c)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import numpy as np

from bpf.abi import AttachType, ProgType
from bpf.attach.hook import attach_cgroup, cgroup2
from bpf.compiler import Compiled, Compiler
from bpf.errors import KernelError, UsageError
from bpf.kernel_types import kernel_types
from bpf.links import link_update
from bpf.machine import possible_cpus
from bpf.maps.kinds import map_memory
from bpf.maps.ring import RingReader
from bpf.programs.program import Program, create_like
from bpf.syscall import map_lookup
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


class SocketEvents:
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
