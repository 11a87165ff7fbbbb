"""Sources as people write them: sections, old maps, headers and byte orders."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpf.attach.interface import Hook
from bpf.errors import ProbedeckError
from bpf.objects.dialect import is_for_libbpf, modern_maps
from probes.config.model import load
from probes.tables.conversion import objects
from tests.probes.objects.sources import COUNTER, HEAD, LICENSE, compiled, config
from tests.probes.program.tools import Loose, metric, snapshots, table

OLD_MAP = """\
/* struct bpf_map_def of before libbpf 1.0 = */
struct bpf_map_def SEC("maps") seen = {
    .type = BPF_MAP_TYPE_HASH,   /* a, b */
    .key_size = sizeof(__u32),   // = 4
    .value_size = sizeof(__u64),
    .max_entries = 8
};
SEC("xdp_old") int count(struct xdp_md *ctx)
{
    __u32 key = ctx->data_end - ctx->data;
    __u64 one = 1, *n = bpf_map_lookup_elem(&seen, &key);
    if (n)
        *n += 1;
    else
        bpf_map_update_elem(&seen, &key, &one, BPF_ANY);
    return XDP_PASS;
}
"""


@pytest.mark.parametrize(
    "declared",
    [
        'struct bpf_map_def SEC("maps") m = {.type = 1, .key_size = 4, .max_entries = 9};',
        'SEC("maps") struct bpf_map_def m = {.type = 1, .key_size = 4, .max_entries = 9,};',
        'static struct bpf_map_def m SEC("maps") = {.type = 1, .key_size = 4, .max_entries = 9};',
        'struct bpf_elf_map __section("maps") m = {.type = 1, .size_key = 4, .max_elem = 9};',
        'struct bpf_map_def __attribute__((section("maps"), used)) m = {\n'
        ".type = 1,\n.key_size = 4, .max_entries = 9};",
    ],
)
def test_old_maps_become_maps_of_today_at_their_place(declared: str) -> None:
    text = modern_maps(f"{declared}\nint after;")
    assert text.count("\n") == declared.count("\n") + 1
    fields = text.replace("\n", "").replace(" ", "").removeprefix("static")
    assert fields == (
        "struct{int(*type)[1];int(*key_size)[4];int(*max_entries)[9];}"
        'm__attribute__((section(".maps"),used));intafter;'
    )


def test_other_text_is_no_old_map() -> None:
    for text in (
        "struct bpf_map_def m = {.type = 1};",
        '// struct bpf_map_def SEC("maps") m = {.type = 1};',
        'struct bpf_map_def SEC("other") m = {.type = 1};',
    ):
        assert modern_maps(text) == text


def test_a_source_of_before_libbpf_1_counts(loose: Loose) -> None:
    probe = loose.add(config(HEAD + OLD_MAP, metric("seen")))
    loose.send(5)
    assert table(probe.export(), "seen") == {64: 5}


@pytest.mark.parametrize(
    ("source", "is_libbpf"),
    [
        ('SEC("xdp") int f(struct xdp_md *ctx) { return XDP_PASS; }', True),
        ('__section("classifier") int f(struct __sk_buff *ctx) { return 0; }', True),
        ('// SEC("xdp")\nint f(struct xdp_md *ctx) { return XDP_PASS; }', False),
        ('BPF_HASH(m, u32);\nSEC("xdp") int f(struct xdp_md *ctx) { return XDP_PASS; }', False),
        ('SEC("xdp") int f(CONTEXT *ctx) { return VERDICT_PASS; }', False),
        ('enum { BPF_SOCK_OPS_X = (1 << 0), BPF_CGROUP_Y (2) };\nSEC("xdp") int f(void);', True),
    ],
)
def test_the_dialect_is_chosen_by_sections_and_maps(source: str, is_libbpf: bool) -> None:
    assert is_for_libbpf(source) is is_libbpf


def test_headers_in_angle_brackets_are_found_in_include(loose: Loose, tmp_path: Path) -> None:
    (tmp_path / "headers" / "net").mkdir(parents=True)
    (tmp_path / "headers" / "net" / "more.h").write_text('#include "step.h"\n#define MORE STEP\n')
    (tmp_path / "headers" / "net" / "step.h").write_text("#define STEP 3\n")
    # Types of another kernel: the program must not see them.
    (tmp_path / "vmlinux.h").write_text("#error another kernel's\n" + "/" * (1 << 20))
    (tmp_path / "prog.c").write_text(
        '#include "vmlinux.h"\n#include <bpf/bpf_helpers.h>\n#include <net/more.h>\n'
        "__u64 seen;\n"
        'SEC("xdp") int count(struct xdp_md *ctx) { seen += MORE; return XDP_PASS; }\n' + LICENSE
    )
    text = (
        'name = "probe"\ninterval = 0\n[ingress]\ninterface = "lo"\nsource = "prog.c"\n{}'
        '[[ingress.metrics]]\nname = "seen"\nmap = "seen"\n'
    )
    (tmp_path / "probe.toml").write_text(text.format('include = ["headers"]\n'))
    probe = loose.add(load(tmp_path / "probe.toml"))
    loose.send(2)
    assert table(probe.export(), "seen") == {0: 6}
    (tmp_path / "probe.toml").write_text(text.format(""))
    with pytest.raises(ProbedeckError, match=r"'net/more.h' file not found"):
        loose.add(load(tmp_path / "probe.toml"))


def test_headers_of_the_compiler_and_of_a_newer_kernel(loose: Loose) -> None:
    source = (
        "#include <linux/bpf.h>\n#include <stdbool.h>\n#include <stdint.h>\n#include <string.h>\n"
        '#include "bpf_helpers.h"\n'
        "bool odd;\nuint_least16_t small;\n"
        'SEC("tcx/ingress") int f(struct __sk_buff *ctx) { odd = !odd; return TCX_NEXT; }\n'
    )
    loose.add(config(source + LICENSE, metric("odd"), hook="tc"))


def test_a_context_says_the_hook_if_the_section_does_not(loose: Loose) -> None:
    source = HEAD + (
        'unsigned long long load_byte(void *ctx, __u64 at) asm("llvm.bpf.load.byte");\n'
        '__attribute__((section("filter"), used)) int f(struct __sk_buff *ctx)\n'
        "{ return load_byte(ctx, 12) ? 0 : -1; }\n"
    )
    loose.add(config(source + LICENSE))
    assert [point.hook for point in loose.hooks.in_use()] == [Hook.TC_INGRESS]


def test_an_object_of_the_other_byte_order_says_so(tmp_path: Path) -> None:
    (tmp_path / "prog.o").write_bytes(compiled(COUNTER, tmp_path, "--target=bpfeb"))
    file = tmp_path / "probe.toml"
    file.write_text('name = "probe"\n[ingress]\ninterface = "lo"\nsource = "prog.o"\n')
    with pytest.raises(ProbedeckError, match="an object for BPF of the other byte order"):
        load(file)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("-g0",), "BTF is required, but is missing or corrupted.; compile it with -g"),
        (("-O0",), "unknown opcode 8d; compile it with -O2"),
    ],
)
def test_an_object_of_other_flags_says_the_right_ones(
    loose: Loose, tmp_path: Path, flags: tuple[str, ...], said: str
) -> None:
    with pytest.raises(ProbedeckError) as refused:
        loose.add(config(compiled(COUNTER, tmp_path, *flags)))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


ARRAY_KEY = """\
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __type(key, unsigned char[6]);
    __type(value, unsigned char[6]);
    __uint(max_entries, 4);
} macs SEC(".maps");
SEC("xdp") int f(struct xdp_md *ctx)
{
    unsigned char key[6] = {1, 2, 3, 4, 5, 6}, value[6] = {6};
    bpf_map_update_elem(&macs, key, value, BPF_ANY);
    return XDP_PASS;
}
"""


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_key_may_be_an_array(loose: Loose, snapshot: bool) -> None:
    probe = loose.add(config(HEAD + ARRAY_KEY + LICENSE, metric("macs", snapshot=snapshot)))
    assert [len(each.rows) for each in snapshots(probe.export())] == [0]
    loose.send(1)
    (found,) = snapshots(probe.export())
    assert found.rows["key"].tolist() == [[1, 2, 3, 4, 5, 6]]
    assert found.rows["value"].tolist() == [[6, 0, 0, 0, 0, 0]]
    assert found.schema is not None
    rows = list(objects(found.schema, found.rows))
    assert rows == [{"key": [1, 2, 3, 4, 5, 6], "value": [6, 0, 0, 0, 0, 0]}]
