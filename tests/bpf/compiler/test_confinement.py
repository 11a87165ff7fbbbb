"""Confinement of the compile helper, and its reason if it cannot be confined."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from bpf import requirements
from bpf.compiler.client import Compiler
from bpf.compiler.confinement import CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON
from tests.bpf.compiler import confined
from tests.support.nobody import become_nobody

LOADING = CAP_NET_ADMIN, CAP_PERFMON, CAP_BPF
needs_landlock = pytest.mark.skipif(not confined.has_landlock(), reason="no Landlock here")

COMPILE = """
import sys
from bpf.abi import ProgType
from bpf import requirements
from bpf.compiler import Compiler
from bpf.errors import ProbedeckError
source = '{include}int f(struct xdp_md *ctx) {{ return XDP_PASS; }}\\n'
try:
    with Compiler(stores=()) as compiler:
        print("unconfined:", compiler.unconfined())
        compiler.compile(source, ProgType.XDP, name="my.c").close()
        print("compiled")
except ProbedeckError as error:
    print(type(error).__name__, error.exit_code, error)
"""


def compile_in(before: Callable[[], None], include: str = "") -> str:
    return confined.run(COMPILE.format(include=include), before)


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def test_the_helper_keeps_only_what_loading_needs(compiler: Compiler) -> None:
    """Whoever finds a bug in LLVM gets neither root's files nor root's other capabilities."""
    assert compiler.unconfined() == ""
    needed = sum(1 << each for each in LOADING)
    for task in Path(f"/proc/{compiler.pid}/task").iterdir():
        status = status_of(int(task.name))
        assert int(status["CapPrm"], 16) == int(status["CapEff"], 16) == needed
        assert int(status["CapBnd"], 16) == int(status["CapInh"], 16) == 0
        assert status["NoNewPrivs"] == "1"
        root = Path(f"{task}/root")
        assert {path.name for path in root.iterdir()} <= {
            "usr", "lib", "lib32", "lib64", "headers", "proc", "sys",
        }  # fmt: skip
        # Not /usr/local, /usr/share or /usr/bin: files of the host's users are there.
        assert {path.name for path in (root / "usr").iterdir()} <= {
            "include", "lib", "lib32", "lib64",
        }  # fmt: skip
        for each in ("include", "lib"):
            assert os.statvfs(root / "usr" / each).f_flag & os.ST_RDONLY


@pytest.mark.slow
@needs_landlock
def test_without_mounts_landlock_hides_the_files(tmp_path: Path) -> None:
    secret = tmp_path / "secret.h"
    secret.write_text("SECRET-OF-ROOT 1\n")
    assert compile_in(confined.forbid_mounts).splitlines() == ["unconfined: ", "compiled"]
    said = compile_in(confined.forbid_mounts, f'#include "{secret}"\\n')
    assert "CompileError" in said
    assert str(secret) in said
    assert "SECRET" not in said


@needs_landlock
def test_a_helper_that_cannot_be_confined_says_why() -> None:
    said = compile_in(confined.forbid_mounts_and_landlock).splitlines()
    assert said[0].startswith("unconfined: mount on /: Operation not permitted; Landlock: ")
    assert said[1] == "compiled"


def test_programs_of_a_cgroup_read_kernel_memory_for_every_user() -> None:
    """libbcc sees no kernel symbols unless it is root's, and then takes an older helper."""
    script = COMPILE.replace(
        "int f(struct xdp_md *ctx) {{ return XDP_PASS; }}",
        "int f(struct bpf_sock *ctx) {{ u64 to; "
        "bpf_probe_read_kernel(&to, sizeof(to), (void *)8); return 1; }}",
    ).replace("XDP,", "CGROUP_SOCK, attach_type=AttachType.CGROUP_INET_SOCK_CREATE,")
    script = script.replace("import ProgType", "import AttachType, ProgType").format(include="")
    assert confined.run(script, partial(become_nobody, *LOADING)).splitlines()[-1] == "compiled"


@pytest.mark.skipif(not os.path.isdir(confined.MULTIARCH), reason="no such directory here")
def test_a_compile_needs_no_directory_that_only_debian_has() -> None:
    everything = "#include <linux/errno.h>\\n#include <linux/socket.h>\\n#include <linux/in.h>\\n"
    said = compile_in(confined.hide(confined.MULTIARCH), everything)
    assert said.splitlines() == ["unconfined: ", "compiled"]


@pytest.mark.parametrize("hidden", ["/usr/include/linux", "/usr/include/asm-generic"])
def test_missing_headers_are_told_with_the_package_that_has_them(hidden: str) -> None:
    (said,) = compile_in(confined.hide(hidden)).splitlines()
    assert said.startswith("KernelError 4 the compile helper does not start: ")
    assert hidden in said or "'asm-generic/" in said
    assert said.endswith("; apt install python3-bpfcc linux-libc-dev")
    assert "root" not in said


@pytest.mark.parametrize(
    ("manager", "command"),
    [
        ("apt-get", "apt install python3-bpfcc linux-libc-dev"),
        ("dnf", "dnf install python3-bcc kernel-headers"),
        ("pacman", "pacman -S python-bcc linux-api-headers"),
        ("", "apt install .*, or dnf install .*, or pacman -S .*"),
    ],
)
def test_a_remedy_is_in_the_words_of_the_distribution(
    monkeypatch: pytest.MonkeyPatch, manager: str, command: str
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: name == manager)
    assert re.fullmatch(command, requirements.install("bcc", "headers"))
