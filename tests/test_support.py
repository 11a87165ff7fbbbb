"""Tests share compiled sources, and processes of one test draw different secrets."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from bpf.abi import ProgType
from bpf.compiler import CompileError
from bpf.syscall import prog_test_run
from tests.support.compiling import COMPILED, PROCESS, SharedCompiler, drawn

SOURCE = """\
struct pair { u32 a, b; };
BPF_HASH(pairs, u32, struct pair, 16);
BPF_ARRAY(inner, u32, 4);
BPF_ARRAY_OF_MAPS(outer, "inner", 2);
int kept(struct xdp_md *ctx)
{
    u32 key = 1;
    struct pair *found = pairs.lookup(&key);
    return found || outer.lookup(&key) ? XDP_DROP : XDP_PASS;
}
"""


def test_another_process_finds_a_compiled_source_and_needs_no_helper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(COMPILED, str(tmp_path))
    with (
        SharedCompiler() as first,
        first.compile(SOURCE, ProgType.XDP) as made,
        SharedCompiler() as second,
        second.compile(SOURCE, ProgType.XDP) as found,
    ):
        assert (first._needed, second._needed) == (True, False)
        assert found.programs["kept"].instructions == made.programs["kept"].instructions
        assert {n: m.spec for n, m in found.maps.items()} == {
            n: m.spec for n, m in made.maps.items()
        }
        assert found.maps["pairs"].value == made.maps["pairs"].value
        assert found.maps["pairs"].fd != made.maps["pairs"].fd
        assert prog_test_run(found.programs["kept"].fd, bytes(64)).verdict == 2
        with pytest.raises(CompileError):
            second.compile("int x", ProgType.XDP)
        assert len(os.listdir(tmp_path)) == 1, "a refused source is not kept"
        # Another constant is another program.
        second.compile(SOURCE, ProgType.XDP, cflags=["-DX=1"]).close()
        assert len(os.listdir(tmp_path)) == 2


def test_secrets_are_alike_in_each_test_and_differ_within_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draw = {"__name__": "probes.path.programs", "secrets": secrets}
    sets = []
    for process in ("", "", "1"):
        monkeypatch.setenv(PROCESS, process)
        drawn.clear()
        sets.append([eval("secrets.randbits(64)", draw) for _ in range(3)])
    assert sets[0] == sets[1]
    assert len({*sets[0], *sets[2]}) == 6
    assert secrets.randbits(64) != secrets.randbits(64)
