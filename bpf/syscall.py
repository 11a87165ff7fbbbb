"""bpf(2) by ctypes: one function for each command that probedeck uses.

Every function raises OSError, with the command's name in it, when the kernel refuses.
"""

from __future__ import annotations

import ctypes as ct
import errno
import mmap
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from bpf.abi import (
    LIVE_FRAMES,
    BpfCommand,
    BtfInfoStruct,
    BtfLoad,
    Element,
    EnableStats,
    GetId,
    InfoByFd,
    MapCreate,
    MapInfoStruct,
    MapType,
    ProgInfoStruct,
    ProgLoad,
    ProgTestRun,
    ProgType,
)
from bpf.machine import LIBC, LOCKED_DOWN, is_locked_down, system_calls
from bpf.maps.kinds import KINDS, MapKind

LINE_BYTES = 16
"""Of a struct bpf_line_info: instruction, file, text, line and column."""
_AGAIN = 4
"""Further tries of a load that a signal ended, as libbpf has."""
PRIVILEGES = "run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON"
"""Remedy for EPERM."""


@dataclass(frozen=True, slots=True)
class MapSpec:
    """Parameters of MAP_CREATE."""

    name: str
    type: MapType
    key_size: int
    """Bytes; 0 for a queue, a stack and a ring buffer."""
    value_size: int
    """Bytes, of one CPU's value for per-CPU kinds; 0 for a ring buffer."""
    max_entries: int
    flags: int = 0
    extra: int = 0
    """Of a bloom filter: the number of its hash functions."""
    offset: int | None = None
    """Of a global variable: its place in the value of its section. Entries have no padding."""

    @property
    def percpu(self) -> bool:
        return self.kind.percpu

    @property
    def kind(self) -> MapKind:
        """The row of this map type in `KINDS`."""
        return KINDS[self.type]


@dataclass(frozen=True, slots=True)
class ProgInfo:
    """The kernel's information on a loaded program."""

    id: int
    name: str
    run_time_ns: int
    """Total run time; counts only while BPF statistics are on."""
    run_count: int
    """Number of runs; counts only while BPF statistics are on."""
    jited_bytes: int
    """0 if the JIT is off."""
    is_gpl: bool = True
    """Whether its license is compatible with the GPL."""


@dataclass(frozen=True, slots=True)
class ProgRun:
    """Result of PROG_TEST_RUN."""

    verdict: int
    duration_ns: int
    """Mean over the repetitions."""
    data: bytes
    """The packet as the program left it."""


class VerifierError(OSError):
    """The verifier refused a program; `log` is its log in full."""

    def __init__(self, code: int, message: str, log: str) -> None:
        super().__init__(code, message)
        self.log = log

    def __str__(self) -> str:
        return str(self.strerror)


def call(command: BpfCommand, attr: ct.Structure) -> int:
    """Run one bpf(2) command; returns what the kernel returned, or raises OSError."""
    result: int = LIBC.syscall(system_calls().bpf, int(command), ct.byref(attr), ct.sizeof(attr))
    if result < 0:
        raise refusal(command, ct.get_errno())
    return result


def refusal(command: BpfCommand, code: int) -> OSError:
    """Return the error of a command that the kernel refused with an errno."""
    return OSError(code, f"bpf({command.name}): {os.strerror(code)}")


@contextmanager
def opened(fd: int) -> Iterator[int]:
    """Close a descriptor in the end."""
    try:
        yield fd
    finally:
        os.close(fd)


def call_errno(command: BpfCommand, attr: ct.Structure) -> int:
    """Run one bpf(2) command; returns 0 or the errno: for loops whose end is an error code."""
    if LIBC.syscall(system_calls().bpf, int(command), ct.byref(attr), ct.sizeof(attr)) < 0:
        return ct.get_errno()
    return 0


def _name(text: str) -> bytes:
    """A kernel object name: at most 15 of [A-Za-z0-9_.]."""
    return re.sub(r"[^A-Za-z0-9_.]", "_", text)[:15].encode()


def map_create(
    spec: MapSpec,
    *,
    inner_map_fd: int = 0,
    like: int | None = None,
    btf_fd: int = 0,
    types: tuple[int, int] = (0, 0),
) -> int:
    """Create a map; returns its file descriptor. `inner_map_fd` is for maps of maps.

    The new map gets the key and value types that the map `like` has in the BTF behind `btf_fd`, or
    those with the numbers `types`. It may then hold a spin lock or a timer, and bpftool can print
    it.
    """
    attr = MapCreate(
        map_type=spec.type,
        key_size=spec.key_size,
        value_size=spec.value_size,
        max_entries=spec.max_entries,
        map_flags=spec.flags,
        inner_map_fd=inner_map_fd,
        map_extra=spec.extra,
        map_name=_name(spec.name),
    )
    if like is not None and btf_fd:
        info = MapInfoStruct()
        read_info(like, info)
        types = info.btf_key_type_id, info.btf_value_type_id
    if types[1]:
        attr.btf_fd = btf_fd
        attr.btf_key_type_id, attr.btf_value_type_id = types
    return call(BpfCommand.MAP_CREATE, attr)


