"""Sockets: permissions and authentication."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.api import sockets
from app.api.address import Remote
from app.api.client import Client
from app.api.server.listener import ApiListener
from app.api.sockets import Api
from bpf.errors import ProbedeckError, UsageError
from probes.config.model import dump
from tests.app.api.conftest import ASK, READ_TOKEN, TOKEN, MakeSite, Site, answer, token_files
from tests.app.api.fake import FakePlane, config
from tests.support.nobody import become_nobody

READS = ["status", "probes", "probes/counter", "probes/counter/config", "probes/counter/cost",
         "probes/counter/metrics", "probes/counter/maps", "events", "paths",
         "commands"]  # fmt: skip
WRITES = [("POST", "probes"), ("POST", "compile"), ("PUT", "probes/counter"),
          ("DELETE", "probes/counter"), ("POST", "probes/counter/rollback"),
          ("POST", "probes/counter/export"), ("POST", "paths"), ("POST", "commands"),
          ("DELETE", "paths/192.0.2.1")]  # fmt: skip


POLICY = {"short": "flood: always -> dns"}
BODIES = {
    ("POST", "/v1/probes"): dump(config("other")),
    ("POST", "/v1/compile"): dump(config()),
    ("PUT", "/v1/probes/{name}"): dump(config()),
    ("DELETE", "/v1/probes/{name}"): None,
    ("POST", "/v1/probes/{name}/rollback"): None,
    ("POST", "/v1/probes/{name}/export"): None,
    ("PUT", "/v1/probes/{name}/maps/{map}/entries"): {"key": 1, "value": 1},
    ("DELETE", "/v1/probes/{name}/maps/{map}/entries"): None,
    ("PUT", "/v1/capture"): {"filter": "proto:tcp"},
    ("PUT", "/v1/path-options"): {"guarded": "all"},
    ("POST", "/v1/paths"): {"destination": "192.0.2.1"},
    ("DELETE", "/v1/paths/{destination}"): None,
    ("POST", "/v1/monitor/policies"): POLICY,
    ("PUT", "/v1/monitor/policies/{name}"): POLICY,
    ("DELETE", "/v1/monitor/policies/{name}"): None,
    ("POST", "/v1/monitor/policies/{name}/activate"): None,
    ("POST", "/v1/monitor/policies/{name}/deactivate"): None,
    ("POST", "/v1/actions/stop"): None,
    ("POST", "/v1/segment"): {"key": "a key of both hosts"},
    ("PUT", "/v1/ring"): None,
    ("DELETE", "/v1/ring"): None,
    ("POST", "/v1/ring/packets"): None,
    ("POST", "/v1/ring/capture"): None,
    ("POST", "/v1/outputs"): {"url": "ipfix://192.0.2.1:4739"},
    ("DELETE", "/v1/outputs/{name}"): None,
    ("POST", "/v1/commands"): {"line": "flow.capture proto:tcp"},
}
"""Every request that changes or loads anything, with a body that is fine."""


def refused(**options: Any) -> str:
    """Why the API is not offered."""
    with pytest.raises(UsageError) as caught:
        ApiListener(FakePlane(), Api("1", **({"socket": ""} | options))).close()
    return str(caught.value)


def test_the_socket_is_its_owners_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default one's directory is made, and is his alone, too."""
    path = tmp_path / "deep" / "run" / "api.sock"
    monkeypatch.setattr(sockets, "DEFAULT_SOCKET", str(path))
    before = os.umask(0)
    try:
        with ApiListener(FakePlane(), Api("1", socket=str(path))):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    finally:
        os.umask(before)
    assert not path.exists()


def test_the_socket_never_had_another_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []
    listen = socket.socket.listen

    def listening(self: socket.socket, backlog: int) -> None:
        modes.append(stat.S_IMODE(os.stat(self.getsockname()).st_mode))
        listen(self, backlog)

    monkeypatch.setattr(socket.socket, "listen", listening)
    before = os.umask(0)
    try:
        ApiListener(FakePlane(), Api("1", socket=str(tmp_path / "api.sock"))).close()
    finally:
        os.umask(before)
    assert modes == [0o600]


