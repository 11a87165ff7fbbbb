"""However tracing ends, and whatever else measures beside it."""

from __future__ import annotations

import errno
import signal
import socket
from pathlib import Path

import numpy as np
import pytest

from app.lab.netns import inside
from bpf import features
from bpf.attach import attachment
from bpf.attach.attachment import Hook
from bpf.errors import KernelError
from probes.config.model import parse
from probes.control.builtin_probes import FLOW_PROBE
from probes.flow.options import FlowOptions
from probes.path.options import Order, PathOptions
from probes.path.records import ProbeOutcome
from probes.snapshot import Snapshot
from tests.bpf.tools import ended, python, xdp_id
from tests.probes.deck import link
from tests.probes.path.conftest import PORT, Host, MakeHost, outcomes_of, sent_by_hop
from tests.probes.path.wire.frames import PEER
from tests.probes.program.tools import PACKETS, TC_COUNTER
from tests.support.kernel import TC_MODE
from tests.support.runs import is_loaded
from tests.support.sight import becomes
from tests.support.veth import End, veth_pair

FAST = PathOptions(rate=100_000)


def end_of(host: Host) -> End:
    """The interface, to be changed."""
    name = host.network.wire.name
    return End(host.space, name, socket.if_nametoindex(name), "", "")


# The finder's own echo requests are packets of this host as any others.
_UDP_COUNTER = TC_COUNTER.replace(
    "    if (n)",
    "    u8 protocol = 0;\n    bpf_skb_load_bytes(ctx, 23, &protocol, 1);\n"
    "    if (n && protocol == 17)",
)


def counted(host: Host, probe: str) -> int:
    return sum(
        int(item.rows["value"].sum())
        for item in tuple(host.items)
        if isinstance(item, Snapshot) and item.probe == probe
    )


@pytest.mark.slow
@pytest.mark.parametrize("order", Order)
def test_other_probes_count_what_the_application_sent_and_no_probes(
    make_host: MakeHost, order: Order
) -> None:
    """The flow probe, and a user's on the same hook; started before path tracing, and after."""
    host = make_host(PathOptions(rate=100_000, order=order), ethernet=True)
    net, controller = host.network, host.controller
    name = net.wire.name
    direction = {
        "interface": name,
        "hook": "tc",
        "source": _UDP_COUNTER,
        "metrics": [PACKETS],
    }
    user = parse({"name": "before", "interval": 0.1, "egress": direction}, "test")
    controller.start(FLOW_PROBE, name, FlowOptions(interval=0.1))
    controller.add(user)
    flow = host.open(port=2000)
    before = host.sent
    host.send(0.05, flow)
    controller.trace(PEER[4])
    controller.add(user.model_copy(update={"name": "after"}))
    middle = host.sent
    host.send(0.2, flow)
    controller.untrace(PEER[4])
    end = host.sent
    host.send(0.05, flow)
    host.settle()
    controller.remove("after")
    controller.remove("before")
    controller.close()
    assert sum(net.probes.values()) > 50
    assert net.packets[PEER[4], 2000] == host.sent
    assert net.doubled == []
    flows = [
        item.rows
        for item in tuple(host.items)
        if isinstance(item, Snapshot) and item.probe == "flow"
    ]
    to_it = np.concatenate(flows)
    to_it = to_it[to_it["destination_port"] == PORT]
    assert to_it["packets"].sum() == host.sent
    assert to_it["bytes"].sum() == host.sent * (14 + 20 + 8 + 8)
    assert counted(host, "before") == host.sent - before
    assert counted(host, "after") == host.sent - middle > end - middle > 50


@pytest.mark.parametrize(
    ("ethernet", "ingress", "by_link", "modes"),
    [
        (True, None, True, {"tc ingress": TC_MODE, "tc egress": TC_MODE}),
        (True, Hook.XDP, True, {"xdp": "native", "tc egress": TC_MODE}),
        (True, Hook.TC_INGRESS, True, {"tc ingress": TC_MODE, "tc egress": TC_MODE}),
        (False, None, True, {"tc ingress": TC_MODE, "tc egress": TC_MODE}),
        (True, None, False, {"tc ingress": "clsact", "tc egress": "clsact"}),
        (True, Hook.XDP, False, {"xdp": "native", "tc egress": "clsact"}),
        (False, Hook.TC_INGRESS, False, {"tc ingress": "clsact", "tc egress": "clsact"}),
    ],
)
def test_it_works_on_every_kind_of_hook(
    make_host: MakeHost,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    ethernet: bool,
    ingress: Hook | None,
    by_link: bool,
    modes: dict[str, str],
) -> None:
    """S3.2, S3.16: and answers are kept from the host on each."""
    monkeypatch.setattr(attachment, "STATE", tmp_path / "state")
    host = make_host(FAST, ethernet=ethernet, ingress=ingress, by_link=by_link)
    host.controller.trace(PEER[4])
    assert {each.hook: each.mode for each in host.controller.hook_status()} == modes
    errors = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    host.sockets.append(errors)
    errors.setblocking(False)
    host.send(0.1, host.open())
    host.settle()
    host.controller.untrace(PEER[4])
    rows = host.rows()
    assert sent_by_hop(rows) == host.network.by_hop(PEER[4])
    assert outcomes_of(rows)[ProbeOutcome.ANSWERED] == host.network.answers > 20
    with pytest.raises(BlockingIOError):
        errors.recv(1)
    assert host.controller.hook_status() == ()


