"""BPF statistics: they cost time in every program, and so are on only while somebody asks."""

from __future__ import annotations

import os
from contextlib import closing

import pytest

from bpf import syscall
from bpf.attach.attachment import Hook
from bpf.compiler import Compiled
from bpf.programs.program import Program
from tests.bpf.tools import PACKET

pytestmark = pytest.mark.timing


def test_runs_are_counted_only_while_statistics_are_on(counters: dict[Hook, Compiled]) -> None:
    with closing(Program(counters[Hook.XDP], "counter")) as program:

        def counted_runs(repeat: int) -> int:
            before = program.info()
            syscall.prog_test_run(program.fd, PACKET, repeat=repeat)
            after = program.info()
            assert (after.run_time_ns > before.run_time_ns) == (after.run_count > before.run_count)
            return after.run_count - before.run_count

        assert counted_runs(100) == 0
        fd = syscall.enable_run_time_stats()
        assert counted_runs(100) == 100
        os.close(fd)
        assert counted_runs(100) == 0
