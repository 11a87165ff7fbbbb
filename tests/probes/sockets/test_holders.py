"""Holders of sockets: by the iterator and by /proc, of sockets that a test holds."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from bpf.compiler import Compiler
from bpf.errors import KernelError
from probes.sockets import holders
from probes.sockets.holders import HOLDER, HOLDERS_SOURCE, TICK_NS, Holders, ProcHolders, search

ALONE = """
import ctypes, os, socket, sys
with open("/proc/self/comm", "wb") as comm:
    comm.write(bytes.fromhex("616c 1b ff c3a9"))
ctypes.CDLL(None).unshare(0x40000000)
held = [socket.socket(socket.AF_INET6, socket.SOCK_STREAM) for _ in range(300)]
print(os.fstat(held[0].fileno()).st_ino, flush=True)
sys.stdin.read()
"""
"""Holds 300 sockets in a new network namespace, and one inherited socket."""
COMM = b"al\x1b\xff\xc3\xa9"
"""Its name: any bytes but NUL may be in one."""

Rows = np.ndarray[tuple[int, ...], np.dtype[Any]]


@pytest.fixture(scope="module")
def found(compiler: Compiler) -> Iterator[Holders]:
    with Holders(compiler) as found:
        if found.why_proc:
            pytest.skip(found.why_proc)
        yield found


@contextlib.contextmanager
def alone(*inherited: int) -> Iterator[tuple[int, int]]:
    """Pid of the process, and the inode of its first socket."""
    command = [sys.executable, "-I", "-S", "-c", ALONE]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=inherited
    ) as process:
        assert process.stdout is not None
        try:
            yield process.pid, int(process.stdout.readline())
        finally:
            process.kill()


def whole_pass(found: Holders | ProcHolders) -> Rows:
    """Return the rows of a pass that begins now."""
    before = found.passes
    while found.passes == before:
        found.read(1.0)
    rows = []
    while found.passes == before + 1:
        rows.append(found.read(1.0))
    return np.concatenate(rows)


def test_a_row_tells_the_socket_and_its_process(found: Holders) -> None:
    with (
        socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as raw,
    ):
        udp.bind(("::1", 0))
        cookie = int.from_bytes(udp.getsockopt(socket.SOL_SOCKET, 57, 8), "little")
        inodes = [os.fstat(each.fileno()).st_ino for each in (udp, raw)]
        with alone(udp.fileno()) as (pid, inode):
            rows = whole_pass(found)
            netns = os.stat(f"/proc/{pid}/ns/net").st_ino
        own = rows[rows["tgid"] == os.getpid()]
        (of_udp,), (of_raw,) = (own[own["inode"] == each] for each in inodes)
        assert (of_udp["cookie"], of_udp["port"]) == (cookie, udp.getsockname()[1])
    assert (of_udp["family"], of_udp["protocol"], of_udp["type"]) == (10, 17, 2)
    assert (of_raw["family"], of_raw["protocol"], of_raw["type"]) == (2, 1, 3)
    assert of_udp["uid"] == os.getuid()
    assert of_udp["netns"] == os.stat("/proc/self/ns/net").st_ino
    theirs = rows[rows["tgid"] == pid]
    assert set(theirs["comm"].tolist()) == {COMM}
    assert (theirs["netns"] == netns).sum() == 300
    assert (theirs["inode"] == inode).sum() == 1
    # The inherited socket has two holders, and is of the namespace where it was made.
    both = rows[rows["inode"] == inodes[0]]
    assert set(both["tgid"].tolist()) == {os.getpid(), pid}
    assert len(set(both["netns"].tolist())) == 1


def test_a_pass_in_slices_misses_nothing(found: Holders) -> None:
    with alone() as (pid, _):
        whole = whole_pass(found)
        before, parts = found.passes, []
        while found.passes == before:
            parts.append(found.read(0))
    assert max(map(len, parts)) <= 4096 // HOLDER.itemsize
    sliced = np.concatenate(parts)
    assert np.isin(whole[whole["tgid"] == pid]["inode"], sliced["inode"]).all()


def test_descriptors_that_are_no_sockets_do_not_make_a_slice_long(found: Holders) -> None:
    """An empty record for 64 files ends a read after 4,096 of them."""
    count = 1 << 12
    files = [os.open("/dev/null", os.O_RDONLY) for _ in range(count)]
    try:
        whole_pass(found)
        before, empty = found.passes, 0
        while found.passes <= before + 1:
            rows = found._source.read(0)
            assert len(rows) <= 4096 // HOLDER.itemsize
            empty += int((rows["inode"] == 0).sum())
    finally:
        for fd in files:
            os.close(fd)
    assert empty >= count // 64


def test_proc_tells_the_same(found: Holders) -> None:
    fields = ["inode", "tgid", "start_ns", "comm"]
    with alone() as (pid, _):
        both = [whole_pass(each) for each in (found, ProcHolders())]
    # Not their bytes: numpy leaves anything between the chosen fields.
    one, other = (set(r[r["tgid"] == pid][fields].tolist()) for r in both)
    assert len(one) == 300
    assert one == other


FAMILY = """
import os, socket, sys
held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
tgid, (wait_fd, end_fd) = os.getpid(), os.pipe()
for _ in range(2):
    if os.fork():
        break
else:
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    print(tgid, os.getpid(), os.fstat(held.fileno()).st_ino, flush=True)
if os.getpid() == tgid:
    sys.stdin.read()
    sys.exit()
os.close(end_fd)
os.read(wait_fd, 1)
"""
"""A process, its child, and the grandchild's own socket."""


def test_a_search_finds_the_sockets_of_descendants(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-I", "-S", "-c", FAMILY]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        tgid, grandchild, inode = map(int, process.stdout.readline().split())
        rows, complete = search([tgid])
        assert rows[rows["inode"] == inode]["tgid"].tolist() == [grandchild]
        (shared,) = set(rows["inode"].tolist()) - {inode}
        assert len(set(rows[rows["inode"] == shared]["tgid"].tolist())) == 2
        assert complete
        assert search([grandchild, tgid])[1]
        monkeypatch.setattr(holders, "MOST_SEARCHED", 20)
        assert not search([tgid])[1]
        process.kill()
    # The children of an ended process are unknown.
    assert not search([tgid])[1]


def test_without_the_kernel_s_types_proc_is_read_a_slice_at_a_time(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> Any:
        raise KernelError("no types")

    monkeypatch.setattr(holders, "kernel_types", refuse)
    with alone() as (pid, inode), Holders(compiler) as found:
        assert found.why_proc == "no types"
        slices = []
        while not found.passes:
            slices.append(found.read(0))
        rows = np.concatenate(slices)
        assert len(slices) >= 300 // 32
        assert rows[rows["inode"] == inode]["tgid"].tolist() == [pid]
        assert (rows["start_ns"] % TICK_NS == 0).all()
        assert set(rows[rows["tgid"] == pid]["comm"].tolist()) == {COMM}
    with pytest.raises(KernelError, match="no types"):
        Holders(compiler, HOLDERS_SOURCE.read_text())
