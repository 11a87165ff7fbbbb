"""Objects of sources for libbpf: kept, found without clang, and refused if damaged."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from bpf.abi import ProgType
from bpf.compiler import Compiled, Compiler
from bpf.compiler.instructions import relocate
from bpf.compiler.store import DamagedError, Store
from bpf.errors import KernelError
from bpf.kernel_types import KernelTypes
from bpf.objects import client
from bpf.syscall import prog_test_run
from tests.bpf.stores import Make
from tests.bpf.stores import folder as folder
from tests.bpf.stores import make as make
from tests.probes.objects.sources import LICENSE

SOURCE = f"""
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "verdict.h"
#warning remembered
const volatile int less;
SEC("xdp") int kept(struct xdp_md *ctx) {{ return VERDICT - less; }}
{LICENSE}"""
KERNEL_TYPES = f"""
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#define PASTED(name) n##name
SEC("xdp") int kept(struct xdp_md *ctx)
{{
    struct task_struct *task = (void *)bpf_get_current_task();
    bpf_printk("%%d", BPF_CORE_READ(task, %s, count.refs.counter));
    return XDP_DROP;
}}
{LICENSE}"""


@pytest.fixture
def no_clang(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return lambda: monkeypatch.setattr(client, "clang", lambda: "")


def compiled(compiler: Compiler, verdict: int = 2, source: str = SOURCE, less: int = 0) -> Compiled:
    headers = {"verdict.h": f"#define VERDICT {verdict}\n"}
    define = {"less": less} if source is SOURCE else {}
    return compiler.objects.compile(source, ProgType.XDP, headers=headers, define=define)


def verdict(made: Compiled) -> int:
    with made:
        return prog_test_run(made.programs["kept"].loaded(), bytes(64)).verdict


def without_maps(made: Compiled) -> bytes:
    """Return its instructions; descriptors of maps differ."""
    return relocate(made.programs["kept"].instructions, defaultdict(int))


def damage(folder: Path) -> Path:
    (path,) = folder.iterdir()
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)
    return path


def test_another_compiler_needs_no_clang(
    make: Make, folder: Path, no_clang: Callable[[], None]
) -> None:
    first = compiled(make())
    assert verdict(first) == 2
    no_clang()
    second = compiled(make())
    assert second.diagnostics == first.diagnostics
    assert "remembered" in first.diagnostics[0].text
    assert verdict(second) == 2
    # Constants are set when the object is loaded.
    assert verdict(compiled(make(), less=1)) == 1
    assert len(os.listdir(folder)) == 1
    with pytest.raises(KernelError, match="needs clang"):
        compiled(make(), 3)


def test_another_header_gives_another_object(make: Make, folder: Path) -> None:
    compiler = make()
    for number in (2, 1, 2):
        assert verdict(compiled(compiler, number)) == number
    assert len(os.listdir(folder)) == 2


def test_a_changed_system_header_compiles_anew(make: Make, folder: Path) -> None:
    compiler = make()
    compiled(compiler).close()
    (path,) = folder.iterdir()
    store = Store(folder, own=True)
    found = store.find(path.name)
    assert found
    assert any(name.endswith("/bpf/bpf_helpers.h") for name in found["files"])
    assert all(os.path.exists(name) for name in found["files"])
    before = path.stat().st_mtime_ns
    compiled(compiler).close()
    assert path.stat().st_mtime_ns == before
    store.keep(path.name, {**found, "files": dict.fromkeys(found["files"], "0")})
    compiled(compiler).close()
    assert store.find(path.name) == found


def test_a_changed_byte_is_refused(make: Make, folder: Path, no_clang: Callable[[], None]) -> None:
    compiled(make()).close()
    path = damage(folder)
    warnings: list[str] = []
    assert verdict(compiled(make(warn=warnings.append))) == 2
    assert warnings == [f"the stored program {path} is damaged: it is compiled anew"]
    damage(folder)
    no_clang()
    with pytest.raises(DamagedError, match=r"stored program \S+ is damaged"):
        compiled(make())


@pytest.mark.slow
@pytest.mark.parametrize("member", ["nsproxy", "PASTED(sproxy)"])
def test_needed_types_of_the_kernel_give_the_same_program(
    make: Make, monkeypatch: pytest.MonkeyPatch, member: str
) -> None:
    source = KERNEL_TYPES % member
    with compiled(make(), source=source) as made:
        code = without_maps(made)
        lines = made.programs["kept"].lines
    # An integer alone: clang misses the others, and gets all types.
    monkeypatch.setattr(KernelTypes, "needed", lambda types, words: [1])
    with Compiler(stores=()) as compiler, compiled(compiler, source=source) as whole:
        assert without_maps(whole) == code
        assert len(whole.programs["kept"].lines) == len(lines)
