"""Offsets, functions and enumerators by BTF: against the compiler's own layout, and this kernel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bpf import kernel_types
from bpf.abi import ProgType
from bpf.compiler import Compiler
from bpf.errors import KernelError
from bpf.kernel_types import KernelTypes
from bpf.syscall import btf_data

SOURCE = """
enum reason { NONE, FIRST = 7, LAST = -1 };
struct inner { int low; long high; };
struct outer {
    char one;
    unsigned two : 3, three : 13;
    union { long word; struct { int left, right; }; };
    const struct inner nested;
    enum reason reason;
};
BPF_ARRAY(things, struct outer, 1);
int f(void *ctx) { return 0; }
"""


@pytest.fixture(scope="module")
def types(compiler: Compiler) -> Iterator[KernelTypes]:
    with compiler.compile(SOURCE, ProgType.XDP) as compiled:
        yield KernelTypes(btf_data(compiled.btf_fd))


@pytest.mark.parametrize(
    ("member", "offset"),
    [("one", 0), ("word", 8), ("right", 12), ("nested", 16), ("nested.high", 24), ("reason", 32)],
)
def test_a_member_is_where_the_compiler_put_it(
    types: KernelTypes, member: str, offset: int
) -> None:
    assert types.offset("outer", member) == offset


def test_enumerators_have_their_values(types: KernelTypes) -> None:
    assert types.enumerators("reason") == {0: "NONE", 7: "FIRST", -1: "LAST"}


@pytest.mark.parametrize(("name", "member"), [("outer", "four"), ("other", "one")])
def test_an_unknown_name_is_an_error_with_the_name(
    types: KernelTypes, name: str, member: str
) -> None:
    with pytest.raises(KernelError, match=name):
        types.offset(name, member)


def test_damaged_data_is_refused(compiler: Compiler) -> None:
    with compiler.compile(SOURCE, ProgType.XDP) as compiled:
        data = btf_data(compiled.btf_fd)
    for wrong in (b"", data[:10], b"\0\0" + data[2:]):
        with pytest.raises(ValueError, match="BTF"):
            KernelTypes(wrong)


def test_this_kernel_is_described() -> None:
    running = kernel_types.kernel_types()
    assert running.offset("list_head", "prev") == 8
    assert running.function("bpf_iter_task_file") > 0
    assert running is kernel_types.kernel_types()


def test_a_kernel_without_types_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kernel_types, "VMLINUX", tmp_path / "vmlinux")
    with pytest.raises(KernelError, match="does not describe its types"):
        kernel_types.kernel_types.__wrapped__()
    (tmp_path / "vmlinux").write_bytes(bytes(64))
    with pytest.raises(KernelError, match="is not understood"):
        kernel_types.kernel_types.__wrapped__()
