"""The compile helper: what it makes of a source, and for how many threads."""

from __future__ import annotations

import os
import resource
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from bpf import syscall
from bpf.abi import MapFlag, MapType, ProgType
from bpf.compiler import CompileError, client
from bpf.compiler.client import Compiler
from bpf.errors import KernelError
from bpf.syscall import MapSpec
from tests.bpf.compiler.sources import FINE, assert_works
from tests.bpf.tools import PACKET, read_u64
from tests.support.descriptors import open_fds


def helper_fds(compiler: Compiler) -> int:
    """Descriptors of the idle helper, which closes a compile's objects after its answer."""
    time.sleep(0.2)
    return len(os.listdir(f"/proc/{compiler.pid}/fd"))


def test_a_source_becomes_programs_and_maps_that_work(compiler: Compiler) -> None:
    source = """\
#include "size.h"
struct key { u8 proto; u32 address; };
BPF_HASH(sizes, struct key, struct size, 64);
BPF_PERCPU_ARRAY(errors, u64, 3);
BPF_F_TABLE("array", u32, u64, runs, 2, BPF_F_MMAPABLE);
BPF_QUEUE(queue, u32, 16);
BPF_RINGBUF_OUTPUT(events, 4);

static u32 drop_or_pass(u64 run) { return run & 1 ? XDP_PASS : XDP_DROP; }

int f(struct xdp_md *ctx)
{
    u32 zero = 0;
    u64 *run = runs.lookup(&zero);
    return run ? drop_or_pass((*run)++) : XDP_ABORTED;
}

int g(struct xdp_md *ctx)
{
    struct key key = { .proto = 6, .address = LIMIT };
    struct size size = { .bytes = ctx->data_end - ctx->data, .packets = 1 };
    sizes.update(&key, &size);
    return XDP_PASS;
}
"""
    headers = {"size.h": "struct size { u32 packets; u64 bytes; };\n"}
    with compiler.compile(
        source, ProgType.XDP, name="my.c", headers=headers, cflags=["-DLIMIT=7"]
    ) as compiled:
        assert compiled.name == "my.c"
        assert compiled.diagnostics == ()
        assert {m.spec for m in compiled.maps.values()} == {
            MapSpec("sizes", MapType.HASH, 8, 16, 64),
            MapSpec("errors", MapType.PERCPU_ARRAY, 4, 8, 3),
            MapSpec("runs", MapType.ARRAY, 4, 8, 2, MapFlag.MMAPABLE),
            MapSpec("queue", MapType.QUEUE, 0, 4, 16),
            MapSpec("events", MapType.RINGBUF, 0, 0, 4 * 4096),
        }
        sizes = compiled.maps["sizes"]
        assert sizes.key is not None
        assert sizes.value is not None
        assert sizes.key.fields is not None
        assert {n: (str(f[0]), f[1]) for n, f in sizes.key.fields.items()} == {
            "proto": ("uint8", 0),
            "address": ("uint32", 4),
        }
        assert sizes.key.itemsize == 8
        assert sizes.value.itemsize == 16
        assert compiled.maps["queue"].key is None
        assert compiled.maps["events"].value is None

        f, g = compiled.programs["f"], compiled.programs["g"]
        assert (f.type, f.license) == (ProgType.XDP, "GPL")
        assert [syscall.prog_test_run(f.fd, PACKET).verdict for _ in range(3)] == [1, 2, 1]
        assert read_u64(compiled.maps["runs"].fd) == 3
        syscall.prog_test_run(g.fd, PACKET)
        stored = syscall.map_lookup(sizes.fd, bytes((6, 0, 0, 0, 7, 0, 0, 0)), 16)
        assert stored is not None
        assert np.frombuffer(stored, sizes.value)[0].item() == (1, len(PACKET))


@pytest.mark.slow
def test_more_descriptors_than_one_message_can_carry(compiler: Compiler) -> None:
    maps = [f"m{i}" for i in range(120)]
    source = "".join(f"BPF_ARRAY({name}, u64, {i + 1});\n" for i, name in enumerate(maps))
    source += "".join(
        f"int f{i}(struct xdp_md *ctx)\n{{\n    return {i};\n}}\n" for i in range(150)
    )
    before = open_fds()
    with compiler.compile(source, ProgType.XDP) as compiled:
        assert open_fds() - before == 271  # and the types
        assert not any(os.get_inheritable(m.fd) for m in compiled.maps.values())
        for i in (0, 99, 149):
            assert syscall.prog_test_run(compiled.programs[f"f{i}"].fd, PACKET).verdict == i
        for i in (0, 60, 119):
            fd = compiled.maps[f"m{i}"].fd
            assert syscall.map_lookup(fd, i.to_bytes(4, "little"), 8) == bytes(8)
            assert syscall.map_lookup(fd, (i + 1).to_bytes(4, "little"), 8) is None

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 100, hard))
    try:
        with pytest.raises(KernelError, match=r"270 programs and maps.*ulimit -n"):
            compiler.compile(source, ProgType.XDP)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert open_fds() <= before
    assert_works(compiler)


