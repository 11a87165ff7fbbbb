from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.api.address import Remote
from app.api.client import Client
from app.api.server.listener import ApiListener
from app.api.sockets import Api
from tests.app.api.fake import FakePlane
from tests.app.exporters import certificates

TOKEN, READ_TOKEN = "write-4711-abcdefgh", "read-0815-abcdefgh"
ASK = f"GET /v1/probes HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n"
"""The beginning of a request that is allowed."""


@dataclass(frozen=True, slots=True)
class Site:
    """A controller that is served, and ways to it."""

    plane: FakePlane
    listener: ApiListener
    options: Api

    @property
    def unix(self) -> Remote:
        return Remote(f"unix:{self.options.socket}")

    @property
    def url(self) -> str:
        assert self.listener.address is not None
        scheme = "https" if self.options.cert else "http"
        return f"{scheme}://127.0.0.1:{self.listener.address[1]}"

    def client(self) -> Client:
        """By the Unix socket."""
        return Client(self.unix)

    def http(self, token: str = TOKEN) -> httpx.Client:
        """By TCP; with no token where it is empty."""
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.url, headers=headers, trust_env=False, timeout=20)

    def raw(self) -> socket.socket:
        """A TCP connection without a request."""
        assert self.listener.address is not None
        return socket.create_connection(self.listener.address[:2], timeout=10)


MakeSite = Callable[..., Site]


@pytest.fixture
def make_site(tmp_path: Path) -> Iterator[MakeSite]:
    """Serve a fake plane; keywords go to `Api`."""
    sites: list[Site] = []

    def make(plane: FakePlane | None = None, **options: Any) -> Site:
        plane = plane or FakePlane()
        directory = {"socket": str(tmp_path / "api.sock")}
        chosen = Api(version="1.2.3", **(directory | options))
        sites.append(Site(plane, ApiListener(plane, chosen), chosen))
        return sites[-1]

    yield make
    for site in sites:
        site.plane.gate.set()
        site.listener.close()


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, Any]:
    """Options of `Api` for TCP on this host, with both tokens."""
    return {"listen": "127.0.0.1:0", **token_files(tmp_path)}


@pytest.fixture
def site(make_site: MakeSite) -> Site:
    return make_site()


@pytest.fixture
def tcp(make_site: MakeSite, tokens: dict[str, Any]) -> Site:
    return make_site(socket="", **tokens)


def token_files(directory: Path) -> dict[str, Any]:
    """A file each, that only its owner can read."""
    made: dict[str, Any] = {}
    for name, token in (("token", TOKEN), ("read_token", READ_TOKEN)):
        path = directory / name
        path.touch(mode=0o600)
        path.write_text(f"{token}\n")
        made[name] = str(path)
    return made


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Options of `Api` for TLS on 127.0.0.1, with a self-signed certificate."""
    made = certificates.certificate(tmp_path_factory.mktemp("tls"), "probedeck")
    return {"cert": str(made.cert), "key": str(made.key)}


def answer(raw: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := raw.recv(65536):
            parts.append(part)
    return b"".join(parts)


def body_of(response: httpx.Response) -> Any:
    """A JSON answer; it must say so."""
    assert response.headers["content-type"] == "application/json"
    return json.loads(response.content)