def test_another_user_can_not_connect(make_site: MakeSite, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for parent in (tmp_path.parent, tmp_path.parent.parent):
        parent.chmod(0o755)
    site = make_site()
    code = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
    command = [sys.executable, "-I", "-c", code, site.options.socket]
    assert subprocess.run(command, check=False).returncode == 0
    run = subprocess.run(
        command, preexec_fn=become_nobody, capture_output=True, text=True, check=False
    )
    assert "PermissionError" in run.stderr


def test_a_dead_controllers_socket_is_replaced_a_live_ones_is_not(tmp_path: Path) -> None:
    path = str(tmp_path / "api.sock")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    with ApiListener(FakePlane(), Api("1", socket=path)):
        assert "another controller listens" in refused(socket=path)
        with contextlib.closing(Client(Remote(f"unix:{path}"))) as client:
            assert client.status().version == "1"
    file = tmp_path / "file"
    file.write_text("mine")
    assert "no socket" in refused(socket=str(file))
    assert file.read_text() == "mine"


def test_closing_leaves_a_successors_socket(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    first = ApiListener(FakePlane(), Api("1", socket=str(path)))
    path.unlink()
    with ApiListener(FakePlane(), Api("2", socket=str(path))):
        first.close()
        assert path.exists()
    assert not path.exists()


def test_what_can_not_be_bound_is_said(tmp_path: Path) -> None:
    assert "cannot listen" in refused(socket=str(tmp_path / ("x" * 200)))
    assert "cannot listen" in refused(socket="/proc/self/api.sock")
    missing = tmp_path / "none"
    told = refused(socket=str(missing / "api.sock"))
    assert told == f"cannot listen at {missing}/api.sock: there is no directory {missing}"
    assert not missing.exists()
    tokens = token_files(tmp_path)
    for address in ("127.0.0.1", "127.0.0.1:", ":80", "127.0.0.1:99999", "127.0.0.1:x", "[::1]"):
        assert "no address" in refused(listen=address, **tokens)
    assert "cannot resolve" in refused(listen="no.such.host.invalid:1", **tokens)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert "in use" in refused(listen=f"127.0.0.1:{port}", **tokens)


def test_tcp_needs_a_token_and_tls_where_others_can_listen(
    tmp_path: Path, certificate: dict[str, Any]
) -> None:
    tokens = token_files(tmp_path)
    assert "needs a token" in refused(listen="127.0.0.1:0")
    assert "needs TLS" in refused(listen="0.0.0.0:0", **tokens)
    assert "needs TLS" in refused(listen="[::]:0", **tokens)
    assert "cannot use" in refused(listen="127.0.0.1:0", **tokens, cert="/none")
    assert "give a certificate and its key, both PEM" in refused(
        listen="127.0.0.1:0", **tokens, cert=certificate["cert"], key=tokens["token"]
    )
    assert "needs an address" in refused(token=tokens["token"])
    with ApiListener(FakePlane(), Api("1", socket="", listen="0.0.0.0:0", **tokens, **certificate)):
        pass


def test_a_tokens_file_must_be_private_and_hold_one(tmp_path: Path) -> None:
    tokens = token_files(tmp_path)
    path = Path(tokens["token"])
    same = tokens | {"read_token": tokens["token"]}
    assert "are the same" in refused(listen="127.0.0.1:0", **same)
    path.chmod(0o644)
    told = refused(listen="127.0.0.1:0", **tokens)
    assert f"chmod 600 {path}" in told
    assert TOKEN not in told
    path.chmod(0o600)
    for bad in ("", "two words", "näh"):
        path.write_text(bad)
        assert "holds no token" in refused(listen="127.0.0.1:0", **tokens)
    path.write_text("fifteen-letters\n")
    told = refused(listen="127.0.0.1:0", **tokens)
    assert "has 15 characters, and can be guessed; at least 16: openssl rand -hex 16" in told
    path.write_text("sixteen--letters\n")
    with ApiListener(FakePlane(), Api("1", socket="", listen="127.0.0.1:0", **tokens)):
        pass
    path.unlink()
    assert "cannot read" in refused(listen="127.0.0.1:0", **tokens)


@pytest.mark.parametrize(
    "given",
    ["", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", "Bearer", TOKEN,
     "Bearer \xe4"],
)  # fmt: skip
def test_nobody_is_let_in_without_the_token(tcp: Site, given: str) -> None:
    tcp.plane.add(config())
    before = tcp.plane.probes()
    headers = [(b"authorization", given.encode("latin-1"))] if given else []
    with tcp.http(token="") as http:
        for method, path in [*(("GET", path) for path in [*READS, "stream"]), *WRITES]:
            told = http.request(method, f"/v1/{path}", headers=headers, json=dump(config("new")))
            assert told.status_code == 401
            assert told.headers["www-authenticate"] == "Bearer"
            assert told.json()["error"] == "no valid token"
    assert tcp.plane.probes() == before


def test_read_only_and_the_read_token_refuse_every_request_that_changes_or_loads(tcp: Site) -> None:
    """Each one of the OpenAPI description: a new one must be listed here."""
    tcp.plane.add(config())
    before = tcp.plane.probes()
    with tcp.http() as http, tcp.http(READ_TOKEN) as reader:
        every = {
            (method.upper(), path)
            for path, methods in http.get("/openapi.json").json()["paths"].items()
            for method in methods
        }
        assert {(method, path) for method, path in every if method != "GET"} == set(BODIES)
        # The read token first: afterwards, nobody may.
        for client, why in ((reader, ""), (http, "started with --read-only")):
            tcp.plane.read_only = why
            for (method, path), body in BODIES.items():
                url = path.format(name="counter", map="packets", destination="192.0.2.1")
                key = {"key": "1"} if path.endswith("entries") and method == "DELETE" else {}
                told = client.request(method, url, json=body, params=key)
                assert told.status_code == 403, (method, path, told.text)
                assert client is reader or told.json()["error"] == tcp.plane.read_only
    assert tcp.plane.probes() == before


def test_the_read_token_reads(tcp: Site) -> None:
    tcp.plane.add(config())
    tcp.plane.export("counter")
    with tcp.http(READ_TOKEN) as http:
        for path in READS:
            assert http.get(f"/v1/{path}").status_code == 200, path
        assert http.get("/v1/status").json()["read_only"] == "this token may only read"


def test_without_a_read_token_none_is_valid(make_site: MakeSite, tokens: dict[str, Any]) -> None:
    del tokens["read_token"]
    site = make_site(socket="", **tokens)
    with site.http(READ_TOKEN) as http:
        assert http.get("/v1/status").status_code == 401
        assert http.get("/v1/status", headers={"authorization": "Bearer"}).status_code == 401


def test_tls_is_spoken_and_nothing_else(
    make_site: MakeSite, tokens: dict[str, Any], certificate: dict[str, Any]
) -> None:
    site = make_site(socket="", **tokens, **certificate)
    client = Client(Remote(site.url, tokens["token"], certificate["cert"]))
    assert client.status().version == "1.2.3"
    client.close()
    stranger = Client(Remote(site.url, tokens["token"]))
    with pytest.raises(ProbedeckError, match="certificate"):
        stranger.status()
    stranger.close()
    with site.raw() as raw:
        raw.sendall(f"{ASK}\r\n".encode())
        assert b"HTTP" not in answer(raw)