def read_info(fd: int, info: ct.Structure) -> None:
    """Fill a structure with the kernel's information on the object behind a descriptor."""
    attr = InfoByFd(bpf_fd=fd, info_len=ct.sizeof(info), info=ct.addressof(info))
    call(BpfCommand.OBJ_GET_INFO_BY_FD, attr)


def _element(
    command: BpfCommand, fd: int, key: bytes | None, value: ct.Array[ct.c_char] | None
) -> bool:
    """Run a command on one entry; returns False if the map does not have it."""
    key_buffer = None if key is None else ct.create_string_buffer(key, len(key))
    element = Element(
        map_fd=fd,
        key=0 if key_buffer is None else ct.addressof(key_buffer),
        value=0 if value is None else ct.addressof(value),
    )
    if (code := call_errno(command, element)) not in (0, errno.ENOENT):
        raise refusal(command, code)
    return not code


def map_lookup(fd: int, key: bytes, value_size: int) -> bytes | None:
    """Return the value under `key`, or None. For per-CPU kinds `value_size` counts all CPUs."""
    value = ct.create_string_buffer(value_size)
    return value.raw if _element(BpfCommand.MAP_LOOKUP_ELEM, fd, key, value) else None


def map_update(fd: int, key: bytes | None, value: bytes) -> None:
    """Store `value` under `key`; `key` is None for a queue or a stack (push)."""
    buffer = ct.create_string_buffer(value, len(value))
    if not _element(BpfCommand.MAP_UPDATE_ELEM, fd, key, buffer):
        raise refusal(BpfCommand.MAP_UPDATE_ELEM, errno.ENOENT)


def map_delete(fd: int, key: bytes) -> bool:
    """Delete `key`; returns False if the map does not have it."""
    return _element(BpfCommand.MAP_DELETE_ELEM, fd, key, None)


def prog_array_set(fd: int, index: int, prog_fd: int) -> None:
    """Point entry `index` of a program array at a program: one atomic write."""
    map_update(fd, index.to_bytes(4, "little"), prog_fd.to_bytes(4, "little"))


def prog_array_clear(fd: int, index: int) -> None:
    """Empty entry `index` of a program array; a tail call there falls through from now on."""
    map_delete(fd, index.to_bytes(4, "little"))


def prog_load(
    instructions: bytes,
    prog_type: ProgType,
    name: str,
    *,
    license_name: str = "GPL",
    flags: int = 0,
    btf_fd: int = 0,
    functions: Sequence[tuple[int, int]] = (),
    device: int = 0,
    attach_type: int = 0,
    attach_btf_id: int = 0,
    lines: bytes = b"",
) -> int:
    """Load a program; returns its file descriptor. With `device`, an interface's index, into a NIC.

    `functions` are (instruction offset, BTF type id) pairs, needed where it has callbacks.
    `lines` are records of struct bpf_line_info: they need `functions`.
    `attach_type` is an AttachType for the types of program whose context depends on it;
    `attach_btf_id` is the kernel's function behind an iterator (bpf.kernel_types).
    Raises VerifierError, with the log in full, when the verifier refuses, and PermissionError
    without the right to load programs.
    """
    code = ct.create_string_buffer(instructions, len(instructions))
    licence = ct.create_string_buffer(license_name.encode())
    info = b"".join(part.to_bytes(4, "little") for pair in functions for part in pair)
    info_buffer = ct.create_string_buffer(info, max(len(info), 1))
    line_buffer = ct.create_string_buffer(lines, max(len(lines), 1))
    attr = ProgLoad(
        prog_type=prog_type,
        insn_cnt=len(instructions) // 8,
        insns=ct.addressof(code),
        license=ct.addressof(licence),
        prog_flags=flags,
        prog_name=_name(name),
        prog_btf_fd=btf_fd,
        func_info_rec_size=8 if functions else 0,
        func_info=ct.addressof(info_buffer) if functions else 0,
        func_info_cnt=len(functions),
        line_info_rec_size=LINE_BYTES if lines else 0,
        line_info=ct.addressof(line_buffer) if lines else 0,
        line_info_cnt=len(lines) // LINE_BYTES,
        prog_ifindex=device,
        expected_attach_type=attach_type,
        attach_btf_id=attach_btf_id,
    )
    try:
        return _load(attr)
    except OSError as refusal:
        # The first try has no log: one that exceeds its buffer fails a valid program (ENOSPC).
        log = ct.create_string_buffer(1 << 24)
        attr.log_level, attr.log_size, attr.log_buf = 1, len(log), ct.addressof(log)
        try:
            return _load(attr)
        except OSError:
            text = log.value.decode(errors="replace")
            if refusal.errno == errno.EPERM and not text:
                raise refusal from None  # the verifier has not seen the program
            why = LOCKED_DOWN if is_locked_down(text) else str(refusal.strerror)
            raise VerifierError(refusal.errno or 0, why, text) from None


