"""A run tells that it measures: by a file, and by a message to systemd."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.run.readiness import announced
from bpf.errors import UsageError
from tests.support.runs import SHARING

ROOT = Path(__file__).parents[3]


@contextmanager
def listener(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(address)
        receiver.settimeout(30.0)
        yield receiver


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_gets_ready_and_stopping(
    abstract: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"probedeck-{os.getpid()}" if abstract else str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}" if abstract else name)
    with listener(f"\0{name}" if abstract else name) as receiver:
        with announced(""):
            assert receiver.recv(100) == b"READY=1"
        assert receiver.recv(100) == b"STOPPING=1"


def test_without_a_listener_or_a_name_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("", "/nowhere/at/all", "@nobody-listens", "relative"):
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        with announced(""):
            pass


def test_the_file_exists_while_the_run_measures(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    with announced(str(ready)):
        assert ready.read_text() == f"{os.getpid()}\n"
    assert not ready.exists()
    with pytest.raises(UsageError, match="--ready-file"), announced(str(tmp_path / "no" / "x")):
        pass


@pytest.mark.slow
def test_a_lab_says_when_it_measures_and_its_api_is_reachable_from_the_host(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-of-enough-letters\n")
    token.chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ready = tmp_path / "ready"
    with listener(str(tmp_path / "notify")) as receiver:
        process = subprocess.Popen(
            [
                *SHARING, "lab", "--headless", "-o", str(tmp_path / "out"),
                "--ready-file", str(ready), "--api-listen", f"127.0.0.1:{port}",
                "--api-token", str(token),
            ],
            cwd=ROOT, env={**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")},
        )  # fmt: skip
        try:
            assert receiver.recv(100) == b"READY=1"
            assert ready.read_text() == f"{process.pid}\n"
            with socket.create_connection(("127.0.0.1", port), 5.0) as client:
                client.sendall(
                    b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                    b"Authorization: Bearer a-token-of-enough-letters\r\n\r\n"
                )
                assert client.recv(100).startswith(b"HTTP/1.1 200")
            process.terminate()
            assert receiver.recv(100) == b"STOPPING=1"
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.wait()
    assert not ready.exists()
