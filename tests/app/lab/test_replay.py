"""Captures replayed in the lab: what was recorded comes in, and wakes the right policies."""

from __future__ import annotations

import gzip
import os
import random
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.l2 import Dot1Q
from scapy.packet import Packet, Raw

from app.lab.network import Lab
from app.lab.plan import LabPlan
from app.lab.replay import Replay, speed_of
from app.lab.sender import SendReport, _Schedule
from bpf.errors import ProbedeckError, UsageError
from bpf.quantities import duration
from probes.control.controller import Controller
from probes.monitor.options import MonitorOptions
from probes.monitor.policy import load
from probes.monitor.state import METRICS_TABLE, PROBE, TRIGGERS_TABLE, PolicyState
from probes.snapshot import Item, Snapshot
from tests.app.lab.captures import ETHER, HOST, PEER, START_NS, described, enhanced, pcap, section
from tests.support.lab_truth import interface_counters
from tests.support.runs import children, deck, deck_ends
from tests.support.sight import ETH_P_ALL, alive, becomes, node

EXAMPLE = Path(__file__).parents[3] / "examples" / "policies.toml"
INTERVAL = 0.5


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(traffic=False) as network:
        network.settle()
        yield network


def tap(lab: Lab) -> socket.socket:
    """Gets what comes in at the client."""
    with node(lab):
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        sock.bind((lab.interface, 0))
    sock.settimeout(2)
    return sock


def replayed(lab: Lab, path: Path, speed: float = 0.0) -> SendReport:
    return lab.replay(Replay(str(path), speed)).wait()


@pytest.mark.slow
@pytest.mark.timing
def test_frames_arrive_as_they_were_recorded(lab: Lab, tmp_path: Path) -> None:
    frames = [bytes(ETHER / IP() / bytes(2000))[:size] for size in (60, 61, 1000, 1514, 60)]
    spaces = [0.0, 0.01, 0.15, 0.1, 0.08]
    times = [START_NS + round(sum(spaces[: n + 1]) * 1e9) for n in range(5)]
    (tmp_path / "x.pcap").write_bytes(pcap(*zip(times, frames, strict=True)))
    for speed in (1.0, 2.0):
        with tap(lab) as cable:
            replaying = lab.replay(Replay(str(tmp_path / "x.pcap"), speed))
            arrived = [(cable.recv(2000), time.monotonic()) for _ in frames]
        outcome = replaying.wait()
        assert (outcome.frames, outcome.sent, outcome.whole) == (5, 5, True)
        assert outcome.seconds > 0.33 / speed
        assert [frame for frame, _ in arrived] == frames
        gaps = [(b[1] - a[1]) * speed for a, b in pairwise(arrived)]
        # A host that stands still for a moment delays a frame, which is two of the gaps.
        wrong = [abs(gap - space) for gap, space in zip(gaps, spaces[1:], strict=True)]
        assert sorted(wrong)[1] < 0.03, gaps


def test_nothing_is_left_out_silently(lab: Lab, tmp_path: Path) -> None:
    tagged = bytes(ETHER / Dot1Q(vlan=1) / IP() / bytes(1480))
    text = section() + described() + described(105) + enhanced(0, 1, tagged)
    for interface, size, cut in (
        (0, 60, 0), (0, 60, 1000), (0, 1515, 0), (0, 60, 70_000), (0, 5, 0), (1, 60, 0),
    ):  # fmt: skip
        text += enhanced(interface, 1, bytes(size), cut)
    (tmp_path / "x.pcapng").write_bytes(text + b"\6\0\0")
    before = interface_counters(lab, "client", "eth0")
    outcome = replayed(lab, tmp_path / "x.pcapng")
    after = interface_counters(lab, "client", "eth0")
    assert after.received_packets - before.received_packets == outcome.sent
    assert after.received_bytes - before.received_bytes == len(tagged) + 60 + 1060
    assert outcome.words("x.pcapng") == (
        f"replayed 3 of 7 frames of x.pcapng in {duration(outcome.seconds)}, 2 longer "
        "than the cable's 1500 bytes, 1 too short for Ethernet, 1 of link type 105 (802.11), 1 cut "
        "when they were captured and filled up with zeros; the file is not whole: it breaks off"
    )
    assert not outcome.whole


