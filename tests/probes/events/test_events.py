"""Probes on tracepoints and cgroups: counted exactly, swapped without a loss, never in the way."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bpf.attach.attachment import attach
from bpf.attach.chain import Chain
from bpf.attach.interface import CGROUP_EVENTS, EventHook, Interface
from bpf.compiler import CompileError, Compiler
from bpf.errors import KernelError, UsageError
from bpf.links import cgroup_query
from bpf.syscall import opened
from probes.config.model import ProbeConfig, load, parse
from probes.control import controller as controllers
from probes.control.controller import Controller
from probes.hooks import Hooks
from probes.program.loading import compile_probe
from probes.program.probe import ProgramProbe
from probes.snapshot import Snapshot
from tests.bpf.cgroups import cgroup, python_in
from tests.probes.program.tools import Loose
from tests.support.compiling import Shared

EXAMPLES = Path(__file__).parents[3] / "examples"
COUNTER = """
#include "event.h"
BPF_ARRAY(events, u64, 1);
int count(CONTEXT_STRUCT *ctx) {
    u32 zero = 0;
    u64 *n = events.lookup(&zero);
    if (n)
        lock_xadd(n, 1);
    return ANSWER;
}
"""
OPENER = """
import socket, sys
for line in sys.stdin:
    for _ in range(int(line)):
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close()
    print("done", flush=True)
"""


def config(folder: Path, event: str = "sock_create", answer: str = "0", **more: Any) -> ProbeConfig:
    contexts = {"sock": "bpf_sock", "post": "bpf_sock"}
    kind = contexts.get(event.split("_")[0], "bpf_sock_addr")
    if event == "sock_ops":
        kind = "bpf_sock_ops"
    # The verifier takes only 1 of some, and 0 or 1 of others.
    source = COUNTER.replace("CONTEXT_STRUCT", f"struct {kind}").replace("ANSWER", answer)
    side = {
        "hook": "cgroup",
        "attach": event,
        "cgroup": str(folder),
        "source": source,
        "metrics": [{"name": "events", "map": "events", "snapshot": True}],
    }
    return parse({"name": "probe", "interval": 0, "event": side, **more}, "test")


@pytest.fixture
def folder() -> Iterator[Path]:
    with cgroup() as folder:
        yield folder


class Attached(Loose):
    """Probes on real hooks."""

    def __init__(self, compiler: Compiler) -> None:
        super().__init__(compiler)
        self.hooks = Hooks(lambda point: point.attach())


@pytest.fixture
def attached(compiler: Compiler) -> Iterator[Attached]:
    with Attached(compiler) as attached:
        yield attached


def count(probe: ProgramProbe) -> int:
    """Events of the window that this ends."""
    (table,) = [item for item in probe.export() if isinstance(item, Snapshot)]
    return int(table.rows["value"].sum())


class Opener:
    """A process of a cgroup that opens datagram sockets; a refused one would end it."""

    def __init__(self, process: Any) -> None:
        self._process = process

    def begin(self, times: int) -> None:
        self._process.stdin.write(f"{times}\n")
        self._process.stdin.flush()

    def end(self) -> None:
        assert self._process.stdout.readline() == "done\n"


@pytest.fixture
def opener(folder: Path) -> Iterator[Opener]:
    with python_in(folder, OPENER) as process:
        yield Opener(process)


def test_every_event_is_counted_once_while_windows_and_generations_change(
    attached: Attached, folder: Path, opener: Opener
) -> None:
    """Also beside another probe on the same hook, which returns 0: that forbids nothing."""
    probe = attached.add(config(folder, answer="0"))
    beside = attached.add(config(folder, answer="1", name="beside"))
    total = 0
    opener.begin(3000)
    for _ in range(4):
        total += count(probe)
        with probe.compile(config(folder, answer="1")) as compiled:
            items = probe.replace(compiled)
        total += sum(int(item.rows["value"].sum()) for item in items if isinstance(item, Snapshot))
        _, items = probe.roll_back()
        total += sum(int(item.rows["value"].sum()) for item in items if isinstance(item, Snapshot))
    opener.end()
    assert total + count(probe) == 3000
    assert count(beside) == 3000
    (hook,) = attached.hooks.in_use()
    assert (hook.status.interface, hook.status.hook) == (str(folder), "cgroup sock_create")


def test_a_removed_probe_leaves_nothing_attached(
    attached: Attached, folder: Path, opener: Opener
) -> None:
    def ids() -> list[int]:
        with opened(os.open(folder, os.O_RDONLY)) as fd:
            return cgroup_query(fd, CGROUP_EVENTS["sock_create"][1])[0]

    probe = attached.add(config(folder))
    assert len(ids()) == 1
    attached.remove(probe)
    assert not ids()
    assert not attached.hooks.in_use()


@pytest.mark.parametrize("event", CGROUP_EVENTS)
def test_each_event_of_a_cgroup_loads_and_attaches(
    attached: Attached, folder: Path, event: str
) -> None:
    probe = attached.add(config(folder, event, "1"))
    assert count(probe) == 0
    (program,) = probe.programs()
    assert (program.hook, program.mode) == (f"cgroup {event}", "link")


def test_a_tracepoint_counts_the_events_of_the_kernel(attached: Attached) -> None:
    """States of the sockets of one connection, by the port of the listener."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        source = f"""
