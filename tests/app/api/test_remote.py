"""A controller on another host, as a ControlPlane: its answers, and its connection."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.api import wire
from app.api.address import Remote
from app.api.client import Client, RemoteController
from app.api.server.listener import ApiListener
from app.api.sockets import Api
from bpf.compiler import CompileError
from bpf.errors import KernelError, ProbedeckError, UsageError
from probes.config.model import dump
from probes.control_plane import ControlPlane
from probes.flow.filter import FlowFilter
from probes.flow.records import FLOW
from probes.path.options import Guard, Guarded, PathOptions
from probes.reports import ProbeInfo
from probes.snapshot import Event, Snapshot
from tests.app.api.conftest import MakeSite, Site, token_files
from tests.app.api.fake import BROKEN, NO_KERNEL, REFUSED, VERIFIER_LOG, FakePlane, config
from tests.support.console.feed import window
from tests.support.sight import becomes


class Heard:
    """Items that a control plane publishes."""

    def __init__(self, plane: ControlPlane) -> None:
        self.snapshots: list[Snapshot] = []
        self.events: list[Event] = []
        plane.listen(self._take)

    def _take(self, item: Snapshot | Event) -> None:
        if isinstance(item, Snapshot):
            self.snapshots.append(item)
        else:
            self.events.append(item)

    def says(self, words: str) -> bool:
        return any(words in event.text for event in self.events)


@pytest.fixture
def remote(site: Site) -> Iterator[RemoteController]:
    with RemoteController(site.unix) as plane:
        yield plane


def test_every_question_is_answered_as_the_controller_would(
    site: Site, remote: RemoteController
) -> None:
    """S1.1: the paper's deployment, one console for many controllers."""
    plane = site.plane
    assert _shown(remote.add(config())) == _shown(plane.probes()[0])
    assert list(map(_shown, remote.probes())) == list(map(_shown, plane.probes()))
    assert remote.check(config()) == plane.check(config())
    made = remote.replace(config(source="int g;"))
    assert (made.generation, made.compatibility.warnings) == (2, ("another verdict for a frame",))
    assert dump(plane.probes()[0].config) == dump(config(source="int g;"))
    assert dump(remote.config("counter")) == dump(config(source="int g;"))
    assert remote.roll_back("counter").generation == 3
    assert remote.cost("counter") == plane.cost("counter")
    for most in (1000, 3):
        assert remote.maps("counter", most) == plane.maps("counter", most)
    (hook,) = remote.hook_status()
    assert (hook.mode, hook.before) == ("generic", ("XDP program 'x' id 7",))
    assert remote.read_only == ""
    assert remote.failure() is None
    assert [(t.window, t.metric) for t in remote.export("counter")] == [
        (3, "packets"),
        (3, "bytes"),
    ]
    assert [t.window for t in remote.remove("counter")] == [4, 4]
    assert plane.probes() == ()


def test_the_interval_and_the_filter_are_those_of_the_other_side(site: Site) -> None:
    """Also if another client changes the filter: the flow probe's program is then another one."""
    site.plane.interval = 5.0
    site.plane.captures.append("proto:tcp")
    with RemoteController(site.unix) as remote:
        assert (remote.interval, remote.capture) == (5.0, "proto:tcp")
        site.plane.captures.append("proto:udp")
        site.plane.publish(window(np.empty(0, FLOW), 7, generation=2))
        assert becomes(lambda: remote.capture == "proto:udp")


def _shown(info: ProbeInfo) -> object:
    """All but where the configuration came from, which is each side's own."""
    return replace(info, config=config()), dump(info.config)


def test_the_flow_probes_filter_can_be_changed(site: Site, remote: RemoteController) -> None:
    """S4.3."""
    with pytest.raises(UsageError, match="no probe 'flow'"):
        remote.reconfigure(FlowFilter.parse("udp"))
    site.plane.add(config("flow"))
    assert remote.reconfigure(FlowFilter.parse("udp port:53")).generation == 2
    remote.switch("names", True)
    assert site.plane.captures == ["udp port:53", "names True"]


def test_the_options_of_path_tracing_can_be_changed(site: Site, remote: RemoteController) -> None:
    assert remote.path_options == PathOptions()
    remote.path_options = PathOptions(guard=Guard.NONE, guarded=Guarded.ALL, rate=7)
    assert site.plane.path_options == remote.path_options
    assert remote.path_options.guard is Guard.NONE


def test_what_is_published_there_is_heard_here_exactly(
    site: Site, remote: RemoteController
) -> None:
    """S1.27, S1.29."""
    heard = Heard(remote)
    site.plane.add(config())
    sent = [table for _ in range(20) for table in site.plane.export("counter")]
    assert becomes(lambda: len(heard.snapshots) == len(sent))
    for got, one in zip(heard.snapshots, sent, strict=True):
        assert (got.window, got.metric, got.schema) == (one.window, one.metric, one.schema)
        assert (got.start_ns, got.end_ns, got.end_utc_ns) == (
            one.start_ns, one.end_ns, one.end_utc_ns,
        )  # fmt: skip
        assert got.rows.dtype == one.rows.dtype
        assert got.rows.tobytes() == one.rows.tobytes()
    assert remote.history.snapshots() == tuple(heard.snapshots)
    assert [event.text for event in heard.events] == ["runs"]


