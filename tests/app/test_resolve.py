"""`probedeck trace` without a kernel: what it understands, and the program that it starts."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from threading import Timer
from typing import Any

import click
import pytest

from app.cli.main import cli
from app.outputs.owners.owner_join import ItemStream
from app.run import headless, item_loop
from app.run.child_process import ChildProcess, ProgramError
from app.run.options import OutputSpec
from app.run.report import ReportFormat, ReportWriter
from app.run.spec import RunSpec
from bpf.attach import rtnetlink
from bpf.attach.attachment import Hook
from bpf.attach.rtnetlink import RouteType
from bpf.errors import ProbedeckError, UsageError
from probes.path.options import Guard, Guarded, Order, PathOptions, Per
from probes.path.records import ProbeOutcome
from probes.path.traced import Traced
from probes.reports import NoOutputs
from probes.snapshot import Event, Item
from tests.app.test_addresses import answer
from tests.support import paths
from tests.support.nobody import become_nobody
from tests.support.runs import deck_ends


@pytest.fixture(autouse=True)
def _loopback_is_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every address has a route over lo, also the ones of this machine."""
    loopback = socket.if_nametoindex("lo")
    monkeypatch.setattr(rtnetlink, "lookup", lambda _: rtnetlink.Route(RouteType.UNICAST, loopback))


def test_addresses_of_a_name_are_printed(
    asked: list[Asked], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    answer(monkeypatch, "192.0.2.1", "2001:db8::1")
    trace("-i", "lo", "example.org", "192.0.2.7")
    assert capfd.readouterr() == ("", "probedeck: example.org is 192.0.2.1, 2001:db8::1\n")


Asked = tuple[RunSpec, OutputSpec, ChildProcess | None, ReportWriter | None]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Asked]:
    """Arguments of the runs, which do not start."""
    calls: list[Asked] = []
    monkeypatch.setattr(headless, "run", lambda *call: calls.append(call))
    return calls


def trace(*arguments: str) -> Any:
    return cli(["trace", *arguments], standalone_mode=False)


def test_what_is_not_said_is_as_documented(asked: list[Asked]) -> None:
    """S3.1, S3.19."""
    trace("-i", "lo", "192.0.2.1", "2001:db8::1", "192.0.2.1")
    [(spec, output, program, _)] = asked
    assert (spec.interface, spec.trace) == ("lo", ("192.0.2.1", "2001:db8::1"))
    assert (spec.options.only, spec.options.flow.hook, spec.options.duration) == (True, None, None)
    assert spec.paths == PathOptions()
    assert spec.path_options == PathOptions(destinations=2)
    assert spec.paths.burst == 1
    assert output == OutputSpec("-", None, ("hops",), metrics=False)
    assert program is None


