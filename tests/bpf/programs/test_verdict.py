"""Verdicts in a chain, for programs of every shape."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest

from bpf.abi import MapType, ProgType
from bpf.attach.attachment import Hook
from bpf.attach.chain import MAX_PROBES, Chain, Stage
from bpf.compiler import Compiled, Compiler
from bpf.errors import UsageError
from bpf.programs.program import VERDICT_PASS, Instruction, Program, chain_program, pack
from bpf.syscall import MapSpec, VerifierError, map_create, prog_array_set, prog_load, prog_test_run
from tests.bpf.tools import packets

FRAME = bytes(64)
PASSING = {ProgType.XDP: (2,), ProgType.SCHED_CLS: (-1, 0, 3)}
FINAL = {
    # aborted, drop, tx, redirect, and two unknown values
    ProgType.XDP: (0, 1, 3, 4, 77, -1),
    # reclassify, shot, stolen, queued, repeat, redirect, trap, and two unknown values
    ProgType.SCHED_CLS: (1, 2, 4, 5, 6, 7, 8, 77, -2),
}
DATA = {ProgType.XDP: 0, ProgType.SCHED_CLS: 76}
"""Where a context has `data`; `data_end` comes after it."""
HOOKS = {ProgType.XDP: Hook.XDP, ProgType.SCHED_CLS: Hook.TC_INGRESS}
ALL = [(kind, verdict) for kind, found in PASSING.items() for verdict in found]
ENDS = [(kind, verdict) for kind, found in FINAL.items() for verdict in found]
KINDS = pytest.mark.parametrize("kind", PASSING)


@contextmanager
def before_a_counter(
    code: bytes, kind: ProgType, counter: Compiled
) -> Iterator[tuple[Chain, Program]]:
    """A chain of hand-made code and a probe that counts what goes on to it."""
    with ExitStack() as stack:
        chain = stack.enter_context(closing(Chain(kind)))
        first, second = Stage(), Stage()
        fd = prog_load(chain_program(code, kind, first.next_fd), kind, "first")
        stack.callback(os.close, fd)
        behind = stack.enter_context(closing(Program(counter, "counter", next_fd=second.next_fd)))
        chain.append(first, fd)
        chain.append(second, behind.fd)
        yield chain, behind


def run(chain: Chain, frame: bytes = FRAME) -> int:
    """The verdict, signed."""
    verdict = prog_test_run(chain.fd, frame).verdict
    return verdict - (1 << 32) if verdict >> 31 else verdict


def returning(verdict: int) -> bytes:
    return pack([(0xB7, 0, 0, verdict), (0x95, 0, 0, 0)])


@pytest.mark.parametrize(("kind", "verdict"), ALL)
def test_what_is_passed_goes_on_to_the_next(
    counters: dict[Hook, Compiled], kind: ProgType, verdict: int
) -> None:
    """And then it is the last one's verdict, that other programs of the hook decide."""
    with before_a_counter(returning(verdict), kind, counters[HOOKS[kind]]) as (chain, behind):
        assert run(chain) == VERDICT_PASS[kind]
        assert packets(behind) == 1


@pytest.mark.parametrize(("kind", "verdict"), ENDS)
def test_any_other_verdict_is_final(
    counters: dict[Hook, Compiled], kind: ProgType, verdict: int
) -> None:
    with before_a_counter(returning(verdict), kind, counters[HOOKS[kind]]) as (chain, behind):
        assert run(chain) == verdict
        assert packets(behind) == 0


def several_exits(kind: ProgType) -> bytes:
    """Returns 0 for an empty frame, else what its first byte says: one exit for each of 0 to 3."""
    at = DATA[kind]
    code: list[Instruction] = [
        (0x61, 0x12, at, 0),  # r2 = data
        (0x61, 0x13, at + 4, 0),  # r3 = data_end
        (0xBF, 0x24, 0, 0),  # r4 = r2
        (0x07, 0x04, 0, 1),  # r4 += 1
        (0xB7, 0x00, 0, 0),  # r0 = 0
        (0xBD, 0x34, 1, 0),  # if r4 <= r3 goto +1
        (0x95, 0x00, 0, 0),
        (0x71, 0x21, 0, 0),  # r1 = *r2: the context is gone
    ]
    for verdict in (1, 2, 3):
        code += [
            (0x55, 0x01, 2, verdict),  # if r1 != verdict goto +2
            (0xB7, 0x00, 0, verdict),
            (0x95, 0x00, 0, 0),
        ]
    return pack([*code, (0xB7, 0x00, 0, 0), (0x95, 0x00, 0, 0)])


@KINDS
def test_each_of_several_exits_leads_on_or_ends(
    counters: dict[Hook, Compiled], kind: ProgType
) -> None:
    with before_a_counter(several_exits(kind), kind, counters[HOOKS[kind]]) as (chain, behind):
        passed = 0
        for verdict in (0, 1, 2, 3, 2, 0):
            goes_on = verdict in PASSING[kind]
            passed += goes_on
            frame = bytes([verdict, *FRAME[1:]])
            assert run(chain, frame) == (VERDICT_PASS[kind] if goes_on else verdict)
            assert packets(behind) == passed


def filling(size: int) -> bytes:
    """Writes so many bytes of the stack, and passes."""
    stores: list[Instruction] = [(0x7A, 0x0A, -at, -1) for at in range(8, size + 1, 8)]
    return pack([*stores, (0xB7, 0, 0, 2), (0x95, 0, 0, 0)])


