"""A source that compiles, and an assertion that a compiler works."""

from __future__ import annotations

from bpf import syscall
from bpf.abi import ProgType
from bpf.compiler import Compiler
from tests.bpf.tools import PACKET

FINE = "int f(struct xdp_md *ctx) { return XDP_PASS; }\n"


def assert_works(compiler: Compiler) -> None:
    with compiler.compile(FINE, ProgType.XDP) as compiled:
        assert syscall.prog_test_run(compiled.programs["f"].fd, PACKET).verdict == 2