@pytest.mark.parametrize(
    ("arguments", "looks"),
    [
        (("--filter", "proc:nginx"), True),
        (("--filter", "dport:443"), False),
        (("--filter", "rtt>5ms"), True),
        (("--filter", "dport:443", "--owners"), True),
        (("--views", "owners"), True),
        ((), False),
    ],
)
def test_a_headless_run_looks_for_owners_if_it_needs_them(
    asked: list[Asked], arguments: tuple[str, ...], looks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PROBEDECK_OWNERS")
    cli(["run", "-i", "lo", "--headless", *arguments], standalone_mode=False)
    [(spec, *_)] = asked
    assert ("sockets" in spec.switches) is looks


def test_every_option_arrives(asked: list[Asked]) -> None:
    options = (
        "--rate 250.5 --per global --burst 3 --order probe --guard checksum --guarded all "
        "--pass-answers --timeout 0.5 --max-hops 12 --ingress tc --duration 7 --format jsonl "
        "-o dir --views paths,events"
    )
    trace("-i", "lo", "192.0.2.1", *options.split(), "--", "true", "--rate", "9", "--", "-x")
    [(spec, output, program, _)] = asked
    assert spec.paths == PathOptions(
        rate=250.5,
        per=Per.GLOBAL,
        burst=3,
        order=Order.PROBE,
        guard=Guard.CHECKSUM,
        guarded=Guarded.ALL,
        pass_answers=True,
        timeout=0.5,
        max_hops=12,
    )
    assert (spec.options.flow.hook, spec.options.duration) == (Hook.TC_INGRESS, 7)
    assert output == OutputSpec("dir", "jsonl", ("paths", "events"), metrics=False)
    assert program is not None


@pytest.mark.parametrize(
    ("arguments", "chosen", "found"),
    [
        ("--report 192.0.2.1", ReportFormat.TEXT, ("192.0.2.1",)),
        ("192.0.2.1 --report", ReportFormat.TEXT, ("192.0.2.1",)),
        ("--report json 192.0.2.1", ReportFormat.JSON, ("192.0.2.1",)),
        (
            "192.0.2.1 --report=markdown 192.0.2.2",
            ReportFormat.MARKDOWN,
            ("192.0.2.1", "192.0.2.2"),
        ),
    ],
)
def test_a_report_may_name_its_format(
    asked: list[Any], arguments: str, chosen: ReportFormat, found: tuple[str, ...]
) -> None:
    """It has standard output: tables need a directory."""
    trace("-i", "lo", *arguments.split())
    trace("-i", "lo", *arguments.split(), "-o", "dir")
    for (spec, output, _, report), views in zip(asked, (0, 5), strict=True):
        assert spec.trace == found
        assert len(output.views) == views
        assert report.format is chosen


def test_a_directory_gets_every_table(asked: list[Asked]) -> None:
    trace("-i", "lo", "192.0.2.1", "-o", "dir", "--ingress", "xdp")
    [(spec, output, _, report)] = asked
    assert report is None
    assert output.views == ("hops", "paths", "traces", "windows", "events")
    assert spec.options.flow.hook is Hook.XDP


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("-i none-such 192.0.2.1", "no interface 'none-such'"),
        ("-i lo 127.0.0.1", "cannot trace 127.0.0.1: it is this host"),
        ("-i lo no-such.invalid", "cannot resolve 'no-such.invalid'"),
        ("-i lo 192.0.2.1 --rate 0", "a rate of 0 is not between"),
        ("-i lo 192.0.2.1 --rate nan", "a rate of nan is not between"),
        ("-i lo 192.0.2.1 --burst 9", "a burst of 9 is not"),
        ("-i lo 192.0.2.1 --burst 2 --order application", "bursts need the probe to leave first"),
        ("-i lo 192.0.2.1 --timeout 61", "a timeout of 61 is not"),
        (
            f"-i lo {' '.join(f'192.0.2.{n}' for n in range(129))}",
            "129 destinations are too many; at most 128 are traced at a time",
        ),
        ("-i lo 192.0.2.1 --max-hops 31", "max_hops = 31 is not"),
        ("-i lo 192.0.2.1 --ingress nat", "--ingress 'nat' is not auto, xdp, tc"),
        ("-i lo 192.0.2.1 --views hop", "no view 'hop'"),
        ("-i lo 192.0.2.1 --networks /no.mmdb", "/no.mmdb cannot be read: No such file"),
        ("-i lo 192.0.2.1 --networks /etc/passwd", "/etc/passwd is no MaxMind database (.mmdb)"),
        ("-i lo 192.0.2.1 --report=html", "--report 'html' is not text, markdown, json"),
        (
            "-i lo 192.0.2.1 --report --views paths",
            "the report takes standard output; give tables a DIR by -o",
        ),
        ("-i lo 192.0.2.1 --format yaml", "no format 'yaml'"),
        ("-i lo 192.0.2.1 --duration 0", "--duration 0 is not more than 0"),
        ("-i lo 192.0.2.1 --", "no program after --"),
    ],
)
def test_wrong_usage(asked: list[Asked], arguments: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        trace(*arguments.split())
    assert str(caught.value).startswith(words)
    assert asked == []


@pytest.mark.parametrize(
    "arguments", ["", "-i lo", "-i lo 192.0.2.1 --per net", "-i lo a --guard off"]
)
def test_what_the_command_line_refuses(asked: list[Asked], arguments: str) -> None:
    with pytest.raises(click.ClickException):
        trace(*arguments.split())
    assert asked == []


def test_without_privileges() -> None:
    code, out, err = deck_ends("trace", "-i", "lo", "192.0.2.1", preexec_fn=become_nobody)
    assert (code, out) == (4, "")
    assert err.startswith("probedeck: monitoring can't run here: CAP_BPF: not held")
    assert err.count("\n") == 1


class FakeController:
    """Has sent ten probes to a destination; rows of five are published at once."""

    def __init__(self) -> None:
        self.closed = False
        self.sent = 10
        self.listeners: list[Any] = []
        self.outputs = NoOutputs()

    def listen(self, listener: Any) -> None:
        self.listeners.append(listener)

    def publish(self, item: Item) -> None:
        for listener in self.listeners:
            listener(item)

    def failure(self) -> ProbedeckError | None:
        return None

    def looks_for_owners(self) -> bool:
        return False

    def traced(self) -> tuple[Traced, ...]:
        return (Traced("192.0.2.2", (), 5, (), (), 20, self.sent, 5),)

    def close(self) -> None:
        self.closed = True
        self.publish(paths.probes(ProbeOutcome.IN_FLIGHT))


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeController]:
    fake = FakeController()

    def start(controller: FakeController, spec: RunSpec, stack: object, **_: object) -> None:
        controller.publish(paths.probes(*[ProbeOutcome.ANSWERED] * 5))

    monkeypatch.setattr(headless, "new_controller", lambda: (fake, ItemStream(fake)))
    monkeypatch.setattr(item_loop, "start", start)
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield fake
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


