"""Several probes on one hook, changed one at a time while packets pass."""

from __future__ import annotations

import struct
from contextlib import ExitStack, closing

import pytest

from bpf import syscall
from bpf.abi import ProgType
from bpf.attach.attachment import Hook
from bpf.attach.chain import Chain, Stage
from bpf.compiler import Compiled, Compiler
from bpf.programs.program import VERDICT_PASS, Program
from tests.bpf.tools import PACKET, packets

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


def add(chain: Chain, compiled: Compiled, name: str = "counter") -> tuple[Stage, Program]:
    stage = Stage()
    program = Program(compiled, name, next_fd=stage.next_fd)
    chain.append(stage, program.fd)
    return stage, program


def verdict(chain: Chain, repeat: int = 1) -> int:
    return syscall.prog_test_run(chain.fd, PACKET, repeat=repeat).verdict


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