def test_what_is_published_here_stays_here(site: Site, remote: RemoteController) -> None:
    heard, there = Heard(remote), Heard(site.plane)
    remote.publish(Event.now("info", "console", "hello"))
    assert heard.says("hello")
    assert not there.says("hello")


def test_errors_are_what_they_were(site: Site, remote: RemoteController) -> None:
    """S1.6."""

    def raised(call: Callable[[], object]) -> ProbedeckError:
        with pytest.raises(ProbedeckError) as caught:
            call()
        return caught.value

    broken = config(source=f"int f();\n{BROKEN}")
    there = raised(lambda: site.plane.check(broken))
    for call in (remote.check, remote.add):
        here = raised(lambda call=call: call(broken))  # type: ignore[misc]
        assert isinstance(here, CompileError)
        assert isinstance(there, CompileError)
        assert here.diagnostics == there.diagnostics
        assert (str(here), here.exit_code) == (str(there), 2)
    refused = raised(lambda: remote.add(config(source=REFUSED)))
    assert isinstance(refused, CompileError)
    assert refused.verifier_log == VERIFIER_LOG
    lacking = raised(lambda: remote.add(config(source=NO_KERNEL)))
    assert isinstance(lacking, KernelError)
    assert (lacking.exit_code, lacking.hint) == (4, "a newer kernel does")
    remote.add(config())
    unknown = raised(lambda: remote.roll_back("countr"))
    assert isinstance(unknown, UsageError)
    assert unknown.hint == "did you mean counter?"
    nothing_before = raised(lambda: remote.roll_back("counter"))
    assert nothing_before.exit_code == 1
    for name in ("..", "a/b", "a?b#c", "%2e", ""):
        assert isinstance(raised(lambda name=name: remote.export(name)), ProbedeckError)  # type: ignore[misc]


def test_a_token_that_may_only_read_says_so(make_site: MakeSite, tokens: dict[str, Any]) -> None:
    site = make_site(socket="", **tokens)
    site.plane.add(config())
    with RemoteController(Remote(site.url, tokens["read_token"])) as plane:
        heard = Heard(plane)
        assert plane.read_only == "this token may only read"
        with pytest.raises(UsageError, match="may only read"):
            plane.export("counter")
        site.plane.export("counter")
        assert becomes(lambda: len(heard.snapshots) == 2)
    with RemoteController(Remote(site.url, tokens["token"])) as plane:
        assert plane.read_only == ""
    with pytest.raises(UsageError, match="no valid token"):
        RemoteController(Remote(site.url))
    Path(tokens["token"]).write_text("wrong-but-long-enough")
    with pytest.raises(UsageError, match="no valid token"):
        RemoteController(Remote(site.url, tokens["token"]))


def test_a_slow_link_is_no_silence(make_site: MakeSite, tokens: dict[str, Any]) -> None:
    site = make_site(socket="", **tokens)
    with RemoteController(Remote(site.url, tokens["token"]), screen=True, few=True) as remote:
        heard = Heard(remote)
        for age in (0, 4):
            late = window(np.zeros(200, FLOW), 1)
            site.plane.publish(replace(late, end_ns=time.monotonic_ns() - age * 10**9))
            assert becomes(lambda age=age: len(heard.snapshots) > age // 4)  # type: ignore[misc]
            assert becomes(lambda age=age: (remote.late_by > 3) == (age == 4))  # type: ignore[misc]
        assert len(heard.snapshots[0].rows) == 100
        site.listener.close()
        assert becomes(lambda: not remote.late_by)


def test_a_lost_connection_is_made_again(tmp_path: Path) -> None:
    path = str(tmp_path / "api.sock")
    first, second = FakePlane(), FakePlane()
    listener = ApiListener(first, Api("1", socket=path))
    with RemoteController(Remote(f"unix:{path}")) as plane:
        heard = Heard(plane)
        listener.close()
        assert becomes(lambda: heard.says("connection lost"))
        assert plane.failure() is None
        with pytest.raises(ProbedeckError, match="no controller at unix:"):
            plane.probes()
        by_path = contextlib.closing(Client(Remote(path)))
        with by_path as client, pytest.raises(ProbedeckError, match="no controller at /"):
            client.probes()
        second.read_only = "started with --read-only"
        with ApiListener(second, Api("1", socket=path)):
            assert becomes(lambda: heard.says("connected again"), 10)
            assert plane.read_only == "started with --read-only"
            second.read_only = ""
            second.add(config())
            second.export("counter")
            assert becomes(lambda: len(heard.snapshots) == 2)
    assert [event.severity for event in heard.events][:3] == ["warning", "info", "info"]


def test_a_token_that_is_no_longer_valid_ends_it(
    make_site: MakeSite, tokens: dict[str, Any]
) -> None:
    site = make_site(socket="", **tokens)
    with RemoteController(Remote(site.url, tokens["token"])) as plane:
        heard = Heard(plane)
        site.listener.close()
        Path(tokens["token"]).write_text("another-that-is-long")
        assert site.listener.address is not None
        tokens["listen"] = f"127.0.0.1:{site.listener.address[1]}"
        with ApiListener(site.plane, Api("1", socket="", **tokens)):
            assert becomes(lambda: plane.failure() is not None, 10)
        assert "no valid token" in str(plane.failure())
        assert heard.says("no valid token")


@pytest.mark.timing
def test_closing_is_prompt_even_while_nothing_comes(site: Site) -> None:
    plane = RemoteController(site.unix)
    started = time.monotonic()
    plane.close()
    assert time.monotonic() - started < 1
    assert not [t for t in threading.enumerate() if t.name == "remote"]
    with contextlib.closing(site.client()) as client:
        assert client.probes() == ()


@pytest.mark.parametrize(
    "url",
    ["", "eth0", "unix:", "unix://host/path", "ftp://a:1", "http://", "http://a:99999999",
     "http://[::1", "https://:80", "http://a:b"],
)  # fmt: skip
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="no controller's address"):
        Client(Remote(url))


