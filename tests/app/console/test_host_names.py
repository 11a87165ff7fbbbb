"""Names of addresses, looked up by threads."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest

from app.cli.subcommands.trace import described_by
from app.console import host_names
from app.console.host_names import Name, Names, NameSource
from app.outputs.networks import RouterFacts
from app.run.options import Options

DNS, TLS = NameSource.DNS, NameSource.TLS


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


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Names:
    """Names with a file of hosts and a resolver that knows every address."""
    hosts = tmp_path / "hosts"
    lines = "# ours", "192.0.2.1 router router.example # alias", "broken", "2001:db8::1\trouter6"
    hosts.write_text("\n".join(lines))
    monkeypatch.setattr(host_names, "_HOSTS", hosts)
    return Names(lambda: None, lambda address: f"reverse-{address}")


def test_a_name_has_its_source(names: Names) -> None:
    addresses = ["192.0.2.1", "2001:db8::1", "192.0.2.2", "192.0.2.3", "192.0.2.4"]
    assert names.of(addresses[0]) is None
    for address, source in zip(addresses[:3], (DNS, DNS, TLS), strict=False):
        names.learn(address, "www.example", source, 60)
    names.look_up(addresses, 10)
    assert [names.of(each) for each in addresses] == [
        Name("router", NameSource.HOSTS), Name("router6", NameSource.HOSTS),
        Name("www.example", TLS), Name("reverse-192.0.2.3", NameSource.REVERSE),
        Name("reverse-192.0.2.4", NameSource.REVERSE),
    ]  # fmt: skip
    names.enabled = False
    assert names.of("192.0.2.1") is None
    assert all(source.about for source in NameSource)


def test_an_address_keeps_the_name_of_its_packets_while_it_is_valid(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    names.learn("192.0.2.9", "first\x1b.example", DNS, 5)  # at least a minute
    version = names.version
    names.learn("192.0.2.9", "second.example", DNS, 60)
    names.learn("192.0.2.9", "first\x1b.example", DNS, 60)
    assert names.version == version
    assert names.name("192.0.2.9") == "first·.example"
    names.learn("192.0.2.9", "sni.example", TLS, 1e9)  # at most a day
    names.learn("192.0.2.9", "second.example", DNS, 60)
    assert names.name("192.0.2.9") == "sni.example"
    assert names.version > version
    now += 86401
    assert names.of("192.0.2.9") in (None, Name("reverse-192.0.2.9", NameSource.REVERSE))
    names.learn("192.0.2.9", "second.example", DNS, 60)
    assert names.name("192.0.2.9") == "second.example"


def test_names_of_packets_are_bounded(names: Names) -> None:
    for number in range(host_names._LEARNED + 5):
        names.learn(str(number), "x.example", DNS, 60)
    assert len(names._learned) == host_names._LEARNED
    assert "0" not in names._learned
