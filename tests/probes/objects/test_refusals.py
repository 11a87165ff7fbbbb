"""Refused sources and objects: one line names mistake and place, and leaves nothing behind."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
from pathlib import Path

import pytest

from bpf.compiler import Compiler
from bpf.errors import KernelError, ProbedeckError
from bpf.objects import client
from probes.config.model import dump, load, parse
from tests.probes.objects.sources import COUNTER, HEAD, LICENSE, compiled, config
from tests.probes.program.tools import Loose, metric, snapshots
from tests.support.descriptors import open_fds

PROGRAM = f'SEC("xdp") int count(struct xdp_md *ctx) {{ return XDP_PASS; }}\n{LICENSE}'


@pytest.mark.parametrize(
    ("source", "more", "said"),
    [
        (
            PROGRAM.replace("PASS", "PASSED"),
            {},
            "probe.ingress.c:3:51: error: use of undeclared identifier 'XDP_PASSED'",
        ),
        ('#include "none.h"\n' + PROGRAM, {}, "probe.ingress.c:3:10: error: 'none.h' file not fou"),
        (
            'SEC("xdp") int count(struct xdp_md *ctx)\n{\n'
            "    char *at = (void *)(long)ctx->data;\n    return *at;\n}\n" + LICENSE,
            {},
            "probe.ingress.c:6: error: the verifier refused count: the line uses byte 0 of the",
        ),
        (
            "extern int bpf_no_such(void) __ksym;\n"
            + PROGRAM.replace("return XDP", "bpf_no_such(); return XDP"),
            {},
            ":3:12: error: this kernel has no function bpf_no_such for programs, outside of its",
        ),
        (
            "struct { __uint(type, BPF_MAP_TYPE_LPM_TRIE); __uint(key_size, 8); "
            '__uint(value_size, 8);\n__uint(max_entries, 8); } trie SEC(".maps");\n' + PROGRAM,
            {},
            "probe.ingress.c:4:27: error: map trie cannot be made: Invalid argument",
        ),
        (
            "struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(key_size, 4); "
            '__uint(value_size, 4096);\n__uint(max_entries, 1 << 20); } big SEC(".maps");\n'
            + PROGRAM,
            {},
            "probe.ingress.c:4:33: error: map big would exceed the map memory that a probe may",
        ),
        (PROGRAM, {"define": {"none": 3}, "dialect": "libbpf"}, ""),
        (
            "const volatile __u8 small = 1;\n" + PROGRAM,
            {"define": {"small": 300}},
            "define: 300 does not fit small, of 1 bytes",
        ),
        (PROGRAM, {"function": "other"}, "the source has no program 'other'; it has count"),
        (
            PROGRAM + 'SEC("xdp") int two(struct xdp_md *ctx) { return XDP_PASS; }',
            {},
            "it has 2 programs (count, two); name one with ingress.function",
        ),
        (
            PROGRAM + 'SEC("tc") int two(struct __sk_buff *ctx) { return 0; }',
            {"function": "two", "hook": "xdp"},
            'two is a program of SEC("tc"), and this hook is another',
        ),
        ('SEC("kprobe/x") int f(void *ctx) { return 0; }\n' + LICENSE, {}, "it has no program"),
    ],
)
def test_a_source_is_refused_with_its_place(
    compiler: Compiler, loose: Loose, source: str, more: dict[str, object], said: str
) -> None:
    compiler.objects.unconfined()  # the helper keeps a socket and its output open
    before = len(os.listdir("/proc/self/fd"))
    if not said:
        loose.add(config(HEAD + source, **more))
        return
    with pytest.raises(ProbedeckError) as refused:
        loose.add(config(HEAD + source, **more))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(os.listdir("/proc/self/fd")) == before


STAGES = f"""{HEAD}struct {{
    __uint(type, BPF_MAP_TYPE_PROG_ARRAY); __uint(max_entries, 4);
    __uint(key_size, 4); __uint(value_size, 4);
}} stages SEC(".maps");
__u64 seen;
SEC("xdp") int first(struct xdp_md *ctx) {{ bpf_tail_call(ctx, &stages, 2); return XDP_DROP; }}
SEC("xdp") int last(struct xdp_md *ctx) {{ seen++; return XDP_PASS; }}
{LICENSE}"""


@pytest.mark.parametrize(
    ("programs", "said"),
    [
        ({2: "last"}, ""),
        ({2: "none"}, "maps.stages.programs.2: none cannot be there; it takes first, last"),
        ({4: "last"}, "programs.4: last cannot be there; it is a prog array of 4 slots"),
    ],
)
def test_a_program_array_takes_programs_of_its_source(
    loose: Loose, programs: dict[int, str], said: str
) -> None:
    options = {"maps": {"stages": {"programs": programs}}, "function": "first"}
    wanted = config(STAGES, metric("seen", snapshot=True), **options)
    if said:
        with pytest.raises(ProbedeckError, match=said):
            loose.add(wanted)
        return
    probe = loose.add(wanted)
    for _ in range(2):
        assert loose.send(3) == 2
        (table,) = snapshots(probe.export())
        assert table.rows["value"].tolist() == [3]


def test_variables_of_one_section_have_a_snapshot_in_common(loose: Loose) -> None:
    metrics = metric("seen", snapshot=True), metric("odd")
    with pytest.raises(ProbedeckError, match=r"metrics\[1\].snapshot: seen, in the same section"):
        loose.add(config(COUNTER.replace("odd = 1", "odd"), *metrics))


def test_no_object_of_bpf_is_refused_when_it_is_read(tmp_path: Path) -> None:
    good = compiled(COUNTER, tmp_path)
    foreign = tmp_path / "foreign.o"
    subprocess.run(["gcc", "-c", "-x", "c", "/dev/null", "-o", str(foreign)], check=True)
    for data, said in (
        (b"", "it is no object file"),
        (good[:-1], "it is cut short"),
        (good[:40], "it is cut short"),
        (foreign.read_bytes(), "it is an object for "),
        (good + bytes(10 << 20), "it has more than 2 MiB"),
    ):
        (tmp_path / "prog.bpf.o").write_bytes(data)
        file = tmp_path / "probe.toml"
        file.write_text('name = "probe"\n[ingress]\ninterface = "lo"\nsource = "prog.bpf.o"\n')
        with pytest.raises(ProbedeckError, match=said):
            load(file)
    for text, said in (("%", "it is not in base64"), ("AAAA", "it is no object file")):
        with pytest.raises(ProbedeckError, match=said):
            parse({"name": "probe", "ingress": {"interface": "lo", "object": text}}, "request")
    (tmp_path / "prog.bpf.o").write_bytes(good)
    config_ = load(file)
    assert config_.ingress is not None
    assert base64.b64decode(config_.ingress.object) == good
    assert config_.files() == {"probe.ingress.o": str(tmp_path / "prog.bpf.o")}
    assert dump(parse(dump(config_), "request")) == dump(config_.with_source("ingress", ""))
    edited = config_.with_source("ingress", COUNTER)
    assert edited.ingress is not None
    assert (edited.ingress.object, edited.ingress.source) == ("", COUNTER)
    assert not edited.files()


def test_broken_objects_leave_nothing(loose: Loose, tmp_path: Path) -> None:
    good = compiled(COUNTER, tmp_path)
    types = good.index(b"\x9f\xeb\x01\x00")
    broken = good[: types + 24] + bytes(200) + good[types + 224 :]
    for _ in range(2):  # the first one starts the helper
        before = open_fds()
        with pytest.raises(ProbedeckError, match=r"does not load: error: libbpf cannot open .*BTF"):
            loose.add(config(broken))
    assert open_fds() <= before
    loose.add(config(good))


def test_a_host_without_clang_takes_objects(
    loose: Loose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = compiled(COUNTER, tmp_path)
    monkeypatch.setattr(client, "_CLANGS", ("no-such-clang",))
    with pytest.raises(KernelError, match=r"needs clang, .* libbpf-dev"):
        loose.add(config(COUNTER.replace("!= 3", "!= 4 - 1")))
    loose.add(config(data))


def test_the_helper_comes_back_after_its_death(compiler: Compiler, loose: Loose) -> None:
    loose.add(config(COUNTER))
    objects = compiler.objects
    pid = objects._helper.pid
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    loose.add(config(COUNTER))
    assert objects.unconfined() == ""
