"""Several probes on one hook, changed one at a time while packets pass."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from itertools import cycle

import pytest

from app.lab.netns import inside
from bpf import syscall
from bpf.abi import LIVE_FRAMES, ProgType
from bpf.attach.attachment import Hook, attach
from bpf.attach.chain import MAX_PROBES, Chain, Stage
from bpf.attach.interface import find
from bpf.compiler import Compiled, Compiler
from bpf.errors import UsageError
from bpf.programs import grace
from bpf.programs.program import VERDICT_PASS, Program
from tests.bpf.tools import DATAGRAM, PACKET, datagrams, packets
from tests.support.descriptors import open_fds
from tests.support.veth import End

ORDER = """\
#include "probe.h"

BPF_ARRAY(turn, u64, 1);
BPF_ARRAY(my_turn, u64, 1);

int order(CONTEXT *ctx)
{
    u32 zero = 0;
    u64 *now = turn.lookup(&zero), *mine = my_turn.lookup(&zero);
    if (now && mine)
        *mine = ++*now;
    return VERDICT_PASS;
}
"""
DROP = '#include "probe.h"\nint drop(CONTEXT *ctx)\n{\n    return VERDICT_DROP;\n}\n'
RETURN_TO_SENDER = "int back(struct xdp_md *ctx)\n{\n    return XDP_TX;\n}\n"


def add(chain: Chain, compiled: Compiled, name: str = "counter") -> tuple[Stage, Program]:
    stage = Stage()
    program = Program(compiled, name, next_fd=stage.next_fd)
    chain.append(stage, program.fd)
    return stage, program


def verdict(chain: Chain, repeat: int = 1) -> int:
    return syscall.prog_test_run(chain.fd, PACKET, repeat=repeat).verdict


@contextmanager
def traffic(chain: Chain) -> Iterator[Future[int]]:
    """Run packets in another thread until the block ends; the future is their number."""
    stop = threading.Event()

    def send() -> int:
        sent = 0
        while not stop.is_set():
            verdict(chain, 2000)
            sent += 2000
        return sent

    with ThreadPoolExecutor(1) as thread:
        sent = thread.submit(send)
        try:
            yield sent
        finally:
            stop.set()


@pytest.mark.parametrize("hook", Hook)
def test_an_empty_chain_passes_and_a_chain_asks_its_probes_in_order(
    compiler: Compiler, hook: Hook
) -> None:
    with ExitStack() as stack:
        chain = stack.enter_context(closing(Chain(hook.prog_type)))
        unsigned = VERDICT_PASS[hook.prog_type] & 0xFFFFFFFF
        assert verdict(chain) == unsigned
        flags = [f"-D{hook.macro}"]
        compiled = stack.enter_context(compiler.compile(ORDER, hook.prog_type, cflags=flags))
        turn = {"turn": compiled.maps["turn"].fd}
        programs = []
        for _ in range(3):
            stage = Stage()
            programs.append(
                stack.enter_context(
                    closing(Program(compiled, "order", shared=turn, next_fd=stage.next_fd))
                )
            )
            chain.append(stage, programs[-1].fd)
        assert len(chain) == 3
        assert verdict(chain) == unsigned
        turns = [syscall.map_lookup(p.map_fd("my_turn"), bytes(4), 8) for p in programs]
        assert [struct.unpack("Q", turn or b"")[0] for turn in turns] == [1, 2, 3]


@pytest.mark.parametrize("hook", [Hook.XDP, Hook.TC_INGRESS])
def test_a_probe_that_drops_ends_the_chain(
    compiler: Compiler, counters: dict[Hook, Compiled], hook: Hook
) -> None:
    with ExitStack() as stack:
        chain = stack.enter_context(closing(Chain(hook.prog_type)))
        drop = stack.enter_context(
            compiler.compile(DROP, hook.prog_type, cflags=[f"-D{hook.macro}"])
        )
        _, before = add(chain, counters[hook])
        stage, dropper = add(chain, drop, "drop")
        _, behind = add(chain, counters[hook])
        for program in (before, dropper, behind):
            stack.callback(program.close)
        assert verdict(chain) == (1 if hook is Hook.XDP else 2)
        assert (packets(before), packets(behind)) == (1, 0)
        chain.remove(stage)
        assert verdict(chain) == VERDICT_PASS[hook.prog_type] & 0xFFFFFFFF
        assert (packets(before), packets(behind)) == (2, 1)


@pytest.mark.parametrize("hook", [Hook.XDP, Hook.TC_EGRESS])
def test_a_probe_that_is_put_first_may_keep_packets_from_the_others(
    compiler: Compiler, counters: dict[Hook, Compiled], hook: Hook
) -> None:
    with ExitStack() as stack:
        chain = stack.enter_context(closing(Chain(hook.prog_type)))
        drop = stack.enter_context(
            compiler.compile(DROP, hook.prog_type, cflags=[f"-D{hook.macro}"])
        )
        old_stage, old = add(chain, counters[hook])
        stage = Stage()
        dropper = Program(drop, "drop", next_fd=stage.next_fd)
        first_stage = Stage()
        first, other = (
            Program(counters[hook], "counter", next_fd=first_stage.next_fd) for _ in range(2)
        )
        for program in (old, dropper, first, other):
            stack.callback(program.close)
        chain.prepend(first_stage, first.fd)
        verdict(chain)
        assert (packets(first), packets(old)) == (1, 1)
        chain.prepend(stage, dropper.fd)
        verdict(chain)
        assert (packets(first), packets(old)) == (1, 1)
        assert len(chain) == 3
        chain.remove(stage)
        stack.callback(stage.close)
        chain.replace(first_stage, other.fd)
        verdict(chain)
        assert (packets(first), packets(other), packets(old)) == (1, 1, 2)
        chain.remove(old_stage)
        stack.callback(old_stage.close)
        verdict(chain)
        assert (packets(other), packets(old)) == (2, 2)


def test_to_an_empty_chain_it_is_all_the_same_where_a_probe_is_put(
    counters: dict[Hook, Compiled],
) -> None:
    with ExitStack() as stack:
        chain = stack.enter_context(closing(Chain(ProgType.XDP)))
        stage = Stage()
        program = Program(counters[Hook.XDP], "counter", next_fd=stage.next_fd)
        stack.callback(program.close)
        chain.prepend(stage, program.fd)
        _, last = add(chain, counters[Hook.XDP])
        stack.callback(last.close)
        verdict(chain, 3)
        assert (packets(program), packets(last)) == (3, 3)


def test_each_of_32_probes_sees_each_packet_and_a_33rd_is_refused(
    counters: dict[Hook, Compiled],
) -> None:
    before = open_fds()
    with ExitStack() as stack:
        chain = stack.enter_context(closing(Chain(ProgType.XDP)))
        programs = [add(chain, counters[Hook.XDP])[1] for _ in range(MAX_PROBES)]
        for program in programs:
            stack.callback(program.close)
        assert verdict(chain, 10) == 2
        assert [packets(p) for p in programs] == [10] * MAX_PROBES
        with (
            closing(Stage()) as one_more,
            pytest.raises(UsageError, match="at most 32 probes"),
        ):
            chain.append(one_more, programs[0].fd)
        with (
            closing(Stage()) as one_more,
            pytest.raises(UsageError, match="at most 32 probes"),
        ):
            chain.prepend(one_more, programs[0].fd)
    assert open_fds() == before


def test_changes_under_way_lose_and_double_no_packet(counters: dict[Hook, Compiled]) -> None:
    """First and last probe see each packet once, the generations of the middle one share them."""
    compiled = counters[Hook.TC_INGRESS]
    with ExitStack() as stack:
        chain = stack.enter_context(closing(Chain(ProgType.SCHED_CLS)))
        _, first = add(chain, compiled)
        stage, middle = add(chain, compiled)
        _, last = add(chain, compiled)
        generations = [
            middle,
            *(Program(compiled, "counter", next_fd=stage.next_fd) for _ in range(3)),
        ]
        for program in (first, last, *generations):
            stack.callback(program.close)
        with traffic(chain) as sent:
            swaps = 0
            end = time.monotonic() + 0.5
            for generation in cycle(generations):
                chain.replace(stage, generation.fd)
                swaps += 1
                time.sleep(0.001)
                if time.monotonic() > end:
                    break
        assert swaps > 50
        assert packets(first) == packets(last) == sent.result()
        assert sum(packets(g) for g in generations) == sent.result()
        assert all(packets(g) for g in generations)


def test_probes_come_and_go_and_the_others_miss_nothing(counters: dict[Hook, Compiled]) -> None:
    compiled = counters[Hook.TC_INGRESS]
    with ExitStack() as stack:
        chain = stack.enter_context(closing(Chain(ProgType.SCHED_CLS)))
        old_head, gone = add(chain, compiled)
        _, stays = add(chain, compiled)
        stack.callback(stays.close)
        added = 0
        with traffic(chain) as sent:
            time.sleep(0.02)
            chain.remove(old_head)
            counted = packets(gone)
            for turn in range(10):
                stage = Stage()
                guest = Program(compiled, "counter", next_fd=stage.next_fd)
                (chain.prepend if turn % 2 else chain.append)(stage, guest.fd)
                time.sleep(0.01)
                chain.remove(stage)
                left_with = packets(guest)
                time.sleep(0.005)
                assert packets(guest) == left_with
                added += left_with
                guest.close()
            assert packets(gone) == counted
            gone.close()
        assert counted > 0
        assert 0 < added < sent.result()
        assert packets(stays) == sent.result()
        assert len(chain) == 1


def test_frames_of_a_real_interface_are_counted_once_each_while_probes_are_swapped(
    compiler: Compiler, counters: dict[Hook, Compiled], pair: tuple[End, End]
) -> None:
    left, right = pair
    frames = 400_000
    with ExitStack() as stack:
        back = stack.enter_context(compiler.compile(RETURN_TO_SENDER, ProgType.XDP))
        chain = stack.enter_context(closing(Chain(ProgType.XDP)))
        _, first = add(chain, counters[Hook.XDP])
        stage, middle = add(chain, counters[Hook.XDP])
        drop = stack.enter_context(compiler.compile(DROP, ProgType.XDP, cflags=["-DHOOK_XDP"]))
        add(chain, drop, "drop")[1].close()
        generations = [middle, Program(counters[Hook.XDP], "counter", next_fd=stage.next_fd)]
        for program in (first, *generations):
            stack.callback(program.close)
        with inside(right.ns):
            attachment = attach(Hook.XDP, chain.fd, find(right.ifname))
            stack.callback(attachment.close)

        def send() -> None:
            context = struct.pack("6I", 0, len(DATAGRAM), 0, left.ifindex, 0, 0)
            with inside(left.ns):
                syscall.prog_test_run(
                    back.programs["back"].fd, DATAGRAM, repeat=frames, flags=LIVE_FRAMES,
                    context=context,
                )  # fmt: skip

        with ThreadPoolExecutor(1) as thread:
            sending = thread.submit(send)
            for generation in cycle(generations):
                chain.replace(stage, generation.fd)
                if sending.done():
                    break
                time.sleep(0.002)
            sending.result()
        time.sleep(0.05)
        grace.wait()
        assert datagrams(first) == frames
        assert sum(datagrams(g) for g in generations) == frames
        assert all(datagrams(g) for g in generations)