#include "event.h"
BPF_ARRAY(events, u64, 1);
int count(struct bpf_raw_tracepoint_args *ctx) {{
    u16 near = 0, far = 0;
    READ_KERNEL(near, ctx->args[0], KERNEL_OFFSET(sock_common, skc_num));
    READ_KERNEL(far, ctx->args[0], KERNEL_OFFSET(sock_common, skc_dport));
    u32 zero = 0;
    u64 *n = events.lookup(&zero);
    if (n && (near == {port} || far == bpf_htons({port})) && ctx->args[2] == 1)
        lock_xadd(n, 1);
    return 0;
}}
"""
        metric = {"name": "events", "map": "events", "snapshot": True}
        side = {"hook": "raw_tp", "tracepoint": "inet_sock_set_state", "source": source}
        event = {**side, "metrics": [metric]}
        probe = attached.add(parse({"name": "states", "interval": 0, "event": event}, "test"))
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", port)):
                server.accept()[0].close()
    assert count(probe) == 2 * 5  # both ends become established
    (program,) = probe.programs()
    assert (program.interface, program.hook) == ("inet_sock_set_state", "raw_tp")


@pytest.mark.parametrize(
    ("tracepoint", "body", "error", "text"),
    [
        ("no_such_event", "0", KernelError, "no tracepoint 'no_such_event'"),
        ("kfree_skb", "ctx->args[9]", UsageError, "reads more arguments than tracepoint kfree_skb"),
        ("kfree_skb", "KERNEL_OFFSET(sk_buff, gone)", KernelError, "no sk_buff.gone"),
        ("kfree_skb", "gone", CompileError, "undeclared"),
    ],
)
def test_a_program_that_does_not_fit_is_refused(
    compiler: Compiler, tracepoint: str, body: str, error: type[Exception], text: str
) -> None:
    source = f"int f(struct bpf_raw_tracepoint_args *ctx) {{ return {body}; }}"
    side = {"hook": "raw_tp", "tracepoint": tracepoint, "source": source}
    with pytest.raises(error, match=text):
        compile_probe(compiler, parse({"name": "x", "event": side}, "test"), Hooks(print))


def test_a_context_of_packets_is_refused(compiler: Compiler, folder: Path) -> None:
    side = {
        "hook": "cgroup",
        "attach": "connect4",
        "source": "int f(struct xdp_md *ctx) { return 1; }",
    }
    with pytest.raises(CompileError, match=r"takes a struct xdp_md, and .* struct bpf_sock_addr"):
        compile_probe(compiler, parse({"name": "x", "event": side}, "test"), Hooks(print))


def test_whatever_a_chain_s_program_returns_the_socket_is_allowed(
    compiler: Compiler, folder: Path, opener: Opener
) -> None:
    """Also of an empty chain: the dispatcher alone."""
    hook = EventHook("sock_create", str(folder))
    with closing(Chain(hook.prog_type, hook.attach_type)) as chain:
        attachment = attach(hook, chain.fd, Interface(hook.place, 0, ethernet=False))
        opener.begin(1)
        opener.end()
        attachment.close()


def test_a_controller_runs_the_examples(
    compiler: Compiler, folder: Path, opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controllers, "Compiler", lambda: Shared(compiler))
    example = load(EXAMPLES / "sockets-created.toml").every(0)
    assert example.event is not None
    event = example.event.model_copy(update={"cgroup": str(folder)})
    with Controller() as controller:
        controller.add(example.model_copy(update={"event": event}))
        controller.add(load(EXAMPLES / "retransmissions.toml").every(0))
        opener.begin(7)
        opener.end()
        (table,) = controller.export(example.name)
        (row,) = table.rows
        assert (row["key"]["protocol"], row["value"]) == (17, 7)
        assert (table.side, table.interface) == ("event", str(folder))
        assert controller.maps(example.name)
        controller.replace(example.model_copy(update={"event": event}))
        controller.roll_back(example.name)
        controller.remove(example.name)
        assert [info.name for info in controller.probes()] == ["retransmissions"]