@pytest.mark.slow
def test_a_cable_fits_jumbo_frames_and_long_gaps_are_left_out(tmp_path: Path) -> None:
    frames = [bytes(ETHER / IP() / bytes(size)) for size in (1000, 9000, 100)]
    path = tmp_path / "x.pcap.gz"
    times = (START_NS, START_NS + 10**8, START_NS + 10**17)
    path.write_bytes(gzip.compress(pcap(*zip(times, frames, strict=True))))
    replay = Replay(str(path), 10.0, max_gap=0.5)
    assert replay.mtu() == 9020
    with Lab(LabPlan(mtu=replay.mtu()), traffic=False) as jumbo:
        jumbo.settle()
        with tap(jumbo) as cable:
            replaying = jumbo.replay(replay)
            assert [cable.recv(10_000) for _ in frames] == frames
            outcome = replaying.wait()
    assert 0.05 < outcome.seconds < 10
    assert outcome.words("x").endswith(", 1157d09h without frames left out")
    assert outcome.whole


def test_the_schedule_of_a_capture_whose_clock_goes_back() -> None:
    schedule = _Schedule(2.0, 0, 5.0)
    times = [10.0, 11.0, 10.5, 12.0, 3.0, 4.0, 60.0]
    due = [schedule.due_ns(round(time * 1e9)) - schedule.start_ns for time in times]
    assert [ns / 1e9 for ns in due] == [0, 0.5, 0.25, 1, 1, 1.5, 4]
    assert schedule.skipped_ns == 51 * 10**9


