"""The compile helper crashes, hangs, is killed or loses its client."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from bpf.abi import ProgType
from bpf.compiler import Compiled, CompileError, client
from bpf.compiler.client import Compiler
from bpf.compiler.diagnostics import LIMIT_VARIABLE
from bpf.errors import KernelError, ProbedeckError, UsageError
from tests.bpf.compiler.sources import FINE, assert_works
from tests.bpf.tools import LADDER, ended, python
from tests.support.descriptors import open_fds

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


SLOW = (
    "the compiler was stopped: not done after 0.3 s of CPU time; on a slow machine set "
    "PROBEDECK_COMPILE_LIMIT to more seconds"
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


def assert_brings_it_down(compiler: Compiler, source: str, cause: str, line: int) -> None:
    """Assert that a source is refused with one line, and that the compiler works afterwards."""
    assert_works(compiler)
    first = compiler.pid
    with pytest.raises(CompileError) as caught:
        compiler.compile(source, ProgType.XDP, name="my.c")
    *_, diagnostic = caught.value.diagnostics
    assert diagnostic.text == cause
    assert str(caught.value) == f"my.c does not compile: {diagnostic}"
    assert diagnostic.line == line
    assert not Path(f"/proc/{first}").exists()
    assert_works(compiler)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "cpu_limit", "cause"),
    [
        (LADDER, 0.3, SLOW),
        (GLUTTON, 10.0, "the compiler was stopped: it needed more than 1 GiB of memory"),
    ],
    ids=["hang", "memory"],
)
def test_a_source_that_brings_the_compiler_down_is_refused_with_the_cause(
    source: str, cpu_limit: float, cause: str
) -> None:
    before = open_fds()
    with Compiler(stores=(), cpu_limit=cpu_limit) as compiler:
        assert_brings_it_down(compiler, source, cause, 0)
    assert open_fds() <= before


CRASHED = "the compiler crashed (SIGSEGV): LLVM cannot take something in this source"


@pytest.mark.slow
def test_a_crash_names_the_line_of_what_llvm_is_known_to_crash_on() -> None:
    """On every LLVM: the helper gets the signal of a crash while it compiles."""
    before = open_fds()
    source = CRASH + LADDER.replace("int f(", "int g(")
    with Compiler(stores=()) as compiler:
        assert_works(compiler)
        crash = threading.Timer(0.2, os.kill, (compiler.pid, signal.SIGSEGV))
        crash.start()
        assert_brings_it_down(compiler, source, CRASHED, _line_of(CRASH, "__builtin_ctz"))
        crash.join()
    assert open_fds() <= before


def test_c_on_which_llvm_14_to_18_crash_is_refused_with_its_line() -> None:
    """Later ones make a constant table of it, which the verifier refuses."""
    with Compiler(stores=()) as compiler:
        with pytest.raises(CompileError) as caught:
            compiler.compile(CRASH, ProgType.XDP, name="my.c").close()
        *_, diagnostic = caught.value.diagnostics
        assert str(caught.value) == f"my.c does not compile: {diagnostic}"
        assert diagnostic.text == CRASHED or "constant tables" in diagnostic.text
        assert diagnostic.line == _line_of(CRASH, "__builtin_ctz")
        assert_works(compiler)


def _line_of(source: str, text: str) -> int:
    return source[: source.index(text)].count("\n") + 1


@pytest.mark.slow
def test_a_compile_on_a_busy_machine_may_last_longer_than_its_cpu_time() -> None:
    """A helper that gets the CPU one time in ten is not taken for one that hangs."""
    body = "\n".join(f"    x += x * {i} + bpf_get_prandom_u32();" for i in range(500))
    source = f"int f(struct xdp_md *ctx)\n{{\n    u64 x = 1;\n{body}\n    return x & 1;\n}}\n"
    with Compiler(stores=()) as quick:
        quick.compile(FINE, ProgType.XDP).close()
        before = cpu_seconds(quick.pid)
        quick.compile(source, ProgType.XDP).close()
        needed = cpu_seconds(quick.pid) - before
    limit = 3 * needed + 0.1
    with Compiler(stores=(), cpu_limit=limit) as compiler:
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


@pytest.mark.slow
def test_a_helper_that_never_goes_on_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_REPLY_GRACE_S", 0.2)
    with Compiler(stores=()) as compiler:
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
    with Compiler(stores=()) as compiler, compiling(compiler) as future:
        os.kill(compiler.pid, signal.SIGKILL)
        # Nearly always the kernel's OOM killer: the source is not to blame.
        with pytest.raises(KernelError, match=r"SIGKILL.* memory runs out; give .*memory\.max"):
            future.result(5)
        assert_works(compiler)


def test_a_helper_killed_at_its_start_is_told_with_the_remedy() -> None:
    with Compiler(stores=()) as compiler, ThreadPoolExecutor(1) as thread:
        unconfined = thread.submit(compiler.unconfined)
        while not compiler.is_running:
            time.sleep(0.001)
        os.kill(compiler.pid, signal.SIGKILL)
        with pytest.raises(KernelError, match=r"not start: .*memory runs out; give .*max"):
            unconfined.result(5)


def test_a_slow_machine_sets_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, "90")
    with Compiler(stores=()) as compiler:
        assert (compiler._cpu_limit, compiler._wall_limit) == (90, 900)
    monkeypatch.setenv(LIMIT_VARIABLE, "soon")
    with pytest.raises(UsageError, match="PROBEDECK_COMPILE_LIMIT: 'soon' is no number"):
        Compiler(stores=())


@pytest.mark.timing
def test_closing_ends_a_compile_of_another_thread_at_once() -> None:
    before = open_fds()
    compiler = Compiler(stores=())
    with compiling(compiler) as future:
        pid, started = compiler.pid, time.monotonic()
        compiler.close()
        with pytest.raises(ProbedeckError, match="closed"):
            future.result(5)
        assert time.monotonic() - started < 1
    assert not compiler.is_running
    assert not Path(f"/proc/{pid}").exists()
    compiler.close()
    with pytest.raises(ProbedeckError, match="closed"):
        compiler.compile(FINE, ProgType.XDP)
    assert open_fds() <= before


@pytest.mark.timing
def test_closing_does_not_wait_for_the_helper_to_be_warm() -> None:
    before, started = open_fds(), time.monotonic()
    compiler = Compiler(stores=())
    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(compiler.compile, FINE, ProgType.XDP)
        time.sleep(0.02)
        compiler.close()
        with pytest.raises(ProbedeckError, match="closed"):
            future.result(5)
    assert time.monotonic() - started < 1
    assert open_fds() <= before


CLIENT = f"""
import sys
from bpf.compiler import Compiler
from bpf.abi import (ProgType)
compiler = Compiler(stores=(), cpu_limit=60)
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
