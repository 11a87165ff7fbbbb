"""`probedeck segment` as a process between two controllers, ended by signals."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from app.api.address import Remote
from app.api.client import RemoteController
from app.api.server.listener import ApiListener
from app.api.sockets import Api
from app.lab import netns
from bpf.attach import order
from bpf.attach.interface import Hook
from bpf.compiler import Compiler
from bpf.errors import UsageError
from probes.control import controller as controllers
from probes.control.controller import Controller
from probes.path.options import PathOptions
from probes.segment.options import SegmentOptions
from tests.probes.conftest import compiler as compiler
from tests.support.compiling import Shared
from tests.support.sight import becomes
from tests.support.veth import End, veth_pair

# A lease of 15 s is long for a test.
_PROGRAM = """\
from app.cli.main import main
from app.fleet import segment_run

segment_run.LEASE_S = 2.0
main()
"""


@contextmanager
def _host(end: End, path: Path) -> Iterator[RemoteController]:
    with netns.inside(end.ns), ExitStack() as stack:
        controller = stack.enter_context(Controller())
        controller.paths.configure(end.ifname, PathOptions())
        stack.enter_context(ApiListener(controller, Api("1", socket=str(path))))
        yield stack.enter_context(RemoteController(Remote(f"unix:{path}")))


@pytest.mark.slow
def test_a_killed_measurement_leaves_nothing_and_a_signal_prints_the_result(
    tmp_path: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL: the probes end with their lease. SIGTERM: a result, and no probe."""
    monkeypatch.setattr(controllers, "Compiler", lambda: Shared(compiler))
    with veth_pair() as ends, ExitStack() as stack:
        paths = [tmp_path / name for name in ("a", "b")]
        hosts = [
            stack.enter_context(_host(end, path)) for end, path in zip(ends, paths, strict=True)
        ]

        def start() -> subprocess.Popen[str]:
            urls = [f"unix:{path}" for path in paths]
            words = ("segment", *urls, "", "--for", "60", "--key", "secret")
            pipe = subprocess.PIPE
            command = [sys.executable, "-I", "-c", _PROGRAM, *words]
            run = stack.enter_context(subprocess.Popen(command, text=True, stdout=pipe))
            stack.callback(run.kill)
            assert becomes(lambda: running() == [True, True], 60)
            return run

        def running() -> list[bool]:
            return [host.segment().running for host in hosts]

        def attached() -> list[int]:
            found = []
            for end in ends:
                with netns.inside(end.ns):
                    hooks = (Hook.TC_INGRESS, Hook.TC_EGRESS)
                    found += [len(order.on_hook(hook, end.ifindex)) for hook in hooks]
            return found

        assert attached() == [0, 0, 0, 0]
        killed = start()
        assert attached() == [1, 1, 1, 1]
        with pytest.raises(UsageError, match="another key") as refused:
            hosts[0].measure_segment(SegmentOptions("other"))
        assert "if its measurement was killed, it ends in" in refused.value.hint
        killed.kill()
        assert killed.wait(10) == -signal.SIGKILL
        assert becomes(lambda: running() == [False, False])
        assert becomes(lambda: attached() == [0, 0, 0, 0])
        run = start()
        run.send_signal(signal.SIGTERM)
        output, _ = run.communicate(timeout=20)
        assert run.returncode == 0
        lines = output.splitlines()[1:3]
        assert [line.split("  ")[0] for line in lines] == ["pass the filter", "chosen"]
        assert running() == [False, False]
        assert becomes(lambda: attached() == [0, 0, 0, 0])
