"""Connections: limits for slow and hostile clients, and no leaks."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import threading
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from app.api.address import Remote
from app.api.client import Client
from app.api.server.app import create
from app.api.server.auth import Rights
from app.api.server.broadcaster import Broadcaster
from app.api.server.listener import ApiListener
from app.api.sockets import Api, Limits
from app.exporters.openmetrics.metric_state import MetricState
from bpf.errors import ProbedeckError
from probes.config.model import dump
from tests.app.api.conftest import ASK, MakeSite, answer, token_files
from tests.app.api.fake import FakePlane, config
from tests.support.descriptors import open_fds
from tests.support.sight import becomes

SLOW = {
    "nothing": b"",
    "half a header": b"GET /v1/probes HT",
    "half a body": b"POST /v1/probes HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    b"authorization: Bearer write-4711-abcdefgh\r\ncontent-length: 100\r\n\r\n{",
    "half a second request": f"{ASK}\r\n{ASK}".encode(),
    "half a chunk": b"POST /v1/probes HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    b"authorization: Bearer write-4711-abcdefgh\r\ntransfer-encoding: chunked\r\n\r\nff\r\nx",
    "a body that was refused": b"POST /v1/probes HTTP/1.1\r\nhost: x\r\ncontent-length: 100"
    b"\r\n\r\n{",
}


@pytest.mark.parametrize("start", SLOW.values(), ids=SLOW)
@pytest.mark.timing
def test_a_request_that_is_not_completed_is_cut_off(
    make_site: MakeSite, tokens: dict[str, Any], start: bytes
) -> None:
    """Slowloris, also where a byte comes now and then."""
    site = make_site(socket="", **tokens, limits=Limits(request=0.5))
    started = time.monotonic()
    with site.raw() as raw:
        raw.sendall(start)
        raw.settimeout(0.1)
        while time.monotonic() < started + 5:
            try:
                if not raw.recv(65536):
                    break
            except TimeoutError:
                with contextlib.suppress(OSError):
                    raw.send(b"x")
            except ConnectionResetError:
                break
        assert 0.3 < time.monotonic() - started < 2.5


@pytest.mark.timing
def test_a_handshake_that_does_not_come_is_cut_off(
    make_site: MakeSite, tokens: dict[str, Any], certificate: dict[str, Any]
) -> None:
    site = make_site(socket="", **tokens, **certificate, limits=Limits(request=0.5))
    started = time.monotonic()
    with site.raw() as raw:
        assert answer(raw) == b""
        assert 0.3 < time.monotonic() - started < 2.5


def test_a_connection_that_is_used_again_is_not_cut_off(
    make_site: MakeSite, tokens: dict[str, Any]
) -> None:
    site = make_site(socket="", **tokens, limits=Limits(request=0.3))
    with site.raw() as raw:
        for _ in range(4):
            raw.sendall(f"{ASK}\r\n".encode())
            got = b""
            while not got.endswith(b"[]"):
                got += raw.recv(65536)
            assert got.startswith(b"HTTP/1.1 200")
            time.sleep(0.2)


def test_a_request_with_two_lengths_is_refused_and_closed(
    make_site: MakeSite, tokens: dict[str, Any]
) -> None:
    """RFC 9112, 6.1: a proxy may take the rest of the body for another request."""
    with make_site(socket="", **tokens).raw() as raw:
        raw.sendall(
            b"POST /v1/probes HTTP/1.1\r\nhost: x\r\nauthorization: Bearer write-4711-abcdefgh\r\n"
            b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + ASK.encode()
        )
        got = answer(raw)
    assert got.startswith(b"HTTP/1.1 400")
    assert b"connection: close" in got
    assert got.count(b"HTTP/1.1") == 1


def test_a_long_compile_is_not_taken_for_a_slow_client(
    make_site: MakeSite, tokens: dict[str, Any]
) -> None:
    site = make_site(socket="", **tokens, limits=Limits(request=0.3))
    site.plane.gate.clear()
    timer = threading.Timer(0.8, site.plane.gate.set)
    timer.start()
    with site.http() as http:
        assert http.post("/v1/compile", json=dump(config())).status_code == 200
    timer.join()


def test_who_takes_no_answer_is_cut_off(make_site: MakeSite, tokens: dict[str, Any]) -> None:
    """S1.27."""
    site = make_site(socket="", **tokens, limits=Limits(stall=0.5))
    site.plane.add(config(source="int f;" + "/" * 900_000))
    before = open_fds()
    with site.raw() as raw:
        raw.sendall(f"{ASK}\r\n".encode() * 20)
        assert raw.recv(12) == b"HTTP/1.1 200"
        # Both ends are this process's.
        assert open_fds() == before + 2
        assert becomes(lambda: open_fds() == before + 1, 5)


@pytest.mark.timing
def test_the_slow_make_room_for_others(make_site: MakeSite, tokens: dict[str, Any]) -> None:
    """S1.27: as many as are let in wait and do nothing; the operator gets through, by TCP too."""
    site = make_site(**tokens, limits=Limits(connections=8))
    before = open_fds()
    with contextlib.ExitStack() as held:
        for _ in range(60):
            held.enter_context(site.raw()).sendall(b"GET /")
        with contextlib.closing(site.client()) as client:
            assert client.status().version == "1.2.3"
        with site.http() as http:
            assert http.get("/v1/status").status_code == 200
        # Our ends, and a few of the server's.
        assert open_fds() < before + 60 + 30


def test_who_is_being_answered_is_not_put_out(make_site: MakeSite, tokens: dict[str, Any]) -> None:
    """S1.27."""
    site = make_site(socket="", **tokens, limits=Limits(connections=3))
    site.plane.gate.clear()
    answers: list[int] = []

    def ask() -> None:
        with site.http() as http:
            answers.append(http.post("/v1/compile", json=dump(config()), timeout=20).status_code)

    asking = [threading.Thread(target=ask) for _ in range(3)]
    for thread in asking:
        thread.start()
    assert becomes(lambda: site.plane.busy == 3)
    with site.raw() as late:
        assert answer(late) == b""
    site.plane.gate.set()
    for thread in asking:
        thread.join()
    assert answers == [200, 200, 200]


@pytest.mark.timing
def test_a_stream_that_is_not_read_delays_no_publisher(
    make_site: MakeSite, tokens: dict[str, Any]
) -> None:
    """S1.27: 64 MiB wait for it at most, and the rest is lost to it alone."""
    site = make_site(socket="", **tokens)
    site.plane.add(config())
    with site.raw() as raw:
        raw.sendall(f"{ASK.replace('probes', 'stream')}\r\n".encode())
        assert raw.recv(12) == b"HTTP/1.1 200"
        slowest = 0.0
        for _ in range(300):
            started = time.monotonic()
            site.plane.export("counter")
            slowest = max(slowest, time.monotonic() - started)
        assert slowest < 0.5
        with site.http() as http:
            assert http.get("/v1/status", timeout=2).status_code == 200


@pytest.mark.parametrize(
    "junk",
    [b"\x00\xff" * 100, b"\r\n" * 1000, b"GET " + b"/" * 70_000 + b" HTTP/1.1\r\n\r\n",
     b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
     b"GET / HTTP/1.1\r\nhost: a\r\ncontent-length: -5\r\n\r\n",
     b"GET / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
     b"CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\n",
     b"GET / HTTP/1.1\r\nhost: a\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
     b"GET http://[ HTTP/1.1\r\nhost: a\r\n\r\n", b"GET %%% HTTP/1.1\r\nhost: \xff\r\n\r\n"],
)  # fmt: skip
def test_junk_is_answered_or_ended_but_harms_nobody(
    make_site: MakeSite, tokens: dict[str, Any], junk: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    site = make_site(socket="", **tokens, limits=Limits(request=1))
    with site.raw() as raw:
        with contextlib.suppress(OSError):
            raw.sendall(junk)
            raw.shutdown(socket.SHUT_WR)
        told = answer(raw)
        assert told == b"" or told.startswith(b"HTTP/1.1 4")
    with site.http() as http:
        assert http.get("/v1/status").status_code == 200
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
@pytest.mark.timing
def test_closing_ends_streams_and_requests_and_gives_all_back(
    tmp_path: Path, certificate: dict[str, Any]
) -> None:
    def once() -> None:
        plane = FakePlane()
        options = Api(
            "1", socket=str(tmp_path / "a.sock"), listen="127.0.0.1:0",
            token=token_files(tmp_path)["token"], **certificate,
        )  # fmt: skip
        with contextlib.ExitStack() as held:
            with ApiListener(plane, options) as listener:
                assert listener.address is not None
                client = held.enter_context(
                    contextlib.closing(Client(Remote(f"unix:{options.socket}")))
                )
                client.add(config())
                held.enter_context(client.stream(5))
                held.enter_context(socket.create_connection(listener.address))
                plane.gate.clear()
                stuck = threading.Thread(target=lambda: _ignore(client, "counter"))
                stuck.start()
                assert becomes(lambda: plane.busy == 1)
                started = time.monotonic()
            assert time.monotonic() - started < 3
            plane.gate.set()
            stuck.join()
        listener.close()

    once()
    assert becomes(lambda: not _api_threads())
    before = open_fds()
    for _ in range(3):
        once()
    assert becomes(lambda: open_fds() <= before)
    assert becomes(lambda: not _api_threads())


def test_signals_stay_the_programs_own(tmp_path: Path) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with ApiListener(FakePlane(), Api("1", socket=str(tmp_path / "api.sock"))):
        assert {number: signal.getsignal(number) for number in before} == before


def _ignore(client: Client, name: str) -> None:
    with contextlib.suppress(ProbedeckError):
        client.export(name)


def _api_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name == "api" or "AnyIO" in t.name]


@pytest.mark.slow
def test_listeners_that_begin_together_keep_the_filters_of_warnings() -> None:
    switch = sys.getswitchinterval()
    make = partial(create, FakePlane(), Broadcaster(), Rights(), "1", MetricState())
    threads = [threading.Thread(target=make) for _ in range(3)]
    with warnings.catch_warnings():
        before = list(warnings.filters)
        sys.setswitchinterval(1e-4)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(switch)
        assert list(warnings.filters) == before
