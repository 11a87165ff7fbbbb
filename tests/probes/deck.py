"""A controller on one end of a veth, for tests, and helpers that act on it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.lab.netns import inside, open_host
from bpf.arrays import Array
from bpf.attach.attachment import Hook
from bpf.compiler import Compiler
from bpf.syscall import prog_info, prog_test_run
from probes.config.model import ProbeConfig
from probes.control import controller as controllers
from probes.control.controller import Controller
from probes.snapshot import Event, Item, Snapshot
from tests.bpf.tools import send, xdp_id
from tests.probes.flow.test_windows import silent_pair
from tests.probes.program.tools import PACKETS, config
from tests.support.compiling import Shared
from tests.support.veth import End

UDP = """\
BPF_ARRAY(packets, u64, 1);

int count(struct xdp_md *ctx)
{
    u8 *frame = (void *)(long)ctx->data;
    u32 zero = 0;
    u64 *n = packets.lookup(&zero);

    if (frame + 34 > (u8 *)(long)ctx->data_end || frame[12] != 8 || frame[13] || frame[23] != 17)
        return XDP_PASS;
    if (n)
        lock_xadd(n, 1);
    return XDP_PASS;
}
"""
DEAD = UDP.replace("lock_xadd(n, 1)", "return XDP_PASS")


DROPS = UDP.replace("lock_xadd(n, 1)", "return XDP_DROP")


class Deck:
    """A controller on one end of a veth, its published items, and both ends."""

    def __init__(self, left: End, right: End) -> None:
        self.left, self.right = left, right
        self.items: list[Item] = []
        self.controller = Controller()
        self.controller.listen(self.items.append)

    def config(self, source: str = UDP, *metrics: dict[str, Any], **more: Any) -> ProbeConfig:
        return config(source, *(metrics or (PACKETS,)), **{"interface": "right"} | more)

    def fd(self, hook: Hook = Hook.XDP) -> int:
        """A dispatcher to run: its packets take the same way as the interface's."""
        (found,) = (p.chain.fd for p in self.controller.hooks() if p.hook is hook)
        return found

    def run(self, repeat: int, frame: bytes = bytes(64)) -> None:
        prog_test_run(self.fd(), frame, repeat=repeat)

    def receive(self, count: int) -> None:
        """Datagrams that really come over the veth."""
        assert send(self.left, self.right, count) == count

    def said(self, severity: str, source: str = "probe") -> list[str]:
        return [
            item.text
            for item in tuple(self.items)
            if isinstance(item, Event) and (item.severity, item.source) == (severity, source)
        ]

    def info(self, name: str = "probe") -> Any:
        (found,) = (info for info in self.controller.probes() if info.name == name)
        return found

    def xdp(self) -> int:
        return xdp_id(self.right.ifindex)


def published(deck: Deck, probe: str, table: str = "") -> Array:
    """Rows of all windows of one table."""
    return np.concatenate(
        [
            item.rows
            for item in tuple(deck.items)
            if isinstance(item, Snapshot) and (item.probe, item.metric) == (probe, table)
        ]
    )


@contextmanager
def open_deck(compiler: Compiler) -> Iterator[Deck]:
    with (
        pytest.MonkeyPatch.context() as patch,
        silent_pair() as (left, right),
        inside(right.ns),
    ):
        patch.setattr(controllers, "Compiler", lambda: Shared(compiler))
        made = Deck(left, right)
        with made.controller:
            yield made
        assert not made.controller.hooks()


@pytest.fixture
def deck(compiler: Compiler) -> Iterator[Deck]:
    with open_deck(compiler) as made:
        yield made


def dispatcher(deck: Deck) -> int:
    return prog_info(deck.fd()).id


def polls() -> bool:
    """Whether a poller's thread has opened its epoll descriptor."""
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the listing's own descriptor
            if fd.readlink().name == "anon_inode:[eventpoll]":
                return True
    return False


def udp() -> bytes:
    return bytes(12) + b"\x08\x00" + bytes(9) + b"\x11" + bytes(40)


@contextmanager
def arriving(deck: Deck) -> Iterator[None]:
    """Send datagrams over the veth until the block ends."""
    stop = threading.Event()

    def receive() -> None:
        while not stop.is_set():
            send(deck.left, deck.right, 5)

    thread = threading.Thread(target=receive)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def link(end: End, command: str, **what: Any) -> None:
    """Change the interface."""

    async def change() -> None:
        host = await open_host(end.ns)
        await host.link(command, index=end.ifindex, **what)
        host.close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, change()).result()
