"""Attaching to a cgroup beside other people's programs, and without what it needs."""

from __future__ import annotations

import contextlib
import ctypes as ct
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bpf.abi import AttachType, ProgType
from bpf.assembler import Assembler
from bpf.attach import interface as module
from bpf.attach.interface import attach_cgroup, cgroup2
from bpf.errors import KernelError, ProbedeckError
from bpf.links import cgroup_query
from bpf.machine import system_calls
from bpf.syscall import opened, prog_load
from tests.bpf.cgroups import cgroup

KIND = AttachType.CGROUP_INET_SOCK_CREATE
PROG_ATTACH = 8
EXCLUSIVE, MULTI = 0, 2


def allowing(name: str) -> int:
    """Load a program that lets every socket pass."""
    code = Assembler()
    code.exit(1)
    return prog_load(code.assemble(), ProgType.CGROUP_SOCK, name, attach_type=KIND)


@contextlib.contextmanager
def theirs(folder: Path, flags: int) -> Iterator[None]:
    """Another program, attached as before links; it ends with the folder."""
    with opened(allowing("theirs")) as program, opened(os.open(folder, os.O_RDONLY)) as fd:
        attr = (ct.c_uint32 * 4)(fd, program, KIND, flags)
        libc = ct.CDLL(None, use_errno=True)
        if libc.syscall(system_calls().bpf, PROG_ATTACH, attr, ct.sizeof(attr)):
            raise OSError(ct.get_errno(), "PROG_ATTACH")
    yield


@pytest.fixture
def folder() -> Iterator[Path]:
    with cgroup() as folder:
        yield folder


@pytest.fixture
def program() -> Iterator[int]:
    with opened(allowing("ours")) as program:
        yield program


def ids(folder: Path) -> list[int]:
    with opened(os.open(folder, os.O_RDONLY)) as fd:
        return cgroup_query(fd, KIND)[0]


def test_two_links_and_a_program_that_shares_are_side_by_side(folder: Path, program: int) -> None:
    with (
        theirs(folder, MULTI),
        opened(attach_cgroup(folder, program, KIND)),
        opened(attach_cgroup(folder, program, KIND)),
    ):
        assert len(ids(folder)) == 3
    assert len(ids(folder)) == 1


def test_an_exclusive_program_is_named(folder: Path, program: int) -> None:
    with theirs(folder, EXCLUSIVE), cgroup(folder) as below:
        for at in (folder, below):
            with pytest.raises(ProbedeckError, match=f"'theirs' id .* of {folder} lets no other"):
                attach_cgroup(at, program, KIND)


def test_a_folder_that_is_none_of_cgroup2_is_refused(program: int, tmp_path: Path) -> None:
    with pytest.raises(KernelError, match="no folder of cgroup2"):
        attach_cgroup(tmp_path, program, KIND)
    with pytest.raises(KernelError, match="No such file"):
        attach_cgroup(tmp_path / "gone", program, KIND)


def test_without_the_right_the_error_says_which(
    folder: Path, program: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EPERM, "no")

    monkeypatch.setattr(module, "link_create", refuse)
    with pytest.raises(KernelError, match="not allowed to attach") as error:
        attach_cgroup(folder, program, KIND)
    assert "CAP_NET_ADMIN" in error.value.hint


def test_a_host_without_cgroup2_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    monkeypatch.setattr(module, "MOUNTS", mounts)
    mounts.write_text("31 23 0:27 / /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu\n")
    with pytest.raises(KernelError, match="no cgroup2 is mounted here"):
        cgroup2()
    pod, spaced, hidden = tmp_path / "pod", tmp_path / "b c", tmp_path / "a"
    for folder in (pod, spaced):
        folder.mkdir()
        (folder / "cgroup.controllers").touch()
    whole = "32 23 0:26 / {} rw - cgroup2 none rw\n".format
    mounts.write_text(f"30 23 0:26 /pod {pod} rw - cgroup2 cgroup2 rw\n{whole(hidden)}")
    assert cgroup2() == pod, "another mount hides the whole tree"
    with mounts.open("a") as file:
        file.write(whole(str(spaced).replace(" ", "\\040")))
    assert cgroup2() == spaced
