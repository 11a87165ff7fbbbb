"""Helpers shared by tests of the kernel's edge."""

from __future__ import annotations

import ctypes as ct
import os
import re
import select
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from app.lab.netns import inside
from bpf import syscall
from bpf.abi import ProgType
from bpf.assembler import Assembler
from bpf.attach import rtnetlink
from bpf.programs.program import Program
from tests.support.nobody import become_nobody
from tests.support.veth import End

ROOT = Path(__file__).parents[2]
PACKET = bytes(64)

COUNTER = """\
#include "probe.h"

BPF_ARRAY(count, u64, 2);

static __always_inline void add(u32 index)
{
    u64 *packets = count.lookup(&index);
    if (packets)
        lock_xadd(packets, 1);
}

int counter(CONTEXT *ctx)
{
    u8 *frame = (void *)(long)ctx->data;

    add(0);
    if (frame + 34 <= (u8 *)(long)ctx->data_end && frame[12] == 8 && frame[13] == 0 &&
        frame[23] == 17)
        add(1);
    return VERDICT_PASS;
}
"""

LADDER = (
    "#define A0 1\n"
    + "\n".join(f"#define A{i} A{i - 1}+A{i - 1}" for i in range(1, 60))
    + "\n#if A59\n#endif\nint f(struct xdp_md *ctx) { return XDP_PASS; }\n"
)
"""Two to the 59th additions: clang is at work on it until something stops it."""


def read_u64(fd: int, index: int = 0) -> int:
    """An element of an array of u64."""
    value = syscall.map_lookup(fd, index.to_bytes(4, "little"), 8)
    assert value is not None
    return int.from_bytes(value, "little")


def packets(program: Program) -> int:
    """Packets counted by the COUNTER probe."""
    return read_u64(program.map_fd("count"))


def datagrams(program: Program) -> int:
    """IPv4 UDP among them: no neighbour discovery and the like."""
    return read_u64(program.map_fd("count"), 1)


def ok_program(name: str = "theirs") -> int:
    """A TC program that returns TC_ACT_OK, which keeps packets from the programs behind it."""
    code = Assembler()
    code.exit(0)
    return syscall.prog_load(code.assemble(), ProgType.SCHED_CLS, name)


def xdp_id(ifindex: int) -> int:
    """Return the id of the interface's XDP program; 0 without a program."""
    return next(iter(rtnetlink.link(ifindex).xdp_ids), 0)


def descriptor_numbers(label: str, *pids: int) -> set[int]:
    """Numbers after a label in /proc/PID/fdinfo of the processes, such as `prog_id`."""
    found = set()
    for pid in pids:
        for info in Path(f"/proc/{pid}/fdinfo").iterdir():
            with suppress(OSError):  # closed in this moment
                text = info.read_text()
                found |= {int(n) for n in re.findall(rf"^{label}:\s+(\d+)", text, re.M)}
    return found


def send(sender: End, receiver: End, count: int) -> int:
    """Send datagrams through the veth; returns how many arrived."""
    with inside(receiver.ns):
        inbox = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        inbox.bind((receiver.ipv4, 9))
        inbox.settimeout(3)
    with inside(sender.ns):
        outbox = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    arrived = 0
    with inbox, outbox:
        for number in range(count):
            outbox.sendto(number.to_bytes(4, "little"), (receiver.ipv4, 9))
            try:
                arrived += inbox.recv(4) == number.to_bytes(4, "little")
            except TimeoutError:
                break
    return arrived


def python(
    script: str, *args: str, pass_fds: Sequence[int] = (), nobody: bool = False
) -> subprocess.Popen[str]:
    """Start `script` in a Python that can import the project."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *args],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=pass_fds,
        preexec_fn=become_nobody if nobody else None,
    )


def ended(pid: int, timeout: float) -> bool:
    """Whether process `pid` is over, at the latest after `timeout` seconds."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(timeout * 1000))
    finally:
        os.close(fd)


def without_capability(number: int) -> None:
    """Take a capability, below 32, from the calling thread alone."""
    header, sets = (ct.c_uint32 * 2)(0x20080522, 0), (ct.c_uint32 * 6)()
    libc = ct.CDLL(None, use_errno=True)
    assert libc.capget(header, sets) == 0
    sets[0] &= ~(1 << number)
    assert libc.capset(header, sets) == 0
