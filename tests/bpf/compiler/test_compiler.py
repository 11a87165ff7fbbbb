"""The compile helper: what it gives, and how it and its client survive each other."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from bpf import syscall
from bpf.abi import MapFlag, MapType, ProgType
from bpf.compiler import Compiled, CompileError, Compiler, client
from bpf.errors import KernelError, ProbedeckError
from bpf.syscall import MapSpec
from tests.bpf.tools import LADDER, PACKET, ended, open_fds, python, read_u64

FINE = "int f(struct xdp_md *ctx) { return XDP_PASS; }\n"
CRASH = """\
BPF_ARRAY(bits, u64, 1);
int f(struct xdp_md *ctx)
{
    u32 zero = 0;
    u64 *v = bits.lookup(&zero);
    if (v)
        *v = __builtin_ctz(bpf_get_prandom_u32());
    return XDP_PASS;
}
"""
"""Valid C on which LLVM 14 to 18 crash."""
GLUTTON = (
    "#define A0 1,\n"
    + "\n".join(f"#define A{i} A{i - 1} A{i - 1}" for i in range(1, 40))
    + "\nstatic int a[] = { A39 };\n"
    + FINE
)


@contextmanager
def compiling(compiler: Compiler) -> Iterator[Future[Compiled]]:
    """Have another thread in the middle of a long compile."""
    with ThreadPoolExecutor(1) as thread:
        compiler.compile(FINE, ProgType.XDP).close()
        future = thread.submit(compiler.compile, LADDER, ProgType.XDP)
        time.sleep(0.2)
        assert not future.done()
        yield future


def helper_fds(compiler: Compiler) -> int:
    """Descriptors of the idle helper, which closes a compile's objects after its answer."""
    time.sleep(0.2)
    return len(os.listdir(f"/proc/{compiler.pid}/fd"))


def assert_works(compiler: Compiler) -> None:
    with compiler.compile(FINE, ProgType.XDP) as compiled:
        assert syscall.prog_test_run(compiled.programs["f"].fd, PACKET).verdict == 2


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
    assert open_fds() == before
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


def assert_brings_it_down(compiler: Compiler, source: str, cause: str, line: int) -> None:
    """Assert that a source is refused with one line, and that the compiler works afterwards."""
    first = compiler.pid
    with pytest.raises(CompileError) as caught:
        compiler.compile(source, ProgType.XDP, name="my.c")
    *_, diagnostic = caught.value.diagnostics
    assert diagnostic.text == cause
    assert str(caught.value) == f"my.c does not compile: {diagnostic}"
    assert diagnostic.line == line
    assert not Path(f"/proc/{first}").exists()
    assert_works(compiler)


@pytest.mark.parametrize(
    ("source", "cpu_limit", "cause"),
    [
        (LADDER, 0.3, "the compiler was stopped: not done after 0.3 s of CPU time"),
        (GLUTTON, 10.0, "the compiler was stopped: it needed more than 1 GiB of memory"),
    ],
    ids=["hang", "memory"],
)
def test_a_source_that_brings_the_compiler_down_is_refused_with_the_cause(
    source: str, cpu_limit: float, cause: str
) -> None:
    before = open_fds()
    with Compiler(cpu_limit=cpu_limit) as compiler:
        assert_brings_it_down(compiler, source, cause, 0)
    assert open_fds() == before


CRASHED = "the compiler crashed (SIGSEGV): LLVM cannot take something in this source"


def test_a_crash_names_the_line_of_what_llvm_is_known_to_crash_on() -> None:
    """On every LLVM: the helper gets the signal of a crash while it compiles."""
    before = open_fds()
    source = CRASH + LADDER.replace("int f(", "int g(")
    with Compiler() as compiler:
        assert_works(compiler)
        crash = threading.Timer(0.2, os.kill, (compiler.pid, signal.SIGSEGV))
        crash.start()
        assert_brings_it_down(compiler, source, CRASHED, _line_of(CRASH, "__builtin_ctz"))
        crash.join()
    assert open_fds() == before


def test_c_on_which_llvm_14_to_18_crash_is_refused_with_its_line() -> None:
    """Later ones make a constant table of it, which the verifier refuses."""
    with Compiler() as compiler:
        with pytest.raises(CompileError) as caught:
            compiler.compile(CRASH, ProgType.XDP, name="my.c").close()
        *_, diagnostic = caught.value.diagnostics
        assert str(caught.value) == f"my.c does not compile: {diagnostic}"
        assert diagnostic.text == CRASHED or "constant tables" in diagnostic.text
        assert diagnostic.line == _line_of(CRASH, "__builtin_ctz")
        assert_works(compiler)


def _line_of(source: str, text: str) -> int:
    return source[: source.index(text)].count("\n") + 1


def test_a_compile_on_a_busy_machine_may_last_longer_than_its_cpu_time() -> None:
    """A helper that gets the CPU one time in ten is not taken for one that hangs."""
    body = "\n".join(f"    x += x * {i} + bpf_get_prandom_u32();" for i in range(500))
    source = f"int f(struct xdp_md *ctx)\n{{\n    u64 x = 1;\n{body}\n    return x & 1;\n}}\n"
    with Compiler() as quick:
        quick.compile(FINE, ProgType.XDP).close()
        before = cpu_seconds(quick.pid)
        quick.compile(source, ProgType.XDP).close()
        needed = cpu_seconds(quick.pid) - before
    limit = 3 * needed + 0.1
    with Compiler(cpu_limit=limit) as compiler:
        assert_works(compiler)
        pid, started = compiler.pid, time.monotonic()
        with ThreadPoolExecutor(1) as thread:
            compiled = thread.submit(compiler.compile, source, ProgType.XDP)
            while not compiled.done():
                os.kill(pid, signal.SIGSTOP)
                time.sleep(0.05)
                os.kill(pid, signal.SIGCONT)
                time.sleep(0.01)
            compiled.result().close()
        assert time.monotonic() - started > limit
        assert compiler.pid == pid


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_helper_that_never_goes_on_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_REPLY_GRACE_S", 0.2)
    with Compiler() as compiler:
        assert_works(compiler)
        compiler._wall_limit = 0.5
        stopped = compiler.pid
        os.kill(stopped, signal.SIGSTOP)
        with pytest.raises(CompileError, match=r"stopped: not done after 0\.5 s"):
            compiler.compile(FINE, ProgType.XDP)
        assert not Path(f"/proc/{stopped}").exists()
        compiler._wall_limit = 60
        assert_works(compiler)


