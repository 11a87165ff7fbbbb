"""Work that is ended by another thread, above all a compile."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from bpf.abi import ProgType
from bpf.compiler import Compiled, Compiler
from bpf.errors import Cancel, CancelError, cancelled_by, current
from tests.bpf.compiler.sources import FINE
from tests.bpf.tools import LADDER, ended
from tests.support.descriptors import open_fds


def work(compiler: Compiler, source: str, cancel: Cancel) -> Compiled:
    with cancelled_by(cancel):
        return compiler.compile(source, ProgType.XDP)


@pytest.mark.timing
def test_a_cancelled_compile_ends_at_once_and_the_next_finds_a_helper(compiler: Compiler) -> None:
    compiler.compile(FINE, ProgType.XDP).close()
    before, pid = open_fds(), compiler.pid
    cancel, other = Cancel(), Cancel()
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(work, compiler, LADDER, cancel)
        time.sleep(0.1)
        assert cancel.cancellable
        second = threads.submit(work, compiler, FINE, other)
        time.sleep(0.1)
        assert not first.done()
        started = time.monotonic()
        assert cancel.ask()
        with pytest.raises(CancelError):
            first.result()
        assert time.monotonic() - started < 0.3
        second.result().close()
    assert compiler.pid != pid
    assert ended(pid, 0)
    assert open_fds() <= before


def test_who_waits_for_the_compiler_can_leave_the_queue(compiler: Compiler) -> None:
    compiler.compile(FINE, ProgType.XDP).close()
    pid, holds, cancel = compiler.pid, Cancel(), Cancel()
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(work, compiler, LADDER, holds)
        time.sleep(0.1)
        second = threads.submit(work, compiler, FINE, cancel)
        time.sleep(0.1)
        cancel.ask()
        with pytest.raises(CancelError):
            second.result(0.3)
        assert not first.done()
        assert compiler.pid == pid
        holds.ask()
        assert isinstance(first.exception(), CancelError)


def test_a_cancelled_thread_compiles_nothing_more_and_others_do(compiler: Compiler) -> None:
    cancel = Cancel()
    assert not cancel.ask()
    with pytest.raises(CancelError):
        work(compiler, FINE, cancel)
    assert current() is not cancel
    compiler.compile(FINE, ProgType.XDP).close()


def test_an_end_is_called_when_it_is_asked_for_and_not_after_it_was_left() -> None:
    cancel, called = Cancel(), []
    with cancel.on_cancel(lambda: called.append(1)):
        assert cancel.ask()
    assert called == [1]
    assert not cancel.ask()
    assert called == [1]
    with cancel.on_cancel(lambda: called.append(2)):
        assert called == [1, 2]