def test_a_replay_can_be_stopped_and_ends_with_its_process(lab: Lab, tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    path.write_bytes(pcap((START_NS, bytes(60)), (START_NS + 10**12, bytes(60))))
    with tap(lab) as cable:
        replaying = lab.replay(Replay(str(path)))
        assert cable.recv(2000) == bytes(60)
    (pid,) = lab.pids[1:]
    replaying.stop()
    outcome = replaying.wait()
    assert outcome.words("x").startswith("replayed 1 frames of x in ")
    assert outcome.words("x").endswith("; it was stopped before the end")
    assert becomes(lambda: not alive((pid,)))
    replaying = lab.replay(Replay(str(path)))
    assert becomes(lambda: len(lab.pids) == 2)
    os.kill(lab.pids[1], signal.SIGKILL)
    with pytest.raises(ProbedeckError, match="its process has ended"):
        replaying.wait()


def spread(seconds: float, frames: list[bytes]) -> list[tuple[int, bytes]]:
    """Evenly over a time."""
    step = seconds * 1e9 / len(frames)
    return [(START_NS + round(n * step), frame) for n, frame in enumerate(frames)]


def varied(packet: Packet, count: int, sources: bool = True, ports: bool = True) -> list[bytes]:
    """Copies with random source addresses and ports; scapy would take seconds for each thousand."""
    frame = bytearray(bytes(packet))
    found = []
    for _ in range(count):
        if sources:
            frame[26:30] = random.randbytes(4)
        if ports:
            frame[34:36] = random.randrange(1024, 65536).to_bytes(2, "big")
        found.append(bytes(frame))
    return found


def scan() -> list[bytes]:
    """A thousand closed ports, as nmap -sS asks for them."""
    ask = IP(src=PEER, dst=HOST) / TCP(sport=44_444, options=[("MSS", 1460)])
    answer = IP(src=HOST, dst=PEER) / TCP(dport=44_444, flags="RA")
    asked, answered = bytes(ETHER / ask), bytes(ETHER / answer)
    found = []
    for number in random.sample(range(1, 10_000), 1000):
        port = number.to_bytes(2, "big")
        found += [asked[:36] + port + asked[38:], answered[:34] + port + answered[36:]]
    return found


def amplified() -> list[bytes]:
    """Answers of 4,000 bytes in three fragments, of 300 name servers."""
    frames = []
    first = IP(dst=HOST, flags="MF") / UDP(sport=53, dport=1234, len=4008) / Raw(bytes(1472))
    middle = IP(dst=HOST, flags="MF", frag=185, proto=17) / Raw(bytes(1480))
    last = IP(dst=HOST, frag=370, proto=17) / Raw(bytes(1048))
    parts = [bytes(ETHER / part) for part in (first, middle, last)]
    servers = [random.randbytes(4) for _ in range(300)]
    for server in random.choices(servers, k=400):
        frames += [part[:26] + server + part[30:] for part in parts]
    return frames


def ordinary() -> list[bytes]:
    """Web, name look-ups, a video call, and pings: both ways, some seconds of it."""
    frames = []
    for number in range(60):
        near, far = IP(src=HOST, dst=f"203.0.113.{number}"), IP(src=f"203.0.113.{number}", dst=HOST)
        port = 40_000 + number
        frames += [bytes(ETHER / near / UDP(sport=port, dport=53) / bytes(40))]
        frames += [bytes(ETHER / far / UDP(sport=53, dport=port) / bytes(140))]
        up, down = TCP(sport=port, dport=443, flags="A"), TCP(sport=443, dport=port, flags="PA")
        frames += [bytes(ETHER / near / up)] * 8 + [bytes(ETHER / far / down / bytes(1400))] * 16
        asked = TCP(sport=port, dport=443, flags="PA")
        frames += [bytes(ETHER / near / asked / bytes(300))] * 8
    peer = ETHER / IP(src=PEER, dst=HOST)
    frames += [bytes(peer / UDP(sport=3478, dport=3478) / bytes(1100))] * 1500
    frames += [bytes(peer / ICMP() / bytes(56))] * 10
    random.shuffle(frames)
    return frames


def captures() -> dict[str, list[tuple[int, bytes]]]:
    """By the policy that they are to wake; empty: none."""
    to_host = ETHER / IP(dst=HOST)
    return {
        # First: later traffic would hide it.
        "port_scan": spread(0.5, scan()),
        "": spread(2, ordinary()),
        "icmp_flood": spread(1, varied(to_host / ICMP() / bytes(56), 2000, ports=False)),
        "dns_amplification": spread(1, amplified()),
        "udp_flood": spread(1, varied(to_host / UDP(dport=80) / bytes(512), 3000)),
        "syn_flood": spread(1, varied(to_host / TCP(dport=80, flags="S"), 10_000)),
    }


class Watched:
    """A controller on the client, with the example's policies."""

    def __init__(self, lab: Lab, stack: ExitStack) -> None:
        self.items: list[Item] = []
        file = load(EXAMPLE)
        controller = stack.enter_context(Controller())
        controller.listen(self.items.append)
        with node(lab):
            controller.watch_metrics(
                lab.interface,
                MonitorOptions(interval=INTERVAL),
                policies=file.policy,
                profiles=file.profiles,
            )

    def tables(self, metric: str) -> list[Snapshot]:
        return [
            item
            for item in tuple(self.items)
            if isinstance(item, Snapshot) and (item.probe, item.metric) == (PROBE, metric)
        ]

    def counted(self, field: str) -> int:
        return sum(int(item.rows[field].sum()) for item in self.tables(METRICS_TABLE))

    def windows(self, count: int) -> None:
        """Wait for so many more."""
        before = len(self.tables(METRICS_TABLE))
        assert becomes(lambda: len(self.tables(METRICS_TABLE)) >= before + count, 10)

    def count(self, packets: int, octets: int) -> None:
        """Wait until so many are counted: windows may be late while applications start."""
        assert becomes(
            lambda: (self.counted("packets"), self.counted("bytes")) == (packets, octets), 5
        )

    def fired(self) -> list[str]:
        """Every time that a policy became active."""
        return [
            row["policy"].decode()
            for item in self.tables(TRIGGERS_TABLE)
            for row in item.rows
            if PolicyState(row["after"]).runs and not PolicyState(row["before"]).runs
        ]


@pytest.mark.slow
def test_each_attack_wakes_its_policy_and_every_frame_is_counted_once(
    lab: Lab, tmp_path: Path
) -> None:
    random.seed(5)
    path = tmp_path / "x.pcap"
    with ExitStack() as stack:
        watched = Watched(lab, stack)
        told: list[str] = []
        packets = octets = 0
        recorded = captures()
        # Two quiet seconds, the baseline for the scan.
        assert becomes(lambda: len(watched.tables(METRICS_TABLE)) * INTERVAL >= 2, 5)
        for policy, frames in recorded.items():
            path.write_bytes(pcap(*frames))
            # 0: as fast as it goes.
            assert replayed(lab, path, 0.0 if policy == "syn_flood" else 2.0).whole
            # The monitor reports a scan one window later.
            watched.windows(2 if policy == "port_scan" else 1)
            told += [policy] if policy else []
            packets += len(frames)
            octets += sum(len(frame) for _, frame in frames)
            watched.count(packets, octets)
            assert watched.fired() == told


@pytest.mark.slow
def test_the_command_replays_and_ends_a_window_later(tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    path.write_bytes(pcap(*spread(4, varied(ETHER / IP(dst=HOST) / UDP(), 400))) + b"cut")
    options = ("--only", "--monitor", "--views", "metrics", "--interval", "0.3", "--speed", "10")
    code, out, err = deck_ends("lab", "--headless", "--replay", str(path), *options)
    assert code == 0
    header, *rows = (line.split(",") for line in out.splitlines())
    assert sum(int(row[header.index("packets")]) for row in rows) == 400
    words = (
        rf"^probedeck: replay: replayed 400 of 400 frames of {re.escape(str(path))} in [34]\d\d ms"
    )
    assert re.search(f"{words}; the file is not whole: it breaks off$", err, re.MULTILINE)


@pytest.mark.slow
def test_killed_while_it_replays_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    path.write_bytes(pcap(*spread(100, [bytes(60)] * 100_000)))
    options = ("--only", "--monitor", "--interval", "0.1", "-o", str(tmp_path / "out"))
    with deck("lab", "--headless", "--replay", str(path), *options) as run:
        assert becomes(lambda: len(senders(run.pid)) == 1, 60)
        (sender,) = senders(run.pid)
        run.kill()
        run.wait()
    assert becomes(lambda: not alive((sender,)))


def senders(pid: int) -> tuple[int, ...]:
    """Children of the lab that a run has."""
    return tuple(below for child in children(pid) for below in children(child))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--replay", "/nowhere"), "cannot read /nowhere: No such file or directory"),
        (
            ("--replay", "/dev/null"),
            "cannot read /dev/null: it is no regular file; write the capture to a file",
        ),
        (("--speed", "2"), "--speed without a capture; give --replay FILE"),
        (("--max-gap", "2"), "--max-gap without a capture; give --replay FILE"),
        (("--replay", __file__), f"{__file__} is neither a pcap nor a pcapng file"),
    ],
)
def test_wrong_captures_are_told_in_one_line(options: tuple[str, ...], words: str) -> None:
    assert deck_ends("lab", "--headless", *options) == (2, "", f"probedeck: {words}\n")


@pytest.mark.parametrize(("speed", "words"), [(-1.0, "a speed of -1"), (float("nan"), "of nan")])
def test_impossible_speeds_are_refused(tmp_path: Path, speed: float, words: str) -> None:
    (tmp_path / "x.pcap").write_bytes(pcap())
    with pytest.raises(UsageError, match=f"{words} is not possible; 0: without a pause"):
        Replay(str(tmp_path / "x.pcap"), speed)
    assert speed_of("max") == 0
    with pytest.raises(UsageError, match="a gap of -1 s is not possible; inf: of any length"):
        Replay(str(tmp_path / "x.pcap"), max_gap=-1)
    with pytest.raises(UsageError, match="--speed 'fast' is no number; "):
        speed_of("fast")