def test_a_helper_killed_between_compiles_is_replaced(compiler: Compiler) -> None:
    assert_works(compiler)
    killed = compiler.pid
    os.kill(killed, signal.SIGKILL)
    assert ended(killed, 5)
    assert_works(compiler)
    assert compiler.pid != killed
    assert not Path(f"/proc/{killed}").exists()


def test_a_helper_killed_in_a_compile_fails_that_compile_alone() -> None:
    with Compiler() as compiler, compiling(compiler) as future:
        os.kill(compiler.pid, signal.SIGKILL)
        with pytest.raises(CompileError, match="SIGKILL"):
            future.result(5)
        assert_works(compiler)


@pytest.mark.timing
def test_closing_ends_a_compile_of_another_thread_at_once() -> None:
    before = open_fds()
    compiler = Compiler()
    with compiling(compiler) as future:
        pid, started = compiler.pid, time.monotonic()
        compiler.close()
        with pytest.raises(ProbedeckError, match="closed"):
            future.result(5)
        assert time.monotonic() - started < 1
    assert compiler.pid == pid
    assert not Path(f"/proc/{pid}").exists()
    compiler.close()
    with pytest.raises(ProbedeckError, match="closed"):
        compiler.compile(FINE, ProgType.XDP)
    assert open_fds() == before


@pytest.mark.timing
def test_closing_does_not_wait_for_the_helper_to_be_warm() -> None:
    before, started = open_fds(), time.monotonic()
    compiler = Compiler()
    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(compiler.compile, FINE, ProgType.XDP)
        time.sleep(0.02)
        compiler.close()
        with pytest.raises(ProbedeckError, match="closed"):
            future.result(5)
    assert time.monotonic() - started < 1
    assert open_fds() == before


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
    assert open_fds() == ours
    assert helper_fds(compiler) == helpers


def test_threads_that_share_a_compiler_take_turns_and_two_compilers_work_side_by_side(
    compiler: Compiler,
) -> None:
    def verdict(at: int) -> int:
        source = f"int f(struct xdp_md *ctx)\n{{\n    return {at};\n}}\n"
        with (compiler if at % 2 else other).compile(source, ProgType.XDP) as compiled:
            return syscall.prog_test_run(compiled.programs["f"].fd, PACKET).verdict

    with Compiler() as other, ThreadPoolExecutor(4) as threads:
        assert list(threads.map(verdict, range(24))) == list(range(24))


CLIENT = f"""
import sys
from bpf.compiler import Compiler
from bpf.abi import (ProgType)
compiler = Compiler(cpu_limit=60)
compiler.compile({FINE!r}, ProgType.XDP).close()
print(compiler.pid, flush=True)
if sys.argv[1] == "busy":
    compiler.compile({LADDER!r}, ProgType.XDP)
sys.stdin.read()
"""


@pytest.mark.parametrize("state", ["idle", "busy"])
def test_the_helper_ends_with_a_client_that_is_killed(state: str) -> None:
    with python(CLIENT, state) as process:
        assert process.stdout is not None
        helper = int(process.stdout.readline())
        time.sleep(0.3)
        assert not ended(helper, 0)
        process.kill()
        assert ended(helper, 0.5)


def test_a_helper_does_not_get_the_consoles_ctrl_c(compiler: Compiler) -> None:
    assert_works(compiler)
    assert os.getpgid(compiler.pid) != os.getpgid(0)
    pid = compiler.pid
    os.kill(pid, signal.SIGINT)
    assert_works(compiler)
    assert compiler.pid == pid


def test_headers_that_everybody_may_write_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    shutil.copytree(client.HEADERS, shared / "headers", symlinks=True)
    shared.chmod(0o777)
    monkeypatch.setattr(client, "HEADERS", shared / "headers")
    with Compiler() as compiler:
        with pytest.raises(KernelError, match="shared is writable by everybody"):
            compiler.compile(FINE, ProgType.XDP)
        shared.chmod(0o755)
        assert_works(compiler)


def test_a_python_without_bcc_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "SYSTEM_PYTHON", sys.executable)
    started = time.monotonic()
    with Compiler() as compiler, pytest.raises(KernelError) as caught:
        compiler.compile(FINE, ProgType.XDP)
    assert "cannot import bcc" in caught.value.message
    assert "apt install python3-bpfcc" in caught.value.hint
    assert time.monotonic() - started < 2


def test_without_privileges_the_error_says_which_are_needed() -> None:
    script = f"""
from bpf.compiler import Compiler
from bpf.errors import KernelError
from bpf.abi import (ProgType)
try:
    with Compiler() as compiler:
        compiler.compile({FINE!r}, ProgType.XDP)
except KernelError as error:
    print(error)
"""
    with python(script, nobody=True) as process:
        said, _ = process.communicate(timeout=10)
    assert "Operation not permitted" in said
    assert "CAP_BPF" in said


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
