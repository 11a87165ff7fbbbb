"""Files that root obeys: nobody else may have written them, and none makes a start wait."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.api import sockets
from app.api.address import trusted
from app.api.server.listener import _tls
from app.api.sockets import Api
from app.config.load import load
from app.exporters.alerts.webhook import key_of
from app.fleet import hosts
from app.lab.capture import open_capture
from app.run.options import SECTIONS
from app.tape.load import text_of
from bpf.errors import UsageError
from probes.config import model, trusted_file
from probes.monitor.policy import file as policy_file
from tests.app.exporters.certificates import Certificate, certificate


def _config(path: Path) -> None:
    load(str(path), SECTIONS, {}).check()


OBEYED: dict[str, Callable[[Path], Any]] = {
    "config.toml": _config,
    "hosts.toml": lambda path: hosts.load(str(path)),
    "policies.toml": policy_file.load,
    "probe.toml": model.load,
    "my.tape": text_of,
    "token": lambda path: sockets.read_token(str(path)),
    "hmac": lambda path: key_of(str(path)),
    "key.pem": lambda path: _tls(Api("1", cert=str(CERTIFICATE[0]), key=str(path))),
}
pytestmark = pytest.mark.timeout(20)  # for files that a test would wait for

READ = OBEYED | {
    "a.pcap": lambda path: open_capture(str(path)),
    "ca.pem": lambda path: trusted(str(path)),
    "cert.pem": lambda path: _tls(Api("1", cert=str(path))),
}
CERTIFICATE: list[Path] = []


@pytest.fixture(scope="module", autouse=True)
def pem(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    made = certificate(tmp_path_factory.mktemp("pem"))
    CERTIFICATE[:] = [made.cert]
    return made


@pytest.mark.parametrize("name", READ)
def test_a_pipe_in_place_of_a_file_is_refused_at_once(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name, 0o600)
    with pytest.raises(UsageError, match="it is no regular file"):
        READ[name](tmp_path / name)


@pytest.mark.parametrize("name", OBEYED)
def test_root_refuses_a_file_that_others_may_write_or_own(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("x")
    path.chmod(0o622)
    with pytest.raises(UsageError, match=f"others than its owner may write it; chmod go-w {path}"):
        OBEYED[name](path)
    path.chmod(0o600)
    os.chown(path, 65534, 65534)
    with pytest.raises(UsageError, match="another account than root and the user; chown root "):
        OBEYED[name](path)


def test_files_of_the_program_are_as_trusted_as_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkout of another user: who may write there runs as root anyway."""
    path = tmp_path / "app/library/probe.toml"
    path.parent.mkdir(parents=True)
    path.touch()
    os.chown(path, 1000, 1000)
    with pytest.raises(PermissionError):
        trusted_file.open_trusted(str(path), os.O_RDONLY)
    monkeypatch.setattr(trusted_file, "PROGRAM", tmp_path)
    os.close(trusted_file.open_trusted(str(path), os.O_RDONLY))


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o660, 0o640])
def test_a_key_of_tls_that_others_can_read_is_refused(
    pem: Certificate, tmp_path: Path, mode: int
) -> None:
    copy = tmp_path / "key.pem"
    copy.write_bytes(pem.key.read_bytes())
    copy.chmod(mode)
    options = Api("1", cert=str(pem.cert), key=str(copy))
    if mode == 0o640:  # Debian's group ssl-cert
        assert _tls(options)
    else:
        with pytest.raises(UsageError, match=r"others (than|can)"):
            _tls(options)


BLOCKED = """
import os, sys
from app.run import item_loop
from app.run.totals import Totals
from probes.control_plane import ControlPlane
from types import SimpleNamespace
item_loop.start = lambda *_, **__: print("blocked", flush=True) or os.open(sys.argv[1], os.O_RDONLY)
plane = SimpleNamespace(listen=lambda listener: None, close=lambda: None, traced=lambda: ())
spec = SimpleNamespace(options=SimpleNamespace(duration=None))
with item_loop.ItemLoop(plane).running(plane, spec, Totals()):
    pass
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_start_that_is_blocked(tmp_path: Path, number: signal.Signals) -> None:
    os.mkfifo(tmp_path / "pipe")
    command = [sys.executable, "-c", BLOCKED, str(tmp_path / "pipe")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        try:
            assert run.stdout is not None
            assert run.stdout.readline() == "blocked\n"
            run.send_signal(number)
            assert run.wait(10) == 0
        finally:
            run.kill()
