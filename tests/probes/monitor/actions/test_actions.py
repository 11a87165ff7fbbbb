"""Actions in the kernel: verdicts, rates, limits, and what they tell."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from app.lab import netns
from bpf.attach.interface import AnyHook, Hook
from bpf.compiler import Compiler
from bpf.errors import UsageError
from bpf.syscall import prog_test_run
from probes.flow.probe import FlowProbe
from probes.flow.records import FlowDirection, TableSizes
from probes.monitor.actions.control_connections import control_connections
from probes.monitor.actions.programs import MOST_ACTIONS
from probes.monitor.actions.state import ActionInfo, ActionState
from probes.monitor.finding import Finding
from probes.monitor.options import MonitorOptions
from probes.snapshot import Event
from tests.probes.monitor.bed import Bed, frame, ping, tcp, udp
from tests.support.veth import veth_pair

VERDICTS: dict[AnyHook, tuple[int, int]] = {Hook.XDP: (2, 1), Hook.TC_INGRESS: (0xFFFFFFFF, 2)}
"""Pass and drop."""


@pytest.fixture(scope="module", params=list(VERDICTS))
def shared(compiler: Compiler, request: pytest.FixtureRequest) -> Iterator[Bed]:
    with Bed(compiler, MonitorOptions(ingress=request.param, allow_actions=True)) as made:
        yield made


@pytest.fixture
def bed(shared: Bed, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bed]:
    monkeypatch.setattr(shared.monitor, "find", shared.monitor.find)
    yield shared
    shared.reset()


def passes(bed: Bed, packet: bytes) -> bool:
    found, (passed, dropped) = bed.run(packet), VERDICTS[bed.monitor.points()["ingress"].hook]
    assert found in (passed, dropped)
    return found == passed


def info(bed: Bed, name: str = "a") -> ActionInfo:
    found = bed.monitor.actions.info(name)
    assert found
    return found


def told(bed: Bed) -> list[str]:
    """Texts of the events of a window that so ends."""
    return [item.text for item in bed.monitor.export() if isinstance(item, Event)]


def test_a_drop_takes_the_selected_packets_and_every_probe_has_counted_them(bed: Bed) -> None:
    bed.set("a: always -> drop on udp dport:53")
    assert not passes(bed, frame())
    assert passes(bed, frame(layer=udp(dport=54)))
    assert passes(bed, frame(layer=tcp(dport=53)))
    assert not passes(bed, frame("2001:db8::1", "2001:db8::2", udp()))
    found = info(bed)
    tables = bed.window()
    assert tables["metrics"]["packets"] == [4]
    assert tables["policies"]["acted"] == [2]
    assert (found.state, info(bed).packets) == (ActionState.ACTS, 2)
    bed.monitor.remove_policy("a")
    assert passes(bed, frame())


def test_a_probe_that_starts_later_counts_dropped_packets(bed: Bed) -> None:
    bed.set("a: always -> drop on udp dport:53")
    hook = bed.monitor.points()["ingress"].hook
    assert isinstance(hook, Hook)
    where = [(hook, FlowDirection.INGRESS)]
    lo, sizes = bed.hooks.find("lo"), TableSizes.least()
    with closing(FlowProbe(bed.compiler, lo, where, bed.hooks, sizes=sizes)) as later:
        assert not passes(bed, frame())
        assert later.poll().rows["packets"].tolist() == [1]


def test_an_action_begins_and_ends_with_its_policy(bed: Bed) -> None:
    bed.set("a: udp_packets > 10 until udp_packets < 1 -> drop on udp dport:53")
    for _ in range(11):
        assert passes(bed, frame())
    fired, begun = told(bed)
    assert "fired" in fired
    assert begun == "policy a drops: incoming packets of udp dport:53, for 5m00s at most"
    assert not passes(bed, frame())
    bed.window()
    *_, ended = told(bed)
    assert ended.startswith("policy a dropped 1 packet, 100 % of the traffic in ")
    assert ended.endswith(": the policy ended")
    assert passes(bed, frame())
    assert info(bed).state is ActionState.WAITS


@pytest.mark.parametrize("by", ["word", "permission"])
def test_a_dry_run_counts_what_it_would_drop_and_drops_nothing(compiler: Compiler, by: str) -> None:
    options = MonitorOptions(ingress=Hook.XDP, allow_actions=by == "word")
    with Bed(compiler, options) as bed:
        bed.set(f"a: always -> {'dry ' * (by == 'word')}drop on udp dport:53")
        for _ in range(20):
            assert passes(bed, frame())
        assert (bed.window()["policies"]["acted"], info(bed).packets) == ([20], 20)
        assert info(bed).state is ActionState.DRY
        bed.monitor.remove_policy("a")
        *_, ended = told(bed)
        assert ended.startswith("policy a would have dropped 20 packets, 100 % of the traffic in ")


def test_without_the_permission_one_line_says_that_nothing_acts(compiler: Compiler) -> None:
    with Bed(compiler, MonitorOptions(ingress=Hook.XDP)) as bed:
        bed.set("a: always -> drop on udp dport:53")
        warning, begun = told(bed)[-2:]
        assert warning == (
            "policy a only counts the packets that it would act on: actions need --allow-actions"
        )
        assert begun.startswith("policy a is a dry run: it drops: incoming packets")


@pytest.mark.timing
def test_a_limit_is_exact_on_several_cpus(bed: Bed) -> None:
    """No packet beyond the rate and 100 ms of packets, which may pass at once."""
    bed.set("a: always -> limit 2kpps on udp dport:53")
    point = bed.monitor.points()["ingress"]
    packet, over = frame(), threading.Event()

    def send(cpu: int) -> None:
        os.sched_setaffinity(0, {cpu})
        while not over.is_set():
            prog_test_run(point.chain.fd, packet, repeat=2000)

    threads = [threading.Thread(target=send, args=(cpu,)) for cpu in os.sched_getaffinity(0)]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    time.sleep(1.0)
    over.set()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - begun
    row = bed.window()["policies"][0]
    passed = int(bed.monitor.actions._programs.counts()[0].seen - row["acted"])
    assert row["acted"] > 20_000
    assert 1500 < passed <= 2000 * (seconds + 0.1) + 1


def test_an_action_ends_after_its_time_in_the_kernel_and_in_the_events(bed: Bed) -> None:
    bed.set("a: always -> drop for 300ms on udp dport:53")
    assert not passes(bed, frame())
    time.sleep(0.32)
    assert passes(bed, frame())  # no window has ended
    assert any(text.endswith("its time is over") for text in told(bed))
    assert (info(bed).state, info(bed).cause) == (ActionState.ENDED, "its time is over")
    assert passes(bed, frame())


@pytest.mark.parametrize(
    ("then", "ends"),
    [
        ("drop on udp", True),
        ("drop share 100% on udp", False),
        ("drop on udp dport:53", False),
        ("drop on udp src:192.0.2.0/24", False),
        ("drop on udp !dport:80", True),
        ("drop on src:128.0.0.0/1", True),
        ("drop share 40% on udp dport:53", True),
    ],
)
def test_an_action_ends_beyond_its_share(bed: Bed, then: str, ends: bool) -> None:
    """Half of the traffic is the usual share of a selection that names no host and no port."""
    bed.set(f"a: always -> {then}")
    for _ in range(120):
        bed.run(frame())
    for _ in range(80):
        bed.run(frame("10.0.0.1", layer=tcp()))
    texts = told(bed)
    assert (info(bed).state is ActionState.ENDED) == ends
    most = "40.0 %" if "40%" in then else "50.0 %"
    share = f"60.0 % of a window is more than its share of {most}"
    assert any(text.endswith(share) for text in texts) == ends
    assert passes(bed, frame()) == ends


CULPRIT = "a: udp_packets > 10 until udp_packets < 1 -> {} culprit on udp"


@pytest.mark.parametrize(
    ("then", "finding", "dropped", "said"),
    [
        ("drop", "proto:udp src:192.0.2.1", {"192.0.2.1"}, "(udp) proto:udp src:192.0.2.1, for"),
        ("drop", "src:192.0.2.1,192.0.2.2", {"192.0.2.1", "192.0.2.2"}, "policy a drops"),
        ("drop", "src:192.0.2.0/24", set(), "no sender stands out"),
        ("drop", "proto:udp dst:198.51.100.2 dport:53", set(), "no sender stands out"),
        ("dry drop", "src:192.0.2.1", set(), "policy a is a dry run: it drops"),
        ("limit 1pps", "proto:udp dst:198.51.100.2", {"192.0.2.1", "192.0.2.2", "192.0.2.3"},
         "policy a limits to 1 packets/s"),
        ("limit 1pps", "proto:udp", set(), "no address and no port stands out"),
        ("drop", "", set(), "who is unknown"),
    ],
)  # fmt: skip
def test_an_action_on_the_culprit_takes_the_packets_of_the_finding(
    bed: Bed, then: str, finding: str, dropped: set[str], said: str
) -> None:
    sources = ["192.0.2.1", "192.0.2.2", "192.0.2.3"]
    bed.monitor.find = lambda begun, start_ns, end_ns: {
        each.policy.name: Finding("who", finding) for each in begun
    }
    bed.set(CULPRIT.format(then))
    assert all(passes(bed, frame(each)) for each in sources * 4)
    texts = told(bed)
    assert said in texts[-1]
    for each in sources:  # A limit lets the first packet pass.
        passes(bed, frame(each))
    assert {each for each in sources if not passes(bed, frame(each))} == dropped
    assert passes(bed, frame("192.0.2.1", layer=tcp()))
    assert (info(bed).state is ActionState.ENDED) == ("does not act" in texts[-1])


def test_no_action_begins_on_a_culprit_of_outgoing_packets_or_after_a_stop(bed: Bed) -> None:
    found = [Finding("who", "src:192.0.2.1", outgoing=True), Finding("who", "src:192.0.2.1")]
    bed.monitor.find = lambda begun, start_ns, end_ns: {"a": found[0]}
    bed.set(CULPRIT.format("drop"))
    for _ in range(11):
        bed.run(frame())
    assert "policy a does not act: who is unknown" in told(bed)
    found.pop(0)
    bed.monitor.stop_actions()
    bed.window()
    for _ in range(11):
        bed.run(frame())
    bed.window()
    assert passes(bed, frame())
    bed.window()
    bed.window()
    bed.monitor.activate("a")
    assert not passes(bed, frame())


def test_few_packets_are_no_share(bed: Bed) -> None:
    bed.set("a: always -> drop on udp")
    for _ in range(99):
        bed.run(frame())
    bed.window()
    assert info(bed).state is ActionState.ACTS


def test_all_actions_stop_at_once_until_an_operator_wants_one_again(bed: Bed) -> None:
    bed.set("a: always -> drop on udp dport:53")
    bed.set("b: udp_packets > 0 -> drop on udp dport:54")
    assert bed.monitor.stop_actions() == 1
    assert passes(bed, frame())
    bed.window()
    assert passes(bed, frame(layer=udp(dport=54)))
    assert info(bed, "b").cause == "an operator stopped all actions"
    bed.set("a: always -> drop on udp dport:53")
    bed.monitor.activate("b")
    assert not passes(bed, frame())
    assert not passes(bed, frame(layer=udp(dport=54)))


def test_control_connections_pass_and_are_counted(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connections of this process: it is a client of REST."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, (_, port) = server.accept()
        with client, accepted:
            here = server.getsockname()[1]
            bed.set("a: always -> drop on tcp src:127.0.0.1")
            assert passes(bed, frame("127.0.0.1", "127.0.0.1", tcp(port, here, "A")))
            assert not passes(bed, frame("127.0.0.1", "127.0.0.1", tcp(port + 1, here, "A")))
        bed.window()
        assert not passes(bed, frame("127.0.0.1", "127.0.0.1", tcp(port, here, "A")))
    assert (info(bed).packets, info(bed).spared) == (1, 1)


def test_sessions_of_ssh_daemons_are_control_connections() -> None:
    """Of a process of that name, in another network namespace: IPv4 on an IPv6 socket."""
    ready, over = os.pipe(), os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as server:
        child = os.fork()
        if not child:
            with open("/proc/self/comm", "w", encoding="ascii") as comm:
                comm.write("sshd")
            made = socket.socket(socket.AF_INET6)
            made.connect(("::ffff:127.0.0.1", server.getsockname()[1]))
            os.write(ready[1], struct.pack("!H", made.getsockname()[1]))
            os.read(over[0], 1)
            os._exit(0)
        (port,) = struct.unpack("!H", os.read(ready[0], 2))
        ends = [socket.inet_aton("127.0.0.1").ljust(16, b"\0")] * 2
        ports = [port.to_bytes(2, "big"), server.getsockname()[1].to_bytes(2, "big")]
        for pair in (ports, ports[::-1]):
            assert b"".join([*ends, *pair, b"\x06\x04\0\0"]) in control_connections()
        os.write(over[1], b"x")
        os.waitpid(child, 0)
        assert b"".join([*ends, *ports, b"\x06\x04\0\0"]) not in control_connections()
    for fd in (*ready, *over):
        os.close(fd)


def test_trusted_hosts_are_not_acted_on(compiler: Compiler) -> None:
    options = MonitorOptions(ingress=Hook.XDP, allow_actions=True, trusted=("192.0.2.0/24",))
    with Bed(compiler, options) as bed:
        bed.set("a: always -> drop on udp dport:53")
        assert passes(bed, frame("192.0.2.1"))
        assert not passes(bed, frame("192.0.3.1"))


@pytest.mark.slow
def test_outgoing_packets_are_another_direction(compiler: Compiler) -> None:
    with Bed(compiler, MonitorOptions(ingress=Hook.TC_INGRESS, allow_actions=True)) as bed:
        bed.set("a: always -> drop out on udp dport:53")
        assert passes(bed, frame())
        (egress,) = [each for each in bed.hooks.in_use() if each.hook is Hook.TC_EGRESS]
        assert prog_test_run(egress.chain.fd, frame()).verdict == VERDICTS[Hook.TC_INGRESS][1]
        assert prog_test_run(egress.chain.fd, frame(layer=ping())).verdict == 0xFFFFFFFF
        bed.monitor.remove_policy("a")
        assert not len(egress.chain)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: always -> mirror lo on udp", "lo would mirror to itself"),
        ("a: always -> mirror nowhere on udp", "no interface 'nowhere'"),
    ],
)
def test_impossible_mirrors_are_refused(compiler: Compiler, text: str, said: str) -> None:
    with Bed(compiler, MonitorOptions(ingress=Hook.TC_INGRESS, allow_actions=True)) as bed:
        with pytest.raises(UsageError, match=said):
            bed.set(text)
        assert not bed.monitor.policies()


def test_xdp_mirrors_nothing(compiler: Compiler) -> None:
    options = MonitorOptions(ingress=Hook.XDP, allow_actions=True)
    with (
        veth_pair() as (left, _),
        netns.inside(left.ns),
        Bed(compiler, options) as bed,
        pytest.raises(UsageError, match="XDP mirrors no packet") as caught,
    ):
        bed.set("a: always -> mirror left on udp")
    assert caught.value.hint == "give --ingress tc"


def test_there_are_at_most_eight_actions(bed: Bed) -> None:
    for n in range(MOST_ACTIONS):
        bed.set(f"a{n}: always -> drop on udp dport:{n + 1}")
    with pytest.raises(UsageError, match="at most 8 policies can have actions"):
        bed.set("more: always -> drop on udp dport:99")
    assert not passes(bed, frame(layer=udp(dport=8)))