def test_a_program_may_use_504_bytes_of_stack(counters: dict[Hook, Compiled]) -> None:
    code = filling(504)
    with before_a_counter(code, ProgType.XDP, counters[Hook.XDP]) as (chain, behind):
        assert run(chain) == 2
        assert packets(behind) == 1
    with pytest.raises(VerifierError) as caught, closing(Stage()) as stage:
        prog_load(chain_program(filling(512), ProgType.XDP, stage.next_fd), ProgType.XDP, "full")
    assert "R1 type=scalar expected=ctx" in caught.value.log


def test_one_that_ends_each_packet_may_use_it_all(counters: dict[Hook, Compiled]) -> None:
    code = filling(512)[:-16] + returning(1)
    with before_a_counter(code, ProgType.XDP, counters[Hook.XDP]) as (chain, behind):
        assert run(chain) == 1
        assert packets(behind) == 0


def test_a_program_that_cannot_jump_to_its_end_is_refused() -> None:
    longest = (1 << 15) - 1
    nothing = pack([(0xB7, 0, 0, 2)])
    chain_program(returning(2)[8:] + nothing * longest, ProgType.XDP, 3)
    with pytest.raises(UsageError, match="a program of 32769 instructions is too long to chain"):
        chain_program(returning(2)[8:] + nothing * (longest + 1), ProgType.XDP, 3)


SHORTEN = """\
int shorten(struct xdp_md *ctx)
{
    if (bpf_xdp_adjust_head(ctx, 14))
        return XDP_ABORTED;
    return XDP_PASS;
}
"""
SIZE = """\
BPF_ARRAY(count, u64, 1);

int counter(struct xdp_md *ctx)
{
    u32 zero = 0;
    u64 *size = count.lookup(&zero);
    if (size)
        *size = ctx->data_end - ctx->data;
    return XDP_PASS;
}
"""


def test_the_next_sees_the_packet_as_it_was_left(compiler: Compiler) -> None:
    with ExitStack() as stack:
        chain = stack.enter_context(closing(Chain(ProgType.XDP)))
        programs = []
        for source in (SHORTEN, SIZE):
            compiled = stack.enter_context(compiler.compile(source, ProgType.XDP))
            stage, name = Stage(), next(iter(compiled.programs))
            program = stack.enter_context(closing(Program(compiled, name, next_fd=stage.next_fd)))
            chain.append(stage, program.fd)
            programs.append(program)
        assert run(chain) == 2
        assert packets(programs[1]) == len(FRAME) - 14


TAIL = """\
BPF_ARRAY(count, u64, 2);
BPF_PROG_ARRAY(mine, 4);

int counter(struct xdp_md *ctx)
{
    count.increment(0);
    mine.call(ctx, 1);
    count.increment(1);
    return XDP_PASS;
}
"""


@pytest.fixture(scope="module")
def tail(compiler: Compiler) -> Iterator[Compiled]:
    with compiler.compile(TAIL, ProgType.XDP) as compiled:
        yield compiled


def test_a_program_may_make_tail_calls_of_its_own(tail: Compiled) -> None:
    """If the tail call finds no program, the packet goes on to the next; else its target
    decides."""
    with ExitStack() as stack:
        chain = stack.enter_context(closing(Chain(ProgType.XDP)))
        programs = []
        for _ in range(2):
            stage = Stage()
            program = Program(tail, "counter", next_fd=stage.next_fd)
            programs.append(stack.enter_context(closing(program)))
            chain.append(stage, program.fd)
        assert run(chain) == 2
        assert [packets(p) for p in programs] == [1, 1]
        for verdict in (1, 2):
            target = prog_load(returning(verdict), ProgType.XDP, "target")
            stack.callback(os.close, target)
            prog_array_set(programs[0].map_fd("mine"), 1, target)
            assert run(chain) == verdict
        assert [packets(p) for p in programs] == [3, 1]


def test_as_many_as_a_chain_takes_may_make_tail_calls_of_their_own(tail: Compiled) -> None:
    with ExitStack() as stack:
        chain = stack.enter_context(closing(Chain(ProgType.XDP)))
        programs = []
        for _ in range(MAX_PROBES):
            stage = Stage()
            program = Program(tail, "counter", next_fd=stage.next_fd)
            programs.append(stack.enter_context(closing(program)))
            chain.append(stage, program.fd)
        for _ in range(3):
            assert run(chain) == 2
        assert [packets(p) for p in programs] == [3] * MAX_PROBES


def test_a_map_reference_is_no_exit(counters: dict[Hook, Compiled]) -> None:
    """The number in an instruction may be anything, an exit's code too."""
    fd = map_create(MapSpec("map", MapType.ARRAY, 4, 8, 1))
    code = pack(
        [
            (0x18, 0x12, 0, fd),
            (0, 0, 0, 0),
            (0x18, 0x03, 0, 0x95),  # a number of 64 bits, both halves 0x95
            (0, 0, 0, 0x95),
            (0xB7, 0, 0, 2),
            (0x95, 0, 0, 0),
        ]
    )
    with before_a_counter(code, ProgType.XDP, counters[Hook.XDP]) as (chain, behind):
        assert run(chain) == 2
        assert packets(behind) == 1
    os.close(fd)
