"""Alerts reach real receivers, with their evidence; they are limited, tried again and counted."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from app.exporters.alerts.exporter import AlertExporter, AlertFilter
from app.exporters.alerts.log_sockets import LogSocket, Syslog
from app.exporters.alerts.webhook import command
from app.exporters.delivery import Outputs
from app.exporters.exporter import DeliveryError, RejectedError
from app.exporters.host import ExportHost
from app.exporters.kinds import parse
from app.exporters.ledger import Ledger
from app.files import Invoker
from bpf.errors import UsageError
from probes.control.controller import Controller
from probes.monitor.state import PolicyState
from probes.reports import OutputConfig, OutputState, OutputStatus
from probes.snapshot import Event
from tests.app.exporters.alerts.receivers import FINDING, health, log, transitions, web
from tests.app.exporters.certificates import certificate
from tests.app.exporters.receiver import until

ARMED, ACTIVE, HOLD, COOLDOWN = (
    PolicyState.ARMED, PolicyState.ACTIVE, PolicyState.HOLD, PolicyState.COOLDOWN,
)  # fmt: skip


@pytest.fixture(scope="module")
def controller() -> Iterator[Controller]:
    with Controller() as plane:
        plane.outputs = Outputs(plane)
        yield plane


@pytest.fixture
def status(controller: Controller) -> Iterator[dict[str, OutputStatus]]:
    """Remove the outputs of a test."""
    yield {}
    for each in controller.outputs.status():
        if each.state is not OutputState.ENDED:
            controller.outputs.remove(each.name)


def of(controller: Controller, name: str) -> OutputStatus:
    return next(each for each in controller.outputs.status() if each.name == name)


def is_failing(controller: Controller, name: str) -> bool:
    return of(controller, name).state is OutputState.FAILING


def test_transitions_and_health_become_alerts_and_an_own_failure_does_not() -> None:
    chosen = AlertFilter("main", "warning", ())
    plain = Event.now("warning", "flow", "no phase")
    policy = health("begin", "monitor", "policy flood")
    assert [chosen.count(each) for each in (plain, policy)] == [0, 0]
    assert chosen.count(health("end")) == 0, "its begin was not taken"
    pairs = [health("begin"), health("end"), health("end")]
    assert [chosen.count(each) for each in pairs] == [1, 1, 0]
    own, other = health("begin", "output", "main"), health("begin", "output", "other")
    assert [chosen.count(each) for each in (own, other)] == [0, 1]
    table = transitions((ARMED, ACTIVE), (ACTIVE, HOLD), (HOLD, COOLDOWN))
    assert chosen.count(table) == 2
    begun, ended = chosen.alerts(table)
    assert (begun.severity, begun.phase, begun.subject) == ("warning", "begin", "policy flood")
    since = begun.time[11:19]
    assert begun.text == f"flood: {FINDING}, since {since} UTC"
    assert begun.evidence["cause"] == "flows 900 > 500"
    assert ended.text == f"flood ended: {FINDING}, since {since} UTC"
    assert begun.evidence["found_packets"] == 77
    assert (ended.severity, ended.phase) == ("info", "end")
    assert AlertFilter("main", "info", ()).count(table) == 3
    assert AlertFilter("main", "error", ()).count(table) == 0
    assert AlertFilter("main", "warning", ("path",)).count(table) == 0
    assert AlertFilter("main", "warning", ("path",)).count(health("begin")) == 0


def test_a_webhook_dies_returns_refuses_and_is_signed(
    controller: Controller, status: object, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("0123456789abcdef\n")
    key.chmod(0o644)
    with web() as server:
        port = server.port
        url = f"http://ana:hush@127.0.0.1:{port}/T0/secret?key={key}&name=hook"
        with pytest.raises(UsageError, match="others can read it; chmod 600"):
            controller.outputs.add(OutputConfig(url))
        key.chmod(0o600)
        added = controller.outputs.add(OutputConfig(url))
        assert added.url.startswith(f"http://127.0.0.1:{port}/...?key=")
        server.statuses = [503, 429, 404, 200]
        controller.publish(transitions((ARMED, ACTIVE)))
        controller.publish(health("begin", "path", "10.0.0.1 hop 3"))
        assert until(lambda: of(controller, "hook").delivered == 1)
        assert of(controller, "hook").undelivered == {"refused": 1}, (
            "404 is final, 503 and 429 are not"
        )
        path, headers, body = server.got[-1]
        assert path == "/T0/secret"
        assert headers["authorization"].startswith("Basic ")
        signed = headers["x-probedeck-timestamp"].encode() + b"." + body
        wanted = hmac.new(b"0123456789abcdef", signed, hashlib.sha256).hexdigest()
        assert headers["x-probedeck-signature"] == f"sha256={wanted}"
        assert json.loads(body)["subject"] == "10.0.0.1 hop 3"
        assert json.loads(server.got[0][2])["evidence"]["finding"] == FINDING
    controller.publish(transitions((ARMED, ACTIVE)))
    assert until(lambda: of(controller, "hook").state is OutputState.FAILING)
    with web(port) as server:
        assert until(lambda: of(controller, "hook").delivered == 2)
        assert len(server.got) == 1, "once, and no alert about its own failure"
    assert "hush" not in repr(controller.outputs.status())
    assert "secret" not in repr(controller.outputs.status())


def test_a_webhook_trusts_only_its_authority_and_name(
    controller: Controller, status: object, tmp_path: Path
) -> None:
    own, foreign = certificate(tmp_path), certificate(tmp_path, "foreign")
    with web(tls=own.server()) as server:
        url = f"https://{{}}:{server.port}/hook?ca={{}}&name={{}}&only=monitor"
        for name, host, trusted in (
            ("right", "127.0.0.1", own), ("authority", "127.0.0.1", foreign),
            ("name", "localhost", own),
        ):  # fmt: skip
            controller.outputs.add(OutputConfig(url.format(host, trusted.cert, name)))
        controller.publish(transitions((ARMED, ACTIVE)))
        assert until(lambda: of(controller, "right").delivered == 1)
        assert len(server.got) == 1
        for name, words in (
            ("authority", "self-signed certificate"), ("name", "Hostname mismatch"),
        ):  # fmt: skip
            assert until(partial(is_failing, controller, name))
            reason = of(controller, name).reason
            assert reason.startswith(f"the receiver's certificate is refused: {words}")
            assert "_ssl.c" not in reason
            assert "\n" not in reason
            ended = controller.outputs.remove(name)
            assert ended.delivered == 0
            assert ended.undelivered["ended"] >= 1
        with pytest.raises(UsageError, match=r"option ca: .*No such file"):
            controller.outputs.add(OutputConfig(url.format("127.0.0.1", tmp_path / "none", "x")))


def test_a_program_gets_each_alert_and_has_a_time_limit(
    controller: Controller, status: object, tmp_path: Path
) -> None:
    program, file = tmp_path / "page", tmp_path / "got"
    program.write_text(
        f"#!/bin/sh\ncat >> {file}.$1\necho >> {file}.$1\n"
        "case $1 in hang) sleep 60;; esac\nexit ${2:-0}"
    )
    program.chmod(0o755)
    for words in ("fine", "fails%203", "hang"):
        limit = "&timeout=200ms" if words == "hang" else ""
        url = f"command:{program}%20{words}?only=monitor&name={words[:4]}{limit}"
        controller.outputs.add(OutputConfig(url))
    controller.publish(transitions((ARMED, ACTIVE)))
    assert until(lambda: of(controller, "fine").delivered == 1)
    assert until(lambda: of(controller, "fail").lost == of(controller, "hang").lost == 1)
    wanted = [f"{program}: {why}, 3 times" for why in ("exit code 3", "killed after 0.2 s")]
    assert until(lambda: [of(controller, name).reason for name in ("fail", "hang")] == wanted)
    lines = [Path(f"{file}.{word}").read_text().splitlines() for word in ("fine", "fails")]
    assert list(map(len, lines)) == [1, 3]
    assert json.loads(lines[0][0])["evidence"]["filter"] == "src:10.0.0.9"


def test_the_journal_and_syslog_take_alerts(
    controller: Controller, status: object, tmp_path: Path
) -> None:
    paths = [tmp_path / "journal", tmp_path / "log"]
    with (
        log(paths[0]) as journal,
        log(paths[1]) as local,
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
    ):
        udp.bind(("127.0.0.1", 0))
        for each in (tcp, udp):
            each.settimeout(5)
        here = "syslog://127.0.0.1"
        for url in (
            f"journald:?socket={paths[0]}", f"syslog+unix:{paths[1]}",
            f"{here}:{udp.getsockname()[1]}?facility=16&name=udp",
            f"{here}:{tcp.getsockname()[1]}?transport=tcp&name=tcp",
        ):  # fmt: skip
            controller.outputs.add(OutputConfig(url))
        controller.publish(transitions((ARMED, ACTIVE)))
        fields = dict(line.split("=", 1) for line in journal.recv(65536).decode().splitlines())
        assert f": {FINDING}, since " in fields["MESSAGE"]
        assert (fields["PRIORITY"], fields["PROBEDECK_SUBJECT"]) == ("4", "policy flood")
        assert json.loads(fields["PROBEDECK_ALERT"])["evidence"]["found_packets"] == 77
        pattern = (
            rf"<(\d+)>1 \d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{{6}}Z \S+ probedeck {os.getpid()} "
            r'policy \[probedeck@32473 source="monitor" subject="policy flood" phase="begin" '
            rf'filter="src:10.0.0.9"\] \ufeffflood: {FINDING}, since \d\d:\d\d:\d\d UTC'
        )
        found = [re.fullmatch(pattern, each.recv(65536).decode()) for each in (local, udp)]
        assert [each and each[1] for each in found] == ["28", "132"]
        stream, _ = tcp.accept()
        with stream:
            stream.settimeout(5)
            length, _, message = stream.recv(65536).partition(b" ")
            assert int(length) == len(message)
            assert re.fullmatch(pattern, message.decode())
        controller.publish(health("begin"))
        again, _ = tcp.accept()
        with again:
            again.settimeout(5)
            assert b"health" in again.recv(65536), "connected again"
        assert until(
            lambda: [each.delivered for each in controller.outputs.status()][-4:] == [2] * 4
        )


class _Kept:
    def __init__(self) -> None:
        self.sent: list[str] = []
        self.broken_at = -1
        """Number of the alert before which the connection breaks once."""

    def send(self, alert: object) -> None:
        if len(self.sent) == self.broken_at:
            self.broken_at = -1
            raise DeliveryError("connection reset")
        self.sent.append(getattr(alert, "text", ""))

    def close(self) -> None:
        pass


def test_a_storm_is_held_back_counted_and_summarised(controller: Controller) -> None:
    lost: list[tuple[int, str]] = []
    now = [100.0]
    config = parse(OutputConfig("journald:?most=3"))
    host = ExportHost(config, controller, Ledger(), lambda *held: lost.append(held))
    sender = _Kept()
    exporter = AlertExporter(host, sender, lambda: now[0])
    for number in range(10):
        begun = health("begin", subject=f"s{number}")
        assert exporter.records(begun) == 1
        exporter.deliver(begun, 0)
    assert sender.sent == ["s0 begin", "s1 begin", "s2 begin"]
    assert lost == [(1, "held back")] * 7
    exporter.tick()
    assert len(sender.sent) == 3
    now[0] += 60
    exporter.tick()
    exporter.deliver(health("begin", subject="late"), 0)
    exporter.close()
    assert sender.sent[3:] == ["7 alerts were held back in the last minute, of flow", "late begin"]


def test_the_end_summarises_held_alerts_and_a_retry_repeats_none(controller: Controller) -> None:
    lost: list[tuple[int, str]] = []
    config = parse(OutputConfig("journald:?most=2"))
    host = ExportHost(config, controller, Ledger(), lambda *held: lost.append(held))
    sender = _Kept()
    exporter = AlertExporter(host, sender)
    table = transitions((ARMED, ACTIVE), (ACTIVE, HOLD), (HOLD, COOLDOWN))
    sender.broken_at = 1
    with pytest.raises(DeliveryError) as caught:
        exporter.deliver(table, 0)
    assert caught.value.delivered == 1
    exporter.deliver(table, 1)
    assert len(sender.sent) == 2
    exporter.deliver(health("begin"), 0)
    exporter.close()
    assert sender.sent[2:] == ["1 alert was held back in the last minute, of flow"]


def test_a_mistyped_program_is_refused_at_the_start(controller: Controller) -> None:
    config = parse(OutputConfig("command:no-such-pager --team net"))
    with pytest.raises(UsageError, match="there is no program 'no-such-pager'; give its whole"):
        command(ExportHost(config, controller, Ledger(), lambda *_: None))


def test_a_program_leaves_no_process_behind(controller: Controller, tmp_path: Path) -> None:
    program, file = tmp_path / "page", tmp_path / "child"
    program.write_text(f"#!/bin/sh\nsleep 60 &\necho $! > {file}\n")
    program.chmod(0o755)
    config = parse(OutputConfig(f"command:{program}"))
    exporter = command(ExportHost(config, controller, Ledger(), lambda *_: None))
    exporter.deliver(health("begin"), 0)
    child = Path("/proc", file.read_text().strip(), "cmdline")

    def is_gone() -> bool:
        try:
            return not child.read_bytes()
        except OSError:
            return True

    assert until(is_gone, 5)


def test_an_account_that_is_gone_is_a_failure_of_the_output(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program must not run with root's rights instead."""
    gone = Invoker(4_000_000_000, 4_000_000_000, Path("/"), by_sudo=True)
    monkeypatch.setattr("app.exporters.alerts.webhook.invoker", lambda: gone)
    exporter = command(
        ExportHost(parse(OutputConfig("command:true")), controller, Ledger(), lambda *_: None)
    )
    for _ in range(2):
        with pytest.raises(DeliveryError, match="true: user 4000000000 has no account"):
            exporter.deliver(health("begin"), 0)
    with pytest.raises(RejectedError, match="has no account, 3 times"):
        exporter.deliver(health("begin"), 0)


def test_text_of_others_stays_in_its_field(tmp_path: Path) -> None:
    hostile = Event.now("error", "api", 'a\n<1>1 "]b', 'x"]\\\n', "begin")
    chosen = AlertFilter("main", "info", ())
    assert chosen.count(hostile)
    (alert,) = chosen.alerts(hostile)
    with log(tmp_path / "s") as receiver:
        address = str(tmp_path / "s")
        sender = Syslog(LogSocket(socket.AF_UNIX, socket.SOCK_DGRAM, address), 3, framed=False)
        sender.send(alert)
        message = receiver.recv(4096).decode()
        sender.close()
    assert "\n" not in message
    assert r'subject="x\"\]\\?"' in message
