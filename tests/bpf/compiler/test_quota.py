"""The limit of map memory: kept before the kernel allocates a map."""

from __future__ import annotations

import pytest

from bpf.abi import ProgType
from bpf.compiler import CompileError, Compiler
from bpf.compiler.quota import map_bytes
from bpf.machine import possible_cpus
from bpf.maps.kinds import map_memory

FINE = "int f(struct xdp_md *ctx) { return XDP_PASS; }\n"
KINDS = """\
BPF_HASH(hash, u32, u64, 100000);
BPF_PERCPU_HASH(percpu_hash, u64, u64, 100000);
BPF_TABLE("lru_hash", u64, u64, lru_hash, 100000);
BPF_ARRAY(array, u64, 100000);
BPF_PERCPU_ARRAY(percpu_array, u32, 100000);
BPF_QUEUE(queue, u64, 100000);
BPF_RINGBUF_OUTPUT(ring, 64);
"""


def refusal(compiler: Compiler, maps: str, limit: int) -> str:
    with pytest.raises(CompileError) as caught:
        compiler.compile(maps + FINE, ProgType.XDP, name="my.c", map_limit=limit).close()
    return str(caught.value)


@pytest.mark.parametrize(
    "big",
    [
        "BPF_ARRAY(big, u64, 1 << 29);",
        "BPF_HASH(big, u32, u64, 1 << 27);",
        "BPF_PERCPU_ARRAY(big, u64, 1 << 28);",
        "BPF_RINGBUF_OUTPUT(big, 1 << 19);",
    ],
)
def test_a_map_over_the_limit_is_refused_in_its_line(compiler: Compiler, big: str) -> None:
    said = refusal(compiler, f"BPF_HASH(small);\n{big}\n", 1 << 30)
    assert said.startswith("my.c does not compile: my.c:2:")
    assert "error: map big would exceed the map memory that a probe may have" in said
    assert "--probe-memory" in said


def test_the_maps_of_a_source_count_together(compiler: Compiler) -> None:
    maps = "".join(f"BPF_ARRAY(m{i}, u64, 1000);\n" for i in range(10))
    assert "would exceed" in refusal(compiler, maps, 79_000)
    for limit in (81_000, 0):
        with compiler.compile(maps + FINE, ProgType.XDP, map_limit=limit) as compiled:
            assert len(compiled.maps) == 10
    # A source before does not count.
    assert "would exceed" in refusal(compiler, maps, 79_000)
    compiler.compile(FINE + "BPF_ARRAY(m, u64, 1000);\n", ProgType.XDP, map_limit=8000).close()


def test_sizes_are_about_what_the_kernel_accounts(compiler: Compiler) -> None:
    cpus = possible_cpus()
    with compiler.compile(KINDS + FINE, ProgType.XDP) as compiled:
        for found in compiled.maps.values():
            spec = found.spec
            sizes = spec.key_size, spec.value_size, spec.max_entries
            expected = map_bytes(spec.type, *sizes, cpus)
            assert 0.6 < expected / map_memory(found.fd) < 1.4, spec