@pytest.mark.parametrize(
    ("declaration", "reason"),
    [
        ("BPF_ARRAY(traces, long double, 1);", "type: unknown C type 'long double'"),
        ("struct v { long double x; };\nBPF_HASH(traces, u32, struct v);", "x: unknown C type"),
    ],
)
def test_a_map_that_cannot_be_read_is_marked_and_its_program_runs(
    compiler: Compiler, declaration: str, reason: str
) -> None:
    with compiler.compile(f"{declaration}\n{FINE}", ProgType.XDP, name="my.c") as compiled:
        found = compiled.maps["traces"]
        assert reason in found.unreadable
        assert (found.key, found.value) == (None, None)
        assert syscall.prog_test_run(compiled.programs["f"].fd, PACKET).verdict == 2


def test_no_program_is_attached_by_its_name(compiler: Compiler) -> None:
    """bcc would, to a kernel function or a trace point, for any source that says so."""
    source = "int kprobe__do_nanosleep(void *ctx) { return 0; }\n"
    with compiler.compile(source, ProgType.XDP) as compiled:
        assert list(compiled.programs) == ["kprobe__do_nanosleep"]
        events = Path("/sys/kernel/tracing/kprobe_events")
        assert not events.exists() or "do_nanosleep" not in events.read_text()


@pytest.mark.slow
def test_many_compiles_leave_neither_descriptors_nor_helpers_behind(compiler: Compiler) -> None:
    counting = "BPF_ARRAY(a, u64, 1);\nBPF_HASH(h, u32, u64);\n" + FINE
    unverified = "int f(struct xdp_md *ctx)\n{\n    return *(int *)(long)ctx->data;\n}\n"
    assert_works(compiler)
    ours, helpers = open_fds(), helper_fds(compiler)
    for number in range(50):
        if number % 5 < 3:
            compiler.compile(counting, ProgType.XDP).close()
        else:
            broken = unverified if number % 5 == 3 else "BPF_ARRAY(a, u64, 1);\nint f( {"
            with pytest.raises(CompileError):
                compiler.compile(broken, ProgType.XDP)
    assert_works(compiler)
    assert open_fds() <= ours
    assert helper_fds(compiler) == helpers


def test_threads_that_share_a_compiler_take_turns_and_two_compilers_work_side_by_side(
    compiler: Compiler,
) -> None:
    def verdict(at: int) -> int:
        source = f"int f(struct xdp_md *ctx)\n{{\n    return {at};\n}}\n"
        with (compiler if at % 2 else other).compile(source, ProgType.XDP) as compiled:
            return syscall.prog_test_run(compiled.programs["f"].fd, PACKET).verdict

    with Compiler(stores=()) as other, ThreadPoolExecutor(4) as threads:
        assert list(threads.map(verdict, range(24))) == list(range(24))


def test_headers_that_everybody_may_write_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    shutil.copytree(client.HEADERS, shared / "headers", symlinks=True)
    shared.chmod(0o777)
    monkeypatch.setattr(client, "HEADERS", shared / "headers")
    with Compiler(stores=()) as compiler:
        with pytest.raises(KernelError, match="shared is writable by everybody"):
            compiler.compile(FINE, ProgType.XDP)
        shared.chmod(0o755)
        assert_works(compiler)


@pytest.mark.timing
def test_a_compile_leaves_other_threads_running(compiler: Compiler) -> None:
    """The interface must go on drawing while a compile runs."""
    gaps: list[float] = []
    stop = threading.Event()

    def tick() -> None:
        last = time.monotonic()
        while not stop.wait(0.001):
            now = time.monotonic()
            gaps.append(now - last)
            last = now

    thread = threading.Thread(target=tick)
    thread.start()
    for _ in range(5):
        compiler.compile(FINE, ProgType.XDP).close()
    stop.set()
    thread.join()
    assert sorted(gaps)[int(len(gaps) * 0.9)] < 0.02


def test_what_the_stack_held_before_is_in_no_key(compiler: Compiler) -> None:
    """Else equal keys differ in their padding, which a program seldom clears; S1.10."""
    source = """\
struct key { u8 kind; u32 address; };
BPF_HASH(sizes, struct key, u64, 16);

static __noinline u32 noise(struct xdp_md *ctx)
{
    volatile u64 words[8];
    for (u32 i = 0; i < 8; i++)
        words[i] = 0xabababababababab * (ctx->rx_queue_index + 1);
    return words[3];
}

int f(struct xdp_md *ctx)
{
    struct key key;
    u32 one = noise(ctx) & 1;
    key.kind = one;
    key.address = 7;
    sizes.increment(key, ctx->data_end - ctx->data);
    return XDP_PASS;
}
"""
    with compiler.compile(source, ProgType.XDP) as compiled:
        for _ in range(3):
            syscall.prog_test_run(compiled.programs["f"].fd, PACKET)
        key = bytes((1, 0, 0, 0, 7, 0, 0, 0))
        stored = syscall.map_lookup(compiled.maps["sizes"].fd, key, 8)
        assert stored is not None
        assert int.from_bytes(stored, "little") == 3 * len(PACKET)


def test_an_increment_that_inserts_nothing_is_warned_of(compiler: Compiler) -> None:
    """bcc's does so in a plain hash only."""
    source = """\
BPF_HASH(plain, u32);
BPF_PERCPU_HASH(apart, u32);

int f(struct xdp_md *ctx)
{
    u32 key = 1;
    plain.increment(key);
    apart.increment(key);
    return XDP_PASS;
}
"""
    with compiler.compile(source, ProgType.XDP, name="my.c") as compiled:
        assert [(d.severity, d.line, d.text) for d in compiled.diagnostics] == [
            (
                "warning",
                8,
                "increment() inserts nothing into a percpu hash; use lookup_or_try_init()",
            )
        ]