def _load(attr: ProgLoad) -> int:
    """Load a program. A signal, for example of a terminal's new size, ends the verifier with
    EAGAIN: the load is tried again, as by libbpf."""
    for _ in range(_AGAIN):
        try:
            return call(BpfCommand.PROG_LOAD, attr)
        except OSError as error:
            if error.errno != errno.EAGAIN:
                raise
    return call(BpfCommand.PROG_LOAD, attr)


class TestRunner:
    """A prepared PROG_TEST_RUN, cheap enough to call in a loop."""

    def __init__(self, prog_fd: int) -> None:
        self._attr = ProgTestRun(prog_fd=prog_fd)

    def __call__(self) -> int:
        """Run the program once; returns its return value (unsigned, 32 bits)."""
        call(BpfCommand.PROG_TEST_RUN, self._attr)
        return int(self._attr.retval)


class FrameRunner:
    """Runs a packet program on one frame after another, each in less than a microsecond more than
    the program takes."""

    longest = mmap.PAGESIZE - 256 - 320
    """Most bytes of a frame: a page without the headroom of XDP and struct skb_shared_info."""
    shortest = 14

    def __init__(self, prog_fd: int) -> None:
        self._data = ct.create_string_buffer(self.longest)
        self._view = memoryview(self._data).cast("B")
        self._attr = ProgTestRun(prog_fd=prog_fd, data_in=ct.addressof(self._data))
        self._arguments = (system_calls().bpf, int(BpfCommand.PROG_TEST_RUN),
                           ct.byref(self._attr), ct.sizeof(self._attr))  # fmt: skip

    def __call__(self, frame: bytes, repeat: int = 1) -> None:
        """Run the program on `shortest` to `longest` bytes. Raises InterruptedError if a signal
        ends the repetitions."""
        size = len(frame)
        self._view[:size] = frame
        self._attr.data_size_in, self._attr.repeat = size, repeat
        self._attr.data_size_out = 0  # the kernel has written the last size here
        if LIBC.syscall(*self._arguments) < 0:
            raise refusal(BpfCommand.PROG_TEST_RUN, ct.get_errno())


def prog_test_run(
    prog_fd: int,
    packet: bytes,
    *,
    repeat: int = 1,
    flags: int = 0,
    context: bytes = b"",
    batch_size: int = 0,
) -> ProgRun:
    """Run a packet program on `packet` (Documentation/bpf/bpf_prog_run.rst)."""
    data = ct.create_string_buffer(packet, len(packet))
    out = ct.create_string_buffer(len(packet) + 512)
    ctx = ct.create_string_buffer(context, max(len(context), 1))
    live = bool(flags & LIVE_FRAMES)
    attr = ProgTestRun(
        prog_fd=prog_fd,
        data_size_in=len(packet),
        data_in=ct.addressof(data),
        data_size_out=0 if live else len(out),
        data_out=0 if live else ct.addressof(out),
        repeat=repeat,
        ctx_size_in=len(context),
        ctx_in=ct.addressof(ctx) if context else 0,
        flags=flags,
        batch_size=batch_size,
    )
    call(BpfCommand.PROG_TEST_RUN, attr)
    return ProgRun(attr.retval, attr.duration, out.raw[: attr.data_size_out])


def prog_info(fd: int) -> ProgInfo:
    """Identity and statistics of a loaded program."""
    info = ProgInfoStruct()
    read_info(fd, info)
    name = info.name.decode(errors="replace")
    is_gpl = bool(info.gpl_compatible & 1)
    return ProgInfo(info.id, name, info.run_time_ns, info.run_cnt, info.jited_prog_len, is_gpl)


def prog_fd_by_id(prog_id: int) -> int:
    """Open a loaded program by its id."""
    return call(BpfCommand.PROG_GET_FD_BY_ID, GetId(id=prog_id))


def btf_load(data: bytes) -> int:
    """Load BTF type information; returns its file descriptor."""
    buffer = ct.create_string_buffer(data, len(data))
    return call(BpfCommand.BTF_LOAD, BtfLoad(btf=ct.addressof(buffer), btf_size=len(data)))


def btf_data(fd: int) -> bytes:
    """Return the BTF behind a descriptor, as the kernel has checked it."""
    info = BtfInfoStruct()
    read_info(fd, info)
    buffer = ct.create_string_buffer(info.btf_size)
    info.btf = ct.addressof(buffer)
    read_info(fd, info)
    return buffer.raw


def enable_run_time_stats() -> int:
    """Turn on BPF run-time statistics until the returned descriptor is closed (70 ns a run)."""
    return call(BpfCommand.ENABLE_STATS, EnableStats(type=0))
