"""The packet ring in the kernel: which packets it keeps, and what becomes of every one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import numpy as np
import pytest
from scapy.layers.l2 import Dot1Q, Ether

from bpf.attach.attachment import Hook
from bpf.compiler import Compiler
from bpf.errors import UsageError
from bpf.syscall import prog_test_run
from probes.config.model import Side
from probes.hooks import Hooks
from probes.monitor.options import MonitorOptions
from probes.ring.options import MOST_KEPT, RingOptions
from probes.ring.probe import RingProbe
from tests.probes.conftest import compiler as compiler
from tests.probes.monitor.bed import Bed, frame, tcp, udp
from tests.probes.running import DROPPED, sk_buff

_SMALL = RingOptions("1MiB")


@contextmanager
def ring(
    compiler: Compiler, hook: Hook = Hook.TC_INGRESS, options: RingOptions = _SMALL
) -> Iterator[RingProbe]:
    """A ring on hooks that see only what a test runs."""
    hooks = Hooks(lambda point: None)
    made = RingProbe(compiler, hooks.find("lo"), hook, hooks, options)
    try:
        yield made
    finally:
        made.close()
    assert not hooks.in_use()


def run(
    probe: RingProbe, data: bytes, side: Side = "ingress", repeat: int = 1, context: bytes = b""
) -> None:
    prog_test_run(probe.points()[side].chain.fd, data, repeat=repeat, context=context)


@pytest.mark.parametrize("hook", [Hook.XDP, Hook.TC_INGRESS])
def test_it_keeps_the_first_bytes_of_selected_packets(compiler: Compiler, hook: Hook) -> None:
    with ring(compiler, hook) as probe:
        probe.keep("dns", ["udp dport:53"])
        probe.keep("all", [])
        frames = [bytes([n]) * 6 + frame(size=60 + 50 * n)[6:] for n in range(4)]
        for each in frames:
            run(probe, each)
        answer = frame(layer=tcp(sport=80, dport=1000), size=400)
        run(probe, answer, "egress")
        packets, ledger = probe.read("dns", 10)
        assert [bytes(s["bytes"][: s["captured"]]) for s in packets.slots] == [
            each[:168] for each in frames
        ]
        assert packets.slots["length"].tolist() == [60, 110, 160, 210]
        assert packets.flows["source_port"].tolist() == [1000] * 4
        assert (ledger.selected, ledger.written, ledger.missing) == (4, 4, 0)
        packets, ledger = probe.read("all", 10)
        assert packets.slots["outgoing"].tolist() == packets.flows["direction"].tolist() == [
            0, 0, 0, 0, 1,
        ]  # fmt: skip
        assert ledger.written == 5


def test_every_packet_is_written_overwritten_or_came_during_a_pause(compiler: Compiler) -> None:
    with ring(compiler) as probe:
        probe.keep("dns", ["udp"])
        probe.keep("web", ["tcp"])
        for _ in range(3):
            run(probe, frame(), repeat=probe.slots // 4)
            run(probe, frame(layer=tcp()), repeat=probe.slots // 4)
        probe.freeze()
        run(probe, frame(), repeat=7)
        packets, ledger = probe.read("dns", 10)
        sent = 3 * (probe.slots // 4)
        assert ledger.selected == sent + 7
        assert (ledger.paused, ledger.unread, ledger.others) == (7, 0, 0)
        assert ledger.written == len(packets.slots) == probe.slots // 2
        assert ledger.overwritten == sent - probe.slots // 2
        assert packets.slots["time"].min() <= ledger.whole_utc_ns - probe.utc_ns(0)
        # It goes on, and counts from the end of the window on.
        probe.export()
        run(probe, frame(), repeat=5)
        _, ledger = probe.read("dns", 0)
        assert (ledger.selected, ledger.written, ledger.missing) == (5, 5, 0)
        assert probe.count("dns") == (sent + 5, 7)


def test_a_capture_of_a_culprit_leaves_out_the_others(compiler: Compiler) -> None:
    with ring(compiler) as probe:
        probe.keep("all", [])
        run(probe, frame(), repeat=3)
        run(probe, frame(source="192.0.2.9"), repeat=2)
        culprit = np.array([192, 0, 2, 9], "u1")
        packets, ledger = probe.read(
            "all", 10, lambda each: (each.flows["source"][:, :4] == culprit).all(axis=1)
        )
        assert (ledger.selected, ledger.written, ledger.others) == (5, 2, 3)
        assert len(packets.slots) == 2


def test_a_reader_without_a_pause_sees_the_newest(compiler: Compiler) -> None:
    with ring(compiler) as probe:
        assert not len(probe.newest("all", 5).slots)
        probe.keep("all", [])
        for size in (60, 70, 80):
            run(probe, frame(size=size))
        assert probe.newest("all", 2).slots["length"].tolist() == [70, 80]
        # A slot that is being written has no end yet.
        probe._slot_rows["ended"][:, 3] = 0
        assert probe.newest("all", 2).slots["length"].tolist() == [60, 70]
        assert not len(probe.newest("other", 2).slots)


def test_tags_segments_and_own_sizes(compiler: Compiler) -> None:
    with ring(compiler, options=RingOptions("1MiB", 65)) as probe:
        probe.keep("all", [])
        run(probe, frame(layer=tcp(), size=1014), context=sk_buff(segments=4, segment_size=300))
        (slot,) = probe.newest("all", 5).slots
        assert (slot["packets"], slot["length"], slot["captured"]) == (4, 1014, 72)
    tagged = bytes(Ether(src="02::1", dst="02::2") / Dot1Q(vlan=7)) + frame()[14:]
    with ring(compiler, Hook.XDP, RingOptions("1MiB", tunnels=True)) as probe:
        probe.keep("tagged", ["vlan:7"])
        run(probe, tagged[:16] + b"\x08\x00" + frame()[14:])
        assert len(probe.newest("tagged", 5).slots) == 1


@pytest.mark.parametrize("hook", [Hook.XDP, Hook.TC_INGRESS])
def test_packets_that_actions_drop_have_a_mark(compiler: Compiler, hook: Hook) -> None:
    with Bed(compiler, MonitorOptions(ingress=hook, allow_actions=True)) as bed:
        bed.set("a: always -> drop on udp dport:53")
        with closing(RingProbe(compiler, bed.hooks.find("lo"), hook, bed.hooks, _SMALL)) as probe:
            probe.keep("most", ["udp dport:53 src:192.0.2.1", "udp dport:54"])
            bed.set("b: always -> limit 0.01pps on udp dport:54")
            limited = frame(layer=udp(dport=54))
            # The third one is dropped, and not kept.
            for each in (frame(), limited, frame(source="192.0.2.9"), limited, limited):
                bed.run(each)
            packets, ledger = probe.read("most", 10)
            assert packets.slots["dropped"].tolist() == [1, 0, 1, 1]
            assert (ledger.written, ledger.dropped, ledger.missing) == (4, 3, 0)
        # Without the ring the verdict is the same.
        assert bed.run(frame()) == DROPPED[hook]


def test_selections_come_and_go(compiler: Compiler) -> None:
    with ring(compiler) as probe:
        for n in range(MOST_KEPT):
            probe.keep(f"p{n}", [f"udp dport:{n + 1}"])
        with pytest.raises(UsageError, match="at most 8 selections"):
            probe.keep("more", ["udp"])
        with pytest.raises(UsageError, match="keeps no packets more"):
            probe.read("more", 10)
        probe.drop("p3")
        probe.keep("more", ["tcp"])
        # The place of the old selection has no packets of it.
        run(probe, frame(layer=udp(dport=4)))
        run(probe, frame(layer=tcp()))
        assert probe.count("more") == (1, 0)
        assert len(probe.newest("more", 9).slots) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (RingOptions(ring_bytes=10), "--ring-bytes 10 is not between 64 and 1536"),
        (RingOptions("5"), "--ring-memory 5 is not between 1MiB and 2GiB"),
        (RingOptions("much"), "'much' is not a number"),
    ],
)
def test_impossible_sizes(options: RingOptions, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        options.check()
