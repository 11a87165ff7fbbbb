"""The controller as a service: without root, for a group, watched by systemd."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from app.cli.main import cli
from app.lab.network import Lab
from app.lab.plan import LabPlan
from app.run.readiness import Watchdog
from bpf.errors import UsageError
from tests.support.nobody import become_nobody, let_others_reach
from tests.support.sight import node

ROOT = Path(__file__).parents[3]
UNIT = ROOT / "deploy/systemd/probedeck.service"
NET_ADMIN, PERFMON, BPF = 12, 38, 39
NOGROUP, DAEMON = 65534, 1
ASK = """\
import socket, sys
with socket.socket(socket.AF_UNIX) as client:
    client.connect(sys.argv[1])
    client.sendall(b"GET /v1/status HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n")
    print(client.recv(100).split()[1].decode())
"""


def members_of(group: int) -> None:
    """Become the user daemon, in one further group; for `preexec_fn`."""
    os.setgroups([group])
    os.setresgid(DAEMON, DAEMON, DAEMON)
    os.setresuid(DAEMON, DAEMON, DAEMON)


@contextmanager
def systemd(path: Path) -> Iterator[socket.socket]:
    """The socket that a service tells its state."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        path.chmod(0o777)
        listener.settimeout(30.0)
        yield listener


@pytest.mark.slow
def test_a_service_without_root_measures_for_its_group(tmp_path: Path) -> None:
    home = tmp_path / "run"
    home.mkdir()
    let_others_reach(home)
    os.chown(home, NOGROUP, NOGROUP)
    path = home / "api.sock"
    arguments = [
        "serve", "--api-group", "nogroup", "--api-socket", str(path), "--config", "none",
        "--interval", "0.2",
    ]  # fmt: skip
    with Lab(LabPlan(1)) as lab, systemd(tmp_path / "notify") as told, node(lab):
        errors = (tmp_path / "errors").open("wb")
        found = os.fstat(errors.fileno())
        environment = {
            **os.environ,
            "NOTIFY_SOCKET": str(tmp_path / "notify"),
            "WATCHDOG_USEC": "500000",
            "JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}",
        }
        service = subprocess.Popen(
            [sys.executable, "-I", "-m", "app", *arguments], cwd=ROOT, env=environment,
            stderr=errors, preexec_fn=lambda: become_nobody(NET_ADMIN, PERFMON, BPF),
        )  # fmt: skip
        try:
            # Three windows are longer than the limit of the unit.
            messages = [told.recv(100)]
            while b"WATCHDOG=1" not in messages or b"READY=1" not in messages:
                messages.append(told.recv(100))
            assert messages[0] == b"WATCHDOG_USEC=600000"
            assert (path.stat().st_mode & 0o777, path.stat().st_gid) == (0o660, NOGROUP)
            for group, answer in ((NOGROUP, "200"), (DAEMON, "PermissionError")):
                client = subprocess.run(
                    ["/usr/bin/python3", "-I", "-c", ASK, str(path)], capture_output=True,
                    text=True, check=False, preexec_fn=partial(members_of, group),
                )  # fmt: skip
                assert answer in client.stdout + client.stderr
        finally:
            service.kill()
            service.wait()
            errors.close()
    lines = (tmp_path / "errors").read_text().splitlines()
    assert lines
    assert all(re.match(r"<[346]>probedeck: ", line) for line in lines), lines


def test_the_watchdog_hears_of_windows_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")
    with systemd(tmp_path / "notify") as told:
        told.settimeout(0)
        Watchdog(1.0)
        with pytest.raises(BlockingIOError):
            told.recv(100)
        # Without flows nothing would come: systemd waits for ever.
        Watchdog(None)
        assert told.recv(100) == b"WATCHDOG_USEC=18446744073709551615"
        monkeypatch.setenv("WATCHDOG_PID", "1")
        Watchdog(None)
        with pytest.raises(BlockingIOError):
            told.recv(100)


@pytest.mark.slow
def test_a_group_that_is_not_there_is_named(tmp_path: Path) -> None:
    arguments = ["serve", "-i", "lo", "--api-group", "nobodys-group", "--config", "none"]
    arguments += ["--api-socket", str(tmp_path / "api.sock")]
    error = CliRunner().invoke(cli, arguments).exception
    assert isinstance(error, UsageError)
    assert str(error) == "there is no group 'nobodys-group'; groupadd --system nobodys-group"


def test_the_unit_runs_this_command_with_the_capabilities_that_docs_name() -> None:
    unit = UNIT.read_text()
    (command,) = re.findall(r"^ExecStart=/opt/probedeck/probedeck (.*)$", unit, re.MULTILINE)
    words = command.split()
    called = cli.get_command(click.Context(cli), words[0])
    assert called
    options = {option for each in called.params for option in each.opts}
    assert {word.split("=")[0] for word in words if word.startswith("--")} <= options
    ambient, bounding = (
        set(re.findall(rf"^{key}=(.*)$", unit, re.MULTILINE)[0].split())
        for key in ("AmbientCapabilities", "CapabilityBoundingSet")
    )
    container = (ROOT / "docs/service.md").read_text()
    added = {f"CAP_{name}" for name in re.findall(r"--cap-add (\w+)", container)}
    manifest = (ROOT / "deploy/kubernetes/daemonset.yaml").read_text()
    (names,) = re.findall(r"add: \[(.*)\]", manifest)
    assert ambient == bounding == added == {f"CAP_{name}" for name in names.split(", ")}
