"""A packet generator inside the kernel: frames that really travel, millions a second.

BPF_PROG_TEST_RUN with BPF_F_TEST_XDP_LIVE_FRAMES runs an XDP program that gives each frame a flow
and redirects it into a veth (Documentation/bpf/bpf_prog_run.rst). No pktgen is needed.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv6Address
from typing import Self

from app.lab import netns
from bpf.abi import LIVE_FRAMES, ProgType
from bpf.compiler import Compiler
from bpf.machine import possible_cpus
from bpf.programs.program import Program
from bpf.syscall import map_lookup, map_update, prog_test_run
from tests.support.veth import End

SIZE = {4: 60, 6: 78}
"""Bytes of a frame, by IP version."""
_CHUNK = 2_000_000  # a call costs 20 ms plus its frames
_BATCH = 64

_SOURCE = """
#include <uapi/linux/bpf.h>
#include <linux/types.h>

BPF_PERCPU_ARRAY(sequence, u64, 1);

int
generate(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data;
    void *end = (void *)(long)ctx->data_end;
    if (data + SIZE > end)
        return XDP_DROP;
    int zero = 0;
    u64 *next = sequence.lookup(&zero);
    if (!next)
        return XDP_DROP;
    u64 n = (*next)++;
    u64 flow = FLOWS ? ((u64)(u32)((u32)n * 2654435761U) * FLOWS) >> 32 : n;
    *(u32 *)(data + ADDRESS_AT) = bpf_htonl(0x0a5f4000u + (u32)(flow >> 14));
    *(u16 *)(data + PORT_AT) = bpf_htons((u16)(1024 + (flow & 16383)));
    return bpf_redirect(IFINDEX, 0);
}
"""


def frame(version: int) -> bytes:
    """A UDP frame; the generator sets the end of its source address and its source port."""
    mac = bytes.fromhex("020000000001 020000000002")
    size = SIZE[version]
    if version == 4:
        length = size - 14
        ip = struct.pack(
            "!BBHHHBBH4s4s", 0x45, 0, length, 0, 0, 64, 17, 0, bytes(4), bytes([10, 95, 1, 2])
        )
        head = mac + b"\x08\x00" + ip + struct.pack("!HHHH", 0, 2000, length - 20, 0)
    else:
        length = size - 54
        ip = struct.pack("!IHBB", 6 << 28, length, 17, 64)
        ip += IPv6Address("fd95::").packed + IPv6Address("fd95::1").packed
        head = mac + b"\x86\xdd" + ip + struct.pack("!HHHH", 0, 2000, length, 0)
    return head.ljust(size, b"x")


class Generator:
    """Sends frames out of an interface of a namespace, from one CPU.

    `flows` is the number of different flows, picked at random; 0: every frame is a new flow, which
    continues from one call of `send` to the next, beginning at flow number `start`.
    """

    def __init__(
        self,
        compiler: Compiler,
        end: End,
        *,
        version: int = 4,
        flows: int = 25_000,
        cpu: int = 0,
        start: int = 0,
    ) -> None:
        self.frame = frame(version)
        self.seconds = 0.0
        """Time spent sending so far."""
        self._end = end
        self._cpu = cpu
        flags = {
            "SIZE": len(self.frame),
            "FLOWS": f"{flows}ULL",
            "ADDRESS_AT": 26 if version == 4 else 34,
            "PORT_AT": 34 if version == 4 else 54,
            "IFINDEX": end.ifindex,
        }
        with compiler.compile(
            _SOURCE,
            ProgType.XDP,
            name="generator.c",
            cflags=[f"-D{k}={v}" for k, v in flags.items()],
        ) as compiled:
            self._program = Program(compiled, "generate")
        first = start.to_bytes(8, "little") * possible_cpus()
        map_update(self._program.map_fd("sequence"), bytes(4), first)
        self._start = start

    def send(self, count: int) -> None:
        """Send `count` frames; returns when all are on their way."""
        worker = threading.Thread(target=self._send, args=(count,))
        worker.start()
        worker.join()

    @contextmanager
    def streaming(self, rate: float = 0) -> Iterator[None]:
        """Send frames until the block ends: `rate` frames a second, or without a pause if it is
        0."""
        done = threading.Event()
        started = time.perf_counter()

        def send() -> None:
            sent = 0
            while not done.is_set():
                count = int((time.perf_counter() - started) * rate) - sent if rate else _CHUNK
                self._send(count)
                sent += count
                done.wait(0.005 if rate else 0)

        worker = threading.Thread(target=send)
        worker.start()
        try:
            yield
        finally:
            done.set()
            worker.join()

    def _send(self, count: int) -> None:
        os.sched_setaffinity(0, {self._cpu})
        with netns.inside(self._end.ns):
            started = time.perf_counter()
            while count > 0:
                chunk = min(count, _CHUNK)
                prog_test_run(
                    self._program.fd, self.frame, repeat=chunk, flags=LIVE_FRAMES, batch_size=_BATCH
                )
                count -= chunk
            self.seconds += time.perf_counter() - started

    def sent(self) -> int:
        """Frames that were given a flow so far, by the program's own count."""
        values = map_lookup(self._program.map_fd("sequence"), bytes(4), 8 * possible_cpus())
        assert values is not None
        counts: tuple[int, ...] = struct.unpack(f"{possible_cpus()}Q", values)
        return sum(counts) - self._start * len(counts)

    def close(self) -> None:
        self._program.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
