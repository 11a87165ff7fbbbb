"""Names of addresses, looked up by threads."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from app.cli.options import Options
from app.cli.trace import described_by
from app.console.host_names import Names
from app.outputs.routers import RouterFacts


def test_all_names_can_be_waited_for() -> None:
    """Also more than the queue holds, and addresses without a name."""

    def resolve(address: str) -> str:
        if address == "no":
            raise OSError("no name")
        return f"host-{address}"

    names = Names(lambda: None, resolve)
    addresses = [*map(str, range(600)), "no"]
    names.look_up(addresses, 10)
    assert [names.name(each) for each in addresses] == [
        *(f"host-{n}" for n in range(600)), "",
    ]  # fmt: skip


def test_a_name_server_that_does_not_answer_is_not_waited_for() -> None:
    answers = threading.Event()
    names = Names(lambda: None, lambda address: str(answers.wait(30)))
    started = time.monotonic()
    names.look_up(map(str, range(600)), 0.3)
    assert 0.3 <= time.monotonic() - started < 5
    answers.set()


def test_a_trace_knows_names_only_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(address: str) -> tuple[str, list[str], list[str]]:
        return f"r.{address}\x1b[31m", [], []

    monkeypatch.setattr(socket, "gethostbyaddr", ask)
    describe, look_up = described_by(Options(), names=True)
    assert describe("192.0.2.1") == RouterFacts()  # in the background
    look_up(["192.0.2.1"])
    assert describe("192.0.2.1") == RouterFacts("r.192.0.2.1·[31m")
    monkeypatch.delattr(socket, "gethostbyaddr")
    describe, look_up = described_by(Options(), names=False)
    look_up(["192.0.2.1"])
    assert describe("192.0.2.1") == RouterFacts()
