"""Trying programs on test frames."""

from __future__ import annotations

import ctypes as ct
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import ARP, Ether

from bpf import syscall
from bpf.abi import BpfCommand, ProgType
from bpf.assembler import HelperFunction
from bpf.attach.attachment import Hook
from bpf.compiler import Compiled, Compiler
from bpf.programs import trial
from bpf.programs.program import VERDICT_PASS, pack
from bpf.programs.trial import FRAMES
from bpf.syscall import prog_load
from tests.bpf.tools import read_u64


@contextmanager
def loaded(verdict: int, kind: ProgType = ProgType.XDP) -> Iterator[int]:
    fd = prog_load(pack([(0xB7, 0, 0, verdict), (0x95, 0, 0, 0)]), kind, "trial")
    try:
        yield fd
    finally:
        os.close(fd)


def test_a_load_that_signals_end_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verifier looks for signals, and ends then."""
    call, ended = syscall.call, list[BpfCommand]()

    def interrupted(command: BpfCommand, attr: ct.Structure) -> int:
        if len(ended) < 3:
            ended.append(command)
            raise OSError(errno.EAGAIN, "a signal")
        return call(command, attr)

    monkeypatch.setattr(syscall, "call", interrupted)
    with loaded(2) as fd:
        assert fd > 0
    assert ended == [BpfCommand.PROG_LOAD] * 3


def test_the_frames_are_what_they_are_called() -> None:
    """By scapy's dissection."""
    assert all(len(frame) >= 60 for frame in FRAMES.values())
    syn = Ether(FRAMES["IPv4 TCP SYN"])
    assert (syn[IP].src, syn[IP].dst, syn[TCP].flags) == ("192.0.2.1", "198.51.100.1", "S")
    assert syn[IP].len == 40
    assert syn[TCP].dport == 443
    udp = Ether(FRAMES["IPv4 UDP"])
    assert (udp[UDP].dport, udp[UDP].len, udp[IP].len) == (53, 20, 40)
    six = Ether(FRAMES["IPv6 TCP SYN"])
    assert (six[IPv6].src, six[IPv6].dst) == ("2001:db8::1", "2001:db8::2")
    assert (six[IPv6].plen, six[TCP].flags) == (20, "S")
    assert ARP in Ether(FRAMES["ARP"])


@pytest.mark.parametrize(
    ("kind", "verdict"), [(ProgType.XDP, 1), (ProgType.SCHED_CLS, -1), (ProgType.SCHED_CLS, 2)]
)
def test_the_verdict_on_each_frame_is_told(kind: ProgType, verdict: int) -> None:
    with loaded(verdict, kind) as fd:
        assert trial.verdicts(fd) == dict.fromkeys(FRAMES, verdict)


def test_frames_are_told_apart(compiler: Compiler) -> None:
    source = """\
        #include "probe.h"
        #include "packet.h"
        int f(CONTEXT *ctx)
        {
            u8 *frame = (void *)(long)ctx->data;
            if (frame + 24 > (u8 *)(long)ctx->data_end)
                return VERDICT_PASS;
            if (frame[12] == 8 && frame[13] == 0 && frame[23] == 17)
                return VERDICT_DROP;
            return VERDICT_PASS;
        }
    """
    flags = ["-DHOOK_XDP=1", "-DLINK_ETHERNET=1"]
    with compiler.compile(source, ProgType.XDP, cflags=flags) as compiled:
        said = trial.verdicts(compiled.programs["f"].fd)
    assert said == dict.fromkeys(FRAMES, 2) | {"IPv4 UDP": 1}


@pytest.mark.parametrize("kind", [ProgType.XDP, ProgType.SCHED_CLS])
def test_a_program_that_does_nothing_costs_nothing_and_one_that_works_some(
    compiler: Compiler, kind: ProgType, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert trial.floor_ns(kind) > 0
    with loaded(VERDICT_PASS[kind], kind) as fd:
        assert 0 <= trial.cost(fd, kind) < 20
        with monkeypatch.context() as patch:
            patch.setattr(trial, "floor_ns", lambda _: 1_000_000)
            assert trial.cost(fd, kind) == 0
    source = """\
        int f(void *ctx)
        {
            u64 sum = 0;
            for (int i = 0; i < 200; i++)
                sum += bpf_ktime_get_ns();
            return sum == 1;
        }
    """
    with compiler.compile(source, kind) as compiled:
        assert 1000 < trial.cost(compiled.programs["f"].fd, kind) < 100_000


def test_a_trial_counts_where_nobody_reads(counters: dict[Hook, Compiled]) -> None:
    """A trial runs the program that was loaded for verification, on private maps."""
    compiled = counters[Hook.XDP]
    before = read_u64(compiled.maps["count"].fd)
    trial.verdicts(compiled.programs["counter"].fd)
    assert read_u64(compiled.maps["count"].fd) == before + len(FRAMES)


def test_what_really_sends_is_not_tried(compiler: Compiler) -> None:
    source = "int f(struct __sk_buff *s) { return bpf_clone_redirect(s, 1, 0); }"
    with compiler.compile(source, ProgType.SCHED_CLS) as compiled:
        assert not trial.is_harmless(compiled.programs["f"].instructions)
    source = "int f(struct __sk_buff *s) { return bpf_redirect(13, 0) + 0x85; }"
    with compiler.compile(source, ProgType.SCHED_CLS) as compiled:
        assert trial.is_harmless(compiled.programs["f"].instructions)
    assert trial.is_harmless(pack([(0x85, 0, 0, HelperFunction.MAP_LOOKUP_ELEM)]))
