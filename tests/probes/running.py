"""Programs that see only what a test runs through them, and frames to run."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from bpf.arrays import Array
from bpf.attach.attachment import Hook
from bpf.attach.chain import Chain, Stage
from bpf.attach.interface import AnyHook, EventHook
from bpf.compiler import Compiled, Compiler
from bpf.kernel_types import resolve_offsets
from bpf.maps.map import Map, reduce_cpus
from bpf.programs.program import Program
from bpf.syscall import prog_test_run
from probes.snapshot import LossReason

PASSED = {Hook.XDP: 2, Hook.TC_INGRESS: 0xFFFFFFFF, Hook.TC_EGRESS: 0xFFFFFFFF}
DROPPED = {Hook.XDP: 1, Hook.TC_INGRESS: 2, Hook.TC_EGRESS: 2}
TCP, UDP = socket.IPPROTO_TCP, socket.IPPROTO_UDP
SYN, ACK, FIN = 2, 16, 1


@dataclass(frozen=True)
class Frame:
    """An IPv4 packet in an Ethernet frame."""

    source: str = "192.0.2.1"
    destination: str = "198.51.100.7"
    protocol: int = UDP
    source_port: int = 1234
    destination_port: int = 53
    flags: int = 0
    tos: int = 0
    payload: int = 20

    def __bytes__(self) -> bytes:
        ports = struct.pack("!HH", self.source_port, self.destination_port)
        if self.protocol == TCP:
            inner = ports + struct.pack("!IIBBHHH", 0, 0, 5 << 4, self.flags, 0, 0, 0)
        elif self.protocol == UDP:
            inner = ports + struct.pack("!HH", 8 + self.payload, 0)
        else:
            inner = b""
        inner += bytes(self.payload)
        header = struct.pack(
            "!BBHHHBBH4s4s", 0x45, self.tos, 20 + len(inner), 0, 0, 64, self.protocol, 0,
            socket.inet_aton(self.source), socket.inet_aton(self.destination),
        )  # fmt: skip
        return bytes(12) + b"\x08\x00" + header + inner

    def __len__(self) -> int:
        return len(bytes(self))


ARP = bytes(12) + b"\x08\x06" + bytes(28)
IPV6 = bytes(12) + b"\x86\xdd\x60" + bytes(5) + b"\x11\x40" + bytes(40)
MALFORMED = bytes(12) + b"\x08\x00\x43" + bytes(40)


def sk_buff(
    *, ingress_ifindex: int = 0, ifindex: int = 0, wire_len: int = 0, segments: int = 0,
    segment_size: int = 0,
) -> bytes:  # fmt: skip
    """A `struct __sk_buff` for PROG_TEST_RUN, with `gso_segs` and `gso_size` of a large segment."""
    return struct.pack(
        "36x2I116x2I8xI12x", ingress_ifindex, ifindex, wire_len, segments, segment_size
    )


@dataclass
class Running:
    """A program in the kernel, attached to nothing."""

    hook: Hook
    compiled: Compiled
    program: Program
    fd: int
    """The descriptor to run: the program, or its chain."""

    def send(self, *frames: Frame | bytes, repeat: int = 1, context: bytes = b"") -> int:
        """Run frames through it; the last one's verdict."""
        verdict = -1
        for frame in frames:
            run = prog_test_run(self.fd, bytes(frame), repeat=repeat, context=context)
            verdict = run.verdict
        return verdict

    def open(self, name: str) -> Map:
        declared = self.compiled.maps[name]
        fd = os.dup(self.program.map_fd(name))
        return Map(fd, declared.spec, declared.key, declared.value)

    def entries(self, name: str, *, clear: bool = False) -> list[tuple[Any, Any]]:
        """Keys and values of a map, as Python has them; per-CPU values added up."""
        with self.open(name) as opened:
            entries = opened.read(clear=clear)
            values: Array = entries.values
            if opened.spec.percpu:
                values = reduce_cpus(values)
            return list(zip(entries.keys.tolist(), values.tolist(), strict=True))

    def losses(self) -> dict[str, tuple[int, int]]:
        """Packets and bytes that it could not use, by reason."""
        counted = dict(self.entries("losses"))
        return {reason.name: counted[reason] for reason in LossReason if counted[reason][0]}


@contextmanager
def running(
    compiler: Compiler, source: str, hook: Hook = Hook.XDP, *, function: str = ""
) -> Iterator[Running]:
    with ExitStack() as stack:
        compiled = stack.enter_context(compile_for(compiler, source, hook))
        name = function or next(iter(compiled.programs))
        program = stack.enter_context(closing(Program(compiled, name)))
        yield Running(hook, compiled, program, program.fd)


@contextmanager
def chained(
    compiler: Compiler, *sources: str, hook: Hook = Hook.XDP
) -> Iterator[tuple[Running, ...]]:
    """Programs in a row on one hook."""
    with ExitStack() as stack:
        chain = stack.enter_context(closing(Chain(hook.prog_type)))
        probes = []
        for source in sources:
            compiled = stack.enter_context(compile_for(compiler, source, hook))
            stage = Stage()
            name = next(iter(compiled.programs))
            program = stack.enter_context(closing(Program(compiled, name, next_fd=stage.next_fd)))
            chain.append(stage, program.fd)
            probes.append(Running(hook, compiled, program, chain.fd))
        yield tuple(probes)


def compile_for(compiler: Compiler, source: str, hook: AnyHook) -> Compiled:
    """As the controller compiles it, for an interface with Ethernet headers."""
    flags = [f"-D{hook.macro}=1", "-DLINK_ETHERNET=1"]
    if isinstance(hook, EventHook):
        source = resolve_offsets(source)
    return compiler.compile(source, hook.prog_type, attach_type=hook.attach_type, cflags=flags)


def ipv4(address: str) -> int:
    """As it stands in a key: network order, read by this machine."""
    return int(np.frombuffer(socket.inet_aton(address), "u4")[0])


def lengths(frames: Iterable[Frame]) -> int:
    return sum(len(frame) for frame in frames)
