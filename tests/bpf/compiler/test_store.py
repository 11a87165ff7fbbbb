"""Stored programs: found by another compiler, for other constants, and refused if damaged."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from bpf.abi import ProgType
from bpf.attach.attachment import Hook
from bpf.attach.interface import Interface
from bpf.compiler import Compiled, CompileError, client, store
from bpf.compiler.client import Compiler
from bpf.compiler.store import DamagedError
from bpf.errors import KernelError
from bpf.syscall import prog_test_run
from probes.flow.probe import FlowProbe
from probes.flow.records import FlowDirection, TableSizes
from probes.hooks import Hooks
from tests.bpf.stores import Make
from tests.bpf.stores import folder as folder
from tests.bpf.stores import make as make
from tests.support.descriptors import open_fds

SOURCE = """\
#ifdef X /* another program */
#endif
struct pair { u32 a, b; };
BPF_HASH(pairs, u32, struct pair, 16);
BPF_ARRAY(inner, u64, 4);
BPF_ARRAY_OF_MAPS(outer, "inner", 2);
int kept(struct xdp_md *ctx)
{
    u32 key = CONSTANT(KEY);
    struct pair *found = pairs.lookup(&key);
    return found ? XDP_DROP : CONSTANT(VERDICT);
}
"""


def compiled(compiler: Compiler, verdict: int = 1, *more: str) -> Compiled:
    flags = [f"-DVERDICT={verdict}", "-DKEY=0xfedcba9876543210ULL", *more]
    return compiler.compile(SOURCE, ProgType.XDP, cflags=flags)


def verdict(made: Compiled) -> int:
    return prog_test_run(made.programs["kept"].loaded(), bytes(64)).verdict


def damage(folder: Path) -> Path:
    (path,) = folder.iterdir()
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)
    return path


def test_another_compiler_finds_the_program_and_needs_no_helper(make: Make, folder: Path) -> None:
    first, second = make(), make()
    with compiled(first) as made, compiled(second) as found:
        assert first.is_running
        assert not second.is_running
        assert found.programs["kept"].instructions != b""
        assert verdict(found) == verdict(made) == 1
        for name in ("pairs", "inner", "outer"):
            assert found.maps[name].spec == made.maps[name].spec
            assert found.maps[name].value == made.maps[name].value
            assert found.maps[name].fd != made.maps[name].fd
    assert len(os.listdir(folder)) == 1


def test_constants_are_no_part_of_the_stored_program(make: Make, folder: Path) -> None:
    for number in (1, 3, 0):
        for compiler in (make(), make()):
            with compiled(compiler, number) as made:
                assert verdict(made) == number
                code = made.programs["kept"].instructions
                assert bytes.fromhex("10325476") in code
    assert len(os.listdir(folder)) == 1
    # Another macro is another program.
    compiled(make(), 1, "-DX=1").close()
    assert len(os.listdir(folder)) == 2


@pytest.mark.slow
def test_each_start_has_its_own_secrets(make: Make, folder: Path) -> None:
    """Whoever knew the factors of the hash could send flows that all meet in one set."""
    interface, hooks = Interface("lo", 1, ethernet=True), Hooks(lambda point: None)
    known = set()
    for _ in range(3):
        compiler = make()
        where = [(Hook.TC_EGRESS, FlowDirection.EGRESS)]
        flows = FlowProbe(compiler, interface, where, hooks, sizes=TableSizes(64))
        with closing(flows), flows.compile(flows.config) as made:
            ((_, program),) = made.programs()
            known.add(program.instructions)
    assert not compiler.is_running
    assert len(known) == 3


def test_equal_results_are_equal_bytes(make: Make, folder: Path) -> None:
    first = make()
    first.compile("BPF_ARRAY(x, u32, 1); int f(void *c) { return 0; }", ProgType.XDP).close()
    known = set(os.listdir(folder))
    compiled(first).close()
    (path,) = (folder / name for name in set(os.listdir(folder)) - known)
    before = path.read_bytes()
    path.unlink()
    compiled(make()).close()
    assert path.read_bytes() == before


def test_a_refused_source_is_not_kept(make: Make, folder: Path) -> None:
    with pytest.raises(CompileError):
        make().compile("int x", ProgType.XDP)
    assert not folder.exists()


def test_a_changed_byte_is_refused_and_compiled_anew(make: Make, folder: Path) -> None:
    compiled(make()).close()
    path = damage(folder)
    warnings: list[str] = []
    compiler = make(warn=warnings.append)
    with compiled(compiler) as made:
        assert verdict(made) == 1
    assert warnings == [f"the stored program {path} is damaged: it is compiled anew"]
    assert compiler.is_running
    compiled(make()).close()


def test_without_a_compiler_a_changed_byte_is_an_error(
    make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled(make()).close()
    for module in (client, store):
        monkeypatch.setattr(module, "compiler_id", lambda: "")
    compiled(make()).close()
    damage(folder)
    before = open_fds()
    with pytest.raises(DamagedError, match="is damaged"):
        compiled(make())
    assert open_fds() <= before


def test_a_new_compiler_compiles_anew(
    make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled(make()).close()
    for module in (client, store):
        monkeypatch.setattr(module, "compiler_id", lambda: "another")
    compiler = make()
    compiled(compiler).close()
    assert compiler.is_running
    compiler = make()
    compiled(compiler).close()
    assert not compiler.is_running


def test_a_file_that_others_may_write_is_ignored(make: Make, folder: Path) -> None:
    compiled(make()).close()
    (path,) = folder.iterdir()
    path.chmod(0o666)
    compiler = make()
    compiled(compiler).close()
    assert compiler.is_running
    path.chmod(0o644)
    folder.chmod(0o777)
    compiler = make()
    compiled(compiler).close()
    assert compiler.is_running


def test_the_oldest_programs_go_first(
    make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_MOST", 2)
    compiler = make()
    names = []
    for number in range(3):
        compiled(compiler, 1, f"-DX={number}").close()
        names.append(max(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns).name)
    assert set(os.listdir(folder)) == set(names[1:])


def test_the_helper_ends_when_it_is_idle_and_comes_back(make: Make) -> None:
    compiler = make(idle=0.2)
    compiled(compiler).close()
    timer = compiler._helper._timer
    assert timer
    timer.join()
    assert not compiler.is_running
    compiled(compiler, 1, "-DX=1").close()
    assert compiler.is_running


def test_without_a_compiler_a_new_source_names_the_remedy(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "SYSTEM_PYTHON", "/nowhere/python3")
    with pytest.raises(KernelError, match="no compiler is installed") as raised:
        compiled(make())
    assert "install" in raised.value.hint