def test_a_token_is_not_sent_where_others_can_read_it(tmp_path: Path) -> None:
    token = str(token_files(tmp_path)["token"])
    with pytest.raises(UsageError, match="readable by all"):
        Client(Remote("http://198.51.100.1:8765", token))
    Client(Remote("http://127.0.0.1:8765", token)).close()
    Client(Remote("http://[::1]:8765", token)).close()
    with pytest.raises(UsageError, match="certificates"):
        Client(Remote("https://127.0.0.1:1", token, "/none"))
    with pytest.raises(UsageError, match="cannot read the token"):
        Client(Remote("https://127.0.0.1:1", "/none"))


def test_nobody_there_is_said_with_a_remedy(tmp_path: Path) -> None:
    with contextlib.closing(Client(Remote(f"unix:{tmp_path}/none.sock"))) as client:
        with pytest.raises(ProbedeckError, match="no controller at unix:") as caught:
            client.probes()
        assert "probedeck serve" in caught.value.hint
        assert caught.value.exit_code == 1


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
STREAM = f"HTTP/1.1 200 OK\r\ncontent-type: {wire.MEDIA_TYPE}\r\n\r\n".encode()
STATUS = HEAD + b"connection: close\r\n\r\n" + (
    b'{"version": "1", "read_only": "", "failure": "", "modes": {}}'
)  # fmt: skip


@contextlib.contextmanager
def hostile(*answers: bytes) -> Iterator[Remote]:
    """A server that gives these answers, one a connection, and then the last one again."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ended = threading.Event()

        def run() -> None:
            given = iter(answers)
            for number in range(1000):
                client, _ = listening.accept()
                if ended.is_set():
                    return
                with client:
                    client.recv(65536)
                    client.sendall(next(given, answers[-1]))
                    client.shutdown(socket.SHUT_WR)
                    assert number < 999

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield Remote(f"http://127.0.0.1:{listening.getsockname()[1]}")
        finally:
            ended.set()
            socket.create_connection(listening.getsockname()).close()
            thread.join()


@pytest.mark.parametrize(
    "junk",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n{",
        HEAD + b"\r\n" + b"[" * 100_000,
        HEAD + b"\r\n" + b'{"version": 1}',
        HEAD + b"content-encoding: gzip\r\n\r\n" + b"\x1f\x8b" + b"\x00" * 100,
        b"HTTP/1.1 500 Oh\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 302 Go\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 999 Oh\r\ncontent-length: 0\r\n\r\n",
        b"",
    ],
)
def test_a_server_that_is_none_of_ours_is_an_error_in_words(junk: bytes) -> None:
    with (
        hostile(junk) as remote,
        contextlib.closing(Client(remote)) as client,
        pytest.raises(ProbedeckError, match=r"127\.0\.0\.1"),
    ):
        client.status()


@pytest.mark.parametrize(
    "junk", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x04nope", b'\x00\x00\x00\x0c{"event": 7}']
)
def test_a_stream_of_junk_ends_it_with_the_reason(junk: bytes) -> None:
    with hostile(STATUS, STREAM + junk) as remote, RemoteController(remote) as plane:
        assert becomes(lambda: plane.failure() is not None)
        assert "the stream holds a record" in str(plane.failure())
        assert "\n" not in str(plane.failure())


def test_a_stream_of_another_version_is_named() -> None:
    with hostile(STATUS, HEAD + b"\r\n{}") as remote, RemoteController(remote) as plane:
        assert becomes(lambda: plane.failure() is not None)
        assert "which this version can't read" in str(plane.failure())
