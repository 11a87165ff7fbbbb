"""A limit of the map memory that one source may take, enforced before the kernel allocates any.

libbcc creates a source's maps while it compiles, and offers no hook. So a seccomp filter stops each
bpf(BPF_MAP_CREATE) of the compiling thread, and another thread of the same process adds up the
sizes and lets the call continue or fail with EDQUOT.

helper.py loads this module in the system's Python, beside the product's: it imports nothing of
probedeck.
"""

from __future__ import annotations

import ctypes as ct
import errno
import fcntl
import os
import platform
import struct
import threading

PERCPU_TYPES = frozenset((5, 6, 10))
HASH_TYPES = frozenset((1, 5, 9, 10))
RINGBUF = 27
HASH_ENTRY = 64
"""Bytes of an element's header and its share of the buckets, about."""

SECCOMP, BPF = {"x86_64": (317, 321), "aarch64": (277, 280)}.get(platform.machine(), (-1, -1))
SECCOMP_SET_MODE_FILTER, FILTER_FLAG_NEW_LISTENER = 1, 8
RET_USER_NOTIF, RET_ALLOW = 0x7FC00000, 0x7FFF0000
NOTIF_RECV, NOTIF_SEND = 0xC0502100, 0xC0182101
NOTIF_FLAG_CONTINUE = 1
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
_NOTIF = struct.Struct("<QIIiIQ6Q")
"""struct seccomp_notif: id, pid, flags; then struct seccomp_data: nr, arch, ip, args."""
_RESPONSE = struct.Struct("<QqiI")
"""struct seccomp_notif_resp: id, value, error, flags."""
_MAP = struct.Struct("<4I")
"""The beginning of union bpf_attr for BPF_MAP_CREATE: type, key, value, entries."""
_NAME = slice(28, 44)


def map_bytes(kind: int, key: int, value: int, entries: int, cpus: int) -> int:
    """Return about how much kernel memory a map of bpf(2)'s type `kind` takes when it is full.

    `cpus` is the number of possible CPUs.
    """
    if kind == RINGBUF:
        return entries
    values = (value + 7) // 8 * 8 * (cpus if kind in PERCPU_TYPES else 1)
    stored = (key + 7) // 8 * 8 + HASH_ENTRY if kind in HASH_TYPES else 0
    return entries * (stored + values)


class Quota:
    """The limit for maps that the calling thread creates."""

    def __init__(self, cpus: int) -> None:
        """Begin to watch this thread; does nothing if the kernel lacks seccomp listeners."""
        self._cpus = cpus
        self._limit = 0
        self._maps: dict[bytes, int] = {}
        code = (
            (LOAD, 0, 0, 0),  # the system call's number
            (JUMP_IF_EQUAL, 0, 3, BPF),
            (LOAD, 0, 0, 16),  # its first argument, the command: BPF_MAP_CREATE is 0
            (JUMP_IF_EQUAL, 0, 1, 0),
            (RETURN, 0, 0, RET_USER_NOTIF),
            (RETURN, 0, 0, RET_ALLOW),
        )
        filters = b"".join(struct.pack("<HBBI", *instruction) for instruction in code)
        buffer = ct.create_string_buffer(filters)
        program = struct.pack("<HxxxxxxQ", len(code), ct.addressof(buffer))
        flag = ct.c_ulong(FILTER_FLAG_NEW_LISTENER)
        syscall = ct.CDLL(None, use_errno=True).syscall
        self._listener: int = syscall(SECCOMP, SECCOMP_SET_MODE_FILTER, flag, program)
        if self._listener >= 0:
            threading.Thread(target=self._answer, daemon=True).start()

    def begin(self, limit: int) -> None:
        """Count the maps of the next source; `limit` is in bytes, and 0 for none."""
        self._limit = limit
        self._maps.clear()

    def _answer(self) -> None:
        while True:
            request = bytearray(_NOTIF.size)
            try:
                fcntl.ioctl(self._listener, NOTIF_RECV, request)
                number, *_, attr, size, _, _, _ = _NOTIF.unpack(request)
                fits = self._fits(ct.string_at(attr, min(size, _NAME.stop)))
                error, flags = (0, NOTIF_FLAG_CONTINUE) if fits else (-errno.EDQUOT, 0)
                response = bytearray(_RESPONSE.pack(number, 0, error, flags))
                fcntl.ioctl(self._listener, NOTIF_SEND, response)
            except InterruptedError:
                continue
            except OSError as failure:
                if failure.errno != errno.ENOENT:  # the thread was killed meanwhile
                    os._exit(1)

    def _fits(self, attr: bytes) -> bool:
        if not self._limit:
            return True
        # If an old kernel refuses a map, libbcc tries again, at last without the name.
        shape, name = attr[: _MAP.size], attr[_NAME].rstrip(b"\0")
        if not name and any(known.startswith(shape) for known in self._maps):
            return True
        others = sum(size for known, size in self._maps.items() if known != shape + name)
        kind, key, value, entries = _MAP.unpack(shape)
        size = map_bytes(kind, key, value, entries, self._cpus)
        if others + size > self._limit:
            return False
        self._maps[shape + name] = size
        return True