TRACE = ("-i", "lo", "192.0.2.2", "--timeout", "1")
NOTHING = ("--", sys.executable, "-I", "-c", "exit(6)")


@pytest.mark.timing
def test_it_ends_when_the_last_answers_have_come(
    controller: FakeController, capfd: pytest.CaptureFixture[str]
) -> None:
    """S3.1: with the program, and its code."""
    late = paths.probes(*[ProbeOutcome.UNANSWERED] * 5)
    started = time.monotonic()
    Timer(0.4, controller.publish, [late]).start()
    assert trace(*TRACE, *NOTHING) == 6
    assert 0.4 < time.monotonic() - started < 1.2
    out, err = capfd.readouterr()
    assert [line.partition(",")[0] for line in out.splitlines()] == ["schema"] + ["hops/2"] * 11
    words = "11 probes, 5 answered, 5 lost, 0 overrun, 1 in flight, 5 altered on the way"
    assert err == f"probedeck: {words}\n"
    assert controller.closed


@pytest.mark.timing
def test_it_waits_no_longer_than_an_answer_may_take(
    controller: FakeController, capfd: pytest.CaptureFixture[str]
) -> None:
    started = time.monotonic()
    assert trace(*TRACE, *NOTHING) == 6
    assert 1 < time.monotonic() - started < 2.2
    assert capfd.readouterr().out.count("hops/2") == 6


def test_a_program_writes_beside_the_tables_not_into_them(
    controller: FakeController, tmp_path: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    controller.sent = 0
    talk = ("--", sys.executable, "-I", "-c", "import sys; print('mine'); print(input())")
    reading, writing = os.pipe()
    os.write(writing, b"given\n")
    before = os.dup(0)
    os.dup2(reading, 0)
    try:
        assert trace(*TRACE, *talk) == 0
        out, err = capfd.readouterr()
        assert "mine" not in out
        assert "mine\ngiven\n" in err
        os.write(writing, b"given\n")
        assert trace(*TRACE, "-o", str(tmp_path), *talk) == 0
        out, err = capfd.readouterr()
        assert out == "mine\ngiven\n"
    finally:
        os.dup2(before, 0)
        for fd in (before, reading, writing):
            os.close(fd)


@pytest.mark.timing
def test_a_signal_ends_the_program_too_and_nothing_is_lost(
    controller: FakeController, capfd: pytest.CaptureFixture[str]
) -> None:
    sleep = ("--", sys.executable, "-I", "-c", "import time; time.sleep(60)")
    started = time.monotonic()
    Timer(0.3, os.kill, [os.getpid(), signal.SIGTERM]).start()
    assert trace(*TRACE, *sleep) == 128 + signal.SIGTERM
    assert time.monotonic() - started < 2
    assert capfd.readouterr().out.count("hops/2") == 6
    assert controller.closed


def test_a_program_that_is_not_there_is_told_before_the_start(asked: list[Asked]) -> None:
    with pytest.raises(ProgramError, match="cannot run no-such-program: No such file"):
        trace(*TRACE, "--", "no-such-program")
    assert asked == []


@pytest.mark.timing
def test_a_disk_that_is_full_ends_the_program(
    controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(self: object, item: Item) -> None:
        raise ProbedeckError("no space")

    monkeypatch.setattr("app.outputs.sink.Sink.write", write)
    started = time.monotonic()
    with pytest.raises(ProbedeckError, match="no space"):
        trace(*TRACE, "--", sys.executable, "-I", "-c", "import time; time.sleep(60)")
    assert time.monotonic() - started < 2
    assert controller.closed


def test_what_is_found_out_is_said(
    controller: FakeController, capfd: pytest.CaptureFixture[str]
) -> None:
    controller.sent = 0
    event = Event.now("info", "path", "192.0.2.2 hop 3: answered by 198.51.100.7")
    Timer(0.2, controller.publish, [event]).start()
    trace(*TRACE, "--views", "paths", "--duration", "0.4")
    out, err = capfd.readouterr()
    assert out.startswith("schema,")
    assert "probedeck: path: 192.0.2.2 hop 3: answered by 198.51.100.7\n" in err
