"""Nothing of a lab stays behind, however it or one of its processes ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.lab.network import Lab
from bpf.errors import KernelError, ProbedeckError
from tests.support.sight import alive, assert_gone, becomes, flow, namespaces_of, sniff


def test_leaving_ends_everything() -> None:
    with contextlib.suppress(ZeroDivisionError), Lab() as lab:
        pids = lab.pids
        spaces = namespaces_of(pids)
        raise ZeroDivisionError
    assert len(pids) == 3
    assert not alive(pids)
    assert_gone(pids, spaces)
    assert lab.pids == ()
    with pytest.raises(ProbedeckError, match="lab has ended"):
        lab.open_namespace()
    lab.close()


def test_labs_do_not_concern_each_other() -> None:
    with Lab(traffic=False) as lab:
        with Lab(traffic=False) as other:
            assert not namespaces_of(lab.pids) & namespaces_of(other.pids)
        assert alive(lab.pids) == set(lab.pids) != set()


def test_killed_holder_leaves_nothing() -> None:
    with Lab() as lab:
        pids = lab.pids
        spaces = namespaces_of(pids)
        os.kill(pids[0], signal.SIGKILL)
        assert_gone(pids, spaces)
        with pytest.raises(ProbedeckError, match="lab has ended"):
            lab.enter()


@pytest.mark.slow
def test_killed_traffic_is_replaced() -> None:
    with Lab() as lab:
        first = lab.pids
        spaces = namespaces_of(first)
        for pid in first[1:]:
            os.kill(pid, signal.SIGKILL)
        assert becomes(lambda: len(lab.pids) == 3 and not set(lab.pids[1:]) & set(first))
        kinds = {found[0] for frame in sniff(lab, 2.5) if (found := flow(frame))}
        second = lab.pids
        assert namespaces_of(second) == spaces
    assert {"tcp4", "tcp6", "dns4", "dns6", "echo4 answered"} <= kinds
    assert_gone(first + second, spaces)


MAIN = """
import signal, time
from app.lab.network import Lab
signal.signal(signal.SIGINT, lambda *_: None)
lab = Lab()
print(*lab.pids, flush=True)
lab.enter()
time.sleep(60)
"""


@contextlib.contextmanager
def python(code: str) -> Iterator[subprocess.Popen[str]]:
    """A process in a new session that runs `code`; killed at the end of the block."""
    with subprocess.Popen(
        [sys.executable, "-I", "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_killed_main_process_leaves_nothing() -> None:
    with python(MAIN) as main:
        assert main.stdout
        pids = tuple(map(int, main.stdout.readline().split()))
        spaces = namespaces_of(pids)
        main.kill()
        main.wait()
        assert len(pids) == 3
        assert_gone(pids, spaces)


def test_interrupt_at_the_terminal_is_left_to_the_main_process() -> None:
    with python(MAIN) as main:
        assert main.stdout
        pids = tuple(map(int, main.stdout.readline().split()))
        os.killpg(main.pid, signal.SIGINT)
        time.sleep(0.2)
        assert alive(pids) == set(pids)


@pytest.mark.parametrize("milliseconds", [80, 140, 200])
def test_main_process_killed_while_the_lab_is_made_leaves_nothing(milliseconds: int) -> None:
    with python(MAIN) as main:
        time.sleep(milliseconds / 1000)
        main.kill()
        main.wait()

    def holders() -> list[str]:
        command = f"app.lab.holder\0{main.pid}\0"
        lines = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                lines.append(path.read_text())
            except OSError:
                continue
        return [line for line in lines if command in line]

    assert becomes(lambda: not holders())


def test_without_root_the_error_says_so() -> None:
    code = (
        "import os\nfrom app.lab.network import Lab\nos.setresuid(65534, 65534, 65534)\n"
        "try:\n    Lab()\nexcept Exception as error:\n    print(type(error).__name__, error)"
    )
    with python(code) as main:
        out, err = main.communicate()
    assert (out, err) == (
        f"{KernelError.__name__} making a lab needs CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN; "
        "start it with sudo\n",
        "",
    )


def test_a_lab_that_cannot_be_made_gives_the_reason_in_one_line() -> None:
    code = (
        "import resource\nfrom app.lab.network import Lab\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (15, 15))\n"
        "try:\n    Lab()\nexcept Exception as error:\n    print(type(error).__name__, error)"
    )
    with python(code) as main:
        out, err = main.communicate()
    assert out.startswith("ProbedeckError the lab could not be made: ")
    assert "Too many open files" in out
    assert out.count("\n") == 1
    assert err == ""