def test_what_is_in_flight_is_told_when_tracing_ends(make_host: MakeHost) -> None:
    """By a close as by an end of the probe; and nothing stays attached."""
    for end in ("untrace", "remove", "close"):
        host = make_host(FAST)
        host.network.delay = 60
        host.controller.trace(PEER[4])
        host.send(0.05, host.open())
        if end == "untrace":
            host.controller.untrace(PEER[4])
        elif end == "remove":
            host.controller.remove("path")
        else:
            host.controller.close()
        rows = host.rows()
        assert set(outcomes_of(rows)) == {ProbeOutcome.IN_FLIGHT}
        assert sent_by_hop(rows) == host.network.by_hop(PEER[4])
        assert len(rows) > 10
        assert not host.controller.hooks()
        assert host.controller.traced() == ()


def test_an_interface_that_is_down_or_goes_away(make_host: MakeHost) -> None:
    host = make_host(FAST)
    host.controller.trace(PEER[4])
    flow = host.open()
    host.send(0.05, flow)
    link(end_of(host), "set", state="down")
    assert becomes(lambda: "the interface is down" in host.told("warning"))
    host.send(0.05, flow)
    link(end_of(host), "set", state="up")
    assert becomes(lambda: "the interface is up" in host.told("info"))
    host.settle()
    before = host.network.by_hop(PEER[4]).total()
    host.send(0.05, flow)
    assert becomes(lambda: host.network.by_hop(PEER[4]).total() > before + 10)
    link(end_of(host), "del")
    assert becomes(lambda: host.info().state == "waits for interface wire")
    host.controller.untrace(PEER[4])
    rows = host.rows()
    outcomes = outcomes_of(rows)
    assert outcomes[ProbeOutcome.ANSWERED] == host.network.answers
    assert outcomes[ProbeOutcome.UNANSWERED] == outcomes[ProbeOutcome.OVERRUN] == 0
    assert not host.controller.hooks()


def test_what_a_full_queue_does_not_take_is_told_by_hop(make_host: MakeHost) -> None:
    """S3.10: except for probes that the network lost. Nobody reads what the interface sends."""
    host = make_host(PathOptions(rate=100_000, timeout=60))
    host.network.close()
    host.controller.trace(PEER[4])
    host.send(0.3, host.open(), pause=0)
    (traced,) = host.controller.traced()
    host.controller.untrace(PEER[4])
    outcomes = outcomes_of(host.rows())
    assert set(outcomes) <= {ProbeOutcome.DROPPED, ProbeOutcome.IN_FLIGHT}
    assert outcomes.total() >= traced.sent


KILLED = """
import sys, time
from bpf.machine import enter_network
from probes.control.builtin_probes import PATH_PROBE
from probes.control.controller import Controller
from bpf.syscall import prog_info

enter_network(int(sys.argv[1]))
deck = Controller()
deck.paths.configure("right")
deck.trace("10.95.0.1")
deck.replace(deck.probes()[0].config)
probe = deck._probe_of(PATH_PROBE)
ids = [p.program_id for p in deck.probes()[0].programs]
ids += [prog_info(point.chain.fd).id for point in deck.hooks()]
for loaded in (probe._current, probe._previous):
    for side in loaded.parts:
        ids += [one.info().id for one in (side.main, *side._steps)]
print(*ids, flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_killed_it_leaves_no_program() -> None:
    with veth_pair() as (_, right):
        with python(KILLED, str(right.ns), pass_fds=[right.ns]) as process:
            assert process.stdout
            ids = {int(word) for word in process.stdout.readline().split()}
            assert len(ids) == 2 + 2 * (2 + 9)
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert ended(process.pid, 1)
        assert becomes(lambda: not any(map(is_loaded, ids)))
        with inside(right.ns):
            assert xdp_id(right.ifindex) == 0


def test_a_kernel_without_atomic_exchange_is_named(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise OSError(errno.EINVAL, "BPF_STX uses reserved fields")

    monkeypatch.setattr(features, "try_atomic_exchange", refuse)
    host = make_host()
    with pytest.raises(KernelError, match="needs atomic exchanges in BPF programs") as caught:
        host.controller.trace(PEER[4])
    assert "5.12" in caught.value.hint
    assert not host.controller.hooks()
