"""Loading one compiled source many times, on private and on shared maps."""

from __future__ import annotations

import os
import resource
from contextlib import closing

import pytest

from bpf import syscall
from bpf.abi import ProgType
from bpf.attach.attachment import Hook
from bpf.compiler import Compiled, Compiler
from bpf.errors import KernelError
from bpf.maps.kinds import map_memory
from bpf.programs.program import Program
from tests.bpf.tools import PACKET, packets, read_u64
from tests.support.descriptors import open_fds

SOURCE = """\
BPF_ARRAY(mine, u64, 1);
BPF_ARRAY(ours, u64, 1);
BPF_HASH(seen, u32, u64, 16);

int f(struct xdp_md *ctx)
{
    u32 zero = 0;
    u64 constant = 0x1800000018ULL;
    u64 *m = mine.lookup(&zero), *o = ours.lookup(&zero);
    if (m && o) {
        (*m)++;
        (*o)++;
    }
    seen.update(&zero, &constant);
    return XDP_PASS;
}
"""


def run(program: Program, repeat: int) -> None:
    syscall.prog_test_run(program.fd, PACKET, repeat=repeat)


def test_a_program_outlives_what_it_was_compiled_from(compiler: Compiler) -> None:
    with compiler.compile(SOURCE, ProgType.XDP) as compiled:
        program = Program(compiled, "f")
    with closing(program):
        run(program, 2)
        assert read_u64(program.map_fd("mine")) == 2


def test_running_out_of_descriptors_leaves_no_maps_behind(compiler: Compiler) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with compiler.compile(SOURCE, ProgType.XDP) as compiled:
        before = open_fds()
        lowest_free = os.dup(0)
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + 1, hard))  # room for one
        try:
            with pytest.raises(KernelError, match=r"map \w+ cannot be made: .*Too many open files"):
                Program(compiled, "f")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert open_fds() <= before


def test_a_map_of_maps_is_named_and_can_be_shared(compiler: Compiler) -> None:
    source = (
        'BPF_ARRAY(inner, u64, 1);\nBPF_ARRAY_OF_MAPS(outer, "inner", 2);\n'
        "int f(struct xdp_md *ctx) { return XDP_PASS; }\n"
    )
    with compiler.compile(source, ProgType.XDP) as compiled:
        before = open_fds()
        with pytest.raises(KernelError, match="map outer cannot be made"):
            Program(compiled, "f")
        assert open_fds() <= before
        Program(compiled, "f", shared={"outer": compiled.maps["outer"].fd}).close()


LOCKED = """\
struct value { struct bpf_spin_lock lock; u64 packets; };
BPF_HASH(locked, u32, struct value, 4);

int f(struct xdp_md *ctx)
{
    u32 zero = 0;
    struct value *v = locked.lookup(&zero);
    if (!v)
        return XDP_PASS;
    bpf_spin_lock(&v->lock);
    v->packets++;
    bpf_spin_unlock(&v->lock);
    return XDP_PASS;
}
"""


def test_a_map_made_like_another_has_its_types(compiler: Compiler) -> None:
    """A lock in a value is found by them; without, the verifier refuses the program."""
    with compiler.compile(LOCKED, ProgType.XDP) as compiled:
        before = open_fds()
        with closing(Program(compiled, "f")) as program:
            run(program, 2)
        bare = syscall.map_create(compiled.maps["locked"].spec)
        with pytest.raises(syscall.VerifierError, match="Invalid argument"):
            Program(compiled, "f", shared={"locked": bare})
        os.close(bare)
        assert open_fds() <= before


def test_a_program_keeps_its_name_and_knows_its_memory(compiler: Compiler) -> None:
    source = "BPF_ARRAY(table, u64, 100000);\n" + SOURCE
    with (
        compiler.compile(source, ProgType.XDP) as compiled,
        closing(Program(compiled, "f")) as program,
    ):
        assert program.info().name == "f"
        assert program.info().jited_bytes > 0
        assert 800_000 <= program.memory() < 850_000
        shared = {"table": program.map_fd("table")}
        with closing(Program(compiled, "f", shared=shared)) as clone:
            assert clone.memory() == program.memory() - map_memory(shared["table"])


def test_a_probe_of_either_hook_type_runs(counters: dict[Hook, Compiled]) -> None:
    for hook, verdict in ((Hook.XDP, 2), (Hook.TC_INGRESS, 0xFFFFFFFF)):
        with closing(Program(counters[hook], "counter")) as program:
            assert syscall.prog_test_run(program.fd, PACKET, repeat=7).verdict == verdict
            assert packets(program) == 7
