"""The API of a running controller, with packets: every packet is counted once."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from app.api.address import Remote
from app.api.client import Client, RemoteController
from app.api.server.listener import ApiListener
from app.api.sockets import Api
from app.lab import netns
from bpf.compiler import CompileError
from bpf.errors import UsageError
from probes.config.model import ProbeConfig, dump, parse
from probes.control.controller import Controller
from probes.snapshot import Snapshot
from tests.app.api.test_remote import Heard
from tests.support.descriptors import open_fds
from tests.support.sight import becomes
from tests.support.veth import veth_pair

# Local experimental: nobody else sends it.
ETHERTYPE = 0x88B5
COUNTER = """\
BPF_ARRAY(packets, u64, 1);
MORE
int count(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data;
    int zero = 0;

    if (data + 14 > (void *)(long)ctx->data_end)
        return XDP_PASS;
    if (*(u16 *)(data + 12) != 0xb588)
        return XDP_PASS;
    u64 *count = packets.lookup(&zero);
    if (count)
        __sync_fetch_and_add(count, 1);
    return XDP_PASS;
}
"""


def counter(more: str = "") -> ProbeConfig:
    metric = {"name": "packets", "map": "packets", "snapshot": True}
    source = COUNTER.replace("MORE", more)
    direction = {"interface": "left", "source": source, "metrics": [metric]}
    return parse({"name": "counter", "interval": 0, "ingress": direction}, "counter.toml")


@dataclass(frozen=True, slots=True)
class Wire:
    """A controller at one end of a cable, served; and the other end, to send from."""

    remote: Remote
    controller: Controller
    sender: socket.socket

    def send(self, packets: int) -> None:
        frame = b"\xff" * 6 + bytes(6) + ETHERTYPE.to_bytes(2, "big") + bytes(46)
        for _ in range(packets):
            self.sender.send(frame)


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    path = str(tmp_path / "api.sock")
    with contextlib.ExitStack() as stack:
        left, right = stack.enter_context(veth_pair())
        with netns.inside(right.ns):
            sender = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
            sender.bind((right.ifname, 0))
        with netns.inside(left.ns):
            controller = stack.enter_context(Controller())
            stack.enter_context(ApiListener(controller, Api("1", socket=path)))
        yield Wire(Remote(f"unix:{path}"), controller, sender)


def counted(tables: list[Snapshot]) -> int:
    return sum(int(table.rows["value"].sum()) for table in tables)


@pytest.mark.slow
def test_exports_and_replacements_by_many_count_each_packet_once(wire: Wire) -> None:
    """S1.23, S1.26: each window's number is given once, and all packets are in the windows."""
    exports, replacements, sent = 25, 10, 0
    windows: list[int] = []
    done = threading.Event()

    def export() -> None:
        with contextlib.closing(Client(wire.remote)) as client:
            for _ in range(exports):
                windows.extend(table.window for table in client.export("counter"))

    def replace() -> None:
        with contextlib.closing(Client(wire.remote)) as client:
            for number in range(replacements):
                client.replace(counter(f"BPF_HASH(extra_{number}, u32, u64, {8 << number % 4});"))

    def send() -> None:
        nonlocal sent
        while not done.is_set():
            wire.send(100)
            sent += 100

    with RemoteController(wire.remote) as plane:
        heard = Heard(plane)
        plane.add(counter())
        sending = threading.Thread(target=send)
        working = [threading.Thread(target=export) for _ in range(4)]
        working.append(threading.Thread(target=replace))
        for thread in (sending, *working):
            thread.start()
        for thread in working:
            thread.join()
        done.set()
        sending.join()
        assert plane.probes()[0].generation == 1 + replacements
        plane.remove("counter")
        assert becomes(lambda: counted(heard.snapshots) >= sent)
        assert counted(heard.snapshots) == sent
    numbers = [table.window for table in heard.snapshots]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    assert max(Counter(windows).values()) == 1
    assert len(windows) == 4 * exports


def test_a_source_that_is_refused_leaves_what_runs_and_says_where(wire: Wire) -> None:
    """S1.6."""
    with contextlib.closing(Client(wire.remote)) as client:
        client.add(counter())
        wire.send(7)
        for source, line, words in (
            (COUNTER.replace("MORE", "int oops(;"), 2, "expected"),
            (
                COUNTER.replace("MORE", "").replace("> (void *)(long)ctx->data_end", "== data"),
                10,
                "",
            ),
            ("\0\1", 0, ""),
        ):
            config = counter()
            assert config.ingress is not None
            direction = config.ingress.model_copy(update={"source": source})
            with pytest.raises(UsageError) as caught:
                client.replace(config.model_copy(update={"ingress": direction}))
            if line:
                assert isinstance(caught.value, CompileError)
                errors = [d for d in caught.value.diagnostics if d.severity == "error"]
                assert errors[0].line == line
                assert words in errors[0].text
        wire.send(5)
        assert client.probes()[0].generation == 1
        assert counted(list(client.export("counter"))) == 12


@pytest.mark.slow
def test_requests_leave_no_programs_maps_or_descriptors(wire: Wire) -> None:
    """Descriptors are counted before and after."""

    def held() -> tuple[int, Counter[str]]:
        kinds: Counter[str] = Counter()
        total = open_fds()
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                kinds[os.readlink(f"/proc/self/fd/{name}")] += 1
        return total, kinds

    with contextlib.closing(Client(wire.remote)) as client:

        def once() -> None:
            client.add(counter())
            client.check(counter("BPF_HASH(other, u32, u64);"))
            client.replace(counter("BPF_HASH(more, u32, u64);"))
            client.cost("counter")
            client.roll_back("counter")
            broken = counter("int oops(;")
            for call in (client.check, client.replace):
                with pytest.raises(CompileError):
                    call(broken)
            client.export("counter")
            assert dump(client.config("counter"))["name"] == "counter"
            client.remove("counter")

        once()
        before = held()
        for _ in range(3):
            once()
        after = held()
        assert after[0] <= before[0], after[1] - before[1]
