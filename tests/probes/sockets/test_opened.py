"""Events of processes that open and close sockets, by programs on a cgroup of a test's own."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bpf.compiler import CompileError, Compiler
from bpf.errors import KernelError, UsageError
from probes.sockets import holders
from probes.sockets.holders import CLOSED, EVENT, OPENED, RING_BYTES, SOURCE, SocketEvents
from tests.bpf.cgroups import cgroup, python_in

THREAD = """
import os, socket, threading, sys
open("/proc/self/comm", "w").write("process")
def work():
    open(f"/proc/self/task/{threading.get_native_id()}/comm", "w").write("thread")
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as each:
        cookie = int.from_bytes(each.getsockopt(socket.SOL_SOCKET, 57, 8), "little")
    print(cookie, flush=True)
    sys.stdin.read()
thread = threading.Thread(target=work)
thread.start()
"""
"""Prints the cookie of a socket that a thread opens and closes, then waits."""
MANY = """
import socket, sys
kinds = [(2, 1), (2, 2), (10, 1), (10, 2), (2, 3, 1), (10, 3, 58)]
for _ in range(int(sys.stdin.readline())):
    for kind in kinds:
        socket.socket(*kind).close()
print("done", flush=True)
"""
"""Opens sockets of all kinds; a refused one would end it."""
KINDS = 6


@pytest.fixture
def folder() -> Iterator[Path]:
    with cgroup() as folder:
        yield folder


@pytest.fixture
def events(compiler: Compiler, folder: Path) -> Iterator[SocketEvents]:
    with SocketEvents(compiler, folder) as events:
        yield events


def open_many(folder: Path, times: int) -> None:
    """Open and close `KINDS` sockets some times, in a process of the folder."""
    with python_in(folder, MANY) as process:
        assert process.communicate(f"{times}\n", timeout=30)[0] == "done\n"


def test_an_event_tells_the_process_and_not_the_thread(events: SocketEvents, folder: Path) -> None:
    socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).close()  # outside the folder: no event
    with python_in(folder, THREAD) as process:
        assert process.stdout is not None
        cookie = int(process.stdout.readline())
        stat = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        made, closed = rows = events.read()
        assert (rows["comm"] == b"process").all()
        assert (rows["tgid"] == process.pid).all()
        assert (rows["start_ns"] == int(stat[19]) * holders.TICK_NS).all()
        assert (rows["netns"] == os.stat(f"/proc/{process.pid}/ns/net").st_ino).all()
    assert (rows["uid"] == os.getuid()).all()
    assert (rows["cgroup"] == folder.stat().st_ino).all()
    assert rows[["family", "protocol"]].tolist() == [(10, 17)] * 2
    assert (rows["cookie"] == cookie).all()
    assert (made["what"], closed["what"]) == (OPENED, CLOSED)
    assert made["time_ns"] < closed["time_ns"]
    assert events.lost == 0


def test_a_full_ring_forbids_nothing_and_every_lost_event_is_counted(
    events: SocketEvents, folder: Path
) -> None:
    times = RING_BYTES // (EVENT.itemsize + 8) // 2 // KINDS + 500
    open_many(folder, times)
    read = len(events.read())
    assert read + events.lost == 2 * KINDS * times
    assert events.lost > 0
    open_many(folder, 1)
    assert len(events.read()) == 2 * KINDS


def test_no_event_is_lost_or_doubled_while_the_programs_change(
    compiler: Compiler, events: SocketEvents, folder: Path
) -> None:
    source = SOURCE.read_text()
    edited = source.replace("event->user = ", "event->user = 7 + ")
    with (
        events.compile(compiler, edited) as other,
        events.compile(compiler, source) as same,
        python_in(folder, MANY) as process,
    ):
        assert process.stdin is not None
        process.stdin.write("1000\n")
        process.stdin.flush()
        parts = []
        while process.poll() is None:
            for compiled in (other, same):
                events.become(events.load(compiled))
                parts.append(events.read())
        parts.append(events.read())
    rows = np.concatenate(parts)
    assert len(rows) == len(np.unique(rows[["cookie", "what"]])) == 2 * KINDS * 1000
    assert set(rows["uid"].tolist()) == {os.getuid(), os.getuid() + 7}


@pytest.mark.parametrize("name", ["socket_closed", "lost"])
def test_an_edited_source_must_keep_its_programs_and_maps(compiler: Compiler, name: str) -> None:
    with pytest.raises(UsageError, match=f"the source must have {name}"):
        SocketEvents.compile(compiler, SOURCE.read_text().replace(name, f"{name}_not"))


def test_no_source_can_forbid_sockets(
    compiler: Compiler, events: SocketEvents, folder: Path
) -> None:
    """An edited source that returns 0 would forbid sockets to the whole host."""
    forbidding = SOURCE.read_text().replace("#define ALLOW 1", "#define ALLOW 0")
    with events.compile(compiler, forbidding) as compiled:
        events.become(events.load(compiled))
    open_many(folder, 10)
    assert len(events.read()) == 2 * KINDS * 10


def test_events_of_another_size_are_refused_and_never_stop_later_ones(
    compiler: Compiler, events: SocketEvents, folder: Path
) -> None:
    source = SOURCE.read_text()
    longer = source.replace("char command[16];", "char command[32];")
    with pytest.raises(CompileError, match="probedeck reads events of 64 bytes"):
        events.compile(compiler, longer)
    longer = re.sub("_Static_assert.*", "", longer)
    with events.compile(compiler, longer) as other, events.compile(compiler, source) as same:
        events.become(events.load(other))
        open_many(folder, 1)
        events.become(events.load(same))
        open_many(folder, 1)
        assert (len(events.read()), events.lost) == (0, 1)
        open_many(folder, 1)
        assert (len(events.read()), events.lost) == (2 * KINDS, 1)


def test_without_the_kernel_s_types_the_thread_is_told(
    compiler: Compiler, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> Any:
        raise KernelError("no types")

    monkeypatch.setattr(holders, "kernel_types", refuse)
    with SocketEvents(compiler, folder) as events, python_in(folder, THREAD) as process:
        assert process.stdout is not None
        process.stdout.readline()
        rows = events.read()
    assert (rows["comm"] == b"thread").all()
    assert (rows["tgid"] == process.pid).all()
    assert not rows["netns"].any()
