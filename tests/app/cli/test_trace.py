"""Tracing in the lab: a program's own packets become rows of every hop on its way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

import pytest

from app.api.address import Remote
from app.api.client import Client
from app.lab.netns import inside
from app.lab.network import Lab
from probes.path.records import HOP
from tests.support.paths import probe_numbers
from tests.support.runs import Remains, Row, deck, deck_ends, rows, stop
from tests.support.sight import becomes

HOPS = ["1", "2", "3", "4", "5", "6"]
TALK = """\
import socket, sys, time
to, number = sys.argv[1], int(sys.argv[2])
family = socket.AF_INET6 if ":" in to else socket.AF_INET
with socket.socket(family, socket.SOCK_DGRAM) as sock:
    sock.bind(("", 40000))
    for _ in range(number):
        sock.sendto(b"x" * 200, (to, 5001))
        time.sleep(0.002)
print("it is said")
exit(7)
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(traffic=False) as network:
        yield network


@pytest.fixture(scope="module")
def client(lab: Lab) -> Iterator[int]:
    """The client's namespace."""
    fd = lab.open_namespace()
    yield fd
    os.close(fd)


def talk(to: str, packets: int) -> tuple[str, ...]:
    """A program that sends datagrams, 500 a second, and ends with 7."""
    return (sys.executable, "-I", "-c", TALK, to, str(packets))


def router(version: int, hop: int) -> str:
    """Its address on the side from which packets come."""
    text = f"10.94.{hop - 1}.2" if version == 4 else f"fd94:0:0:{hop - 1}::2"
    return str(ip_address(text))


def assert_without_gaps(table: list[Row]) -> None:
    """Every probe has its row."""
    numbers = sorted(int(row["sequence"]) for row in table)
    assert numbers == probe_numbers(numbers[0], len(numbers))


@pytest.mark.slow
@pytest.mark.parametrize("version", [4, 6])
def test_a_programs_packets_become_rows_of_every_hop(
    lab: Lab, client: int, tmp_path: Path, version: int
) -> None:
    """S3.1, S3.4, S3.11, S3.17: with its code, and every probe accounted for."""
    to = lab.server_ipv4 if version == 4 else lab.server_ipv6
    began = datetime.now(UTC)
    code, out, err = deck_ends(
        "trace", "-i", lab.interface, to, "--per", "global", "--timeout", "0.5", "-o",
        str(tmp_path), "--", *talk(to, 600), ns=client,
    )  # fmt: skip
    ended = datetime.now(UTC)
    assert (code, out) == (7, "it is said\n")
    table = rows(tmp_path / "hops.csv")
    found = Counter(row["outcome"] for row in table)
    answered = found["answered"] + found["unreachable"]
    lost = f"{len(table)} probes, {answered} answered, {found['unanswered']} lost, 0 overrun"
    assert err.splitlines()[-1].startswith(f"probedeck: {lost}")
    assert found["unanswered"] == 0
    # 100 a second, for 1.4 s and more.
    assert 100 <= len(table) <= 400
    assert_without_gaps(table)
    assert {row["hop"]: row["responder"] for row in table if row["outcome"] == "answered"} == {
        hop: router(version, int(hop)) for hop in HOPS
    }
    for row in table:
        assert (row["destination"], row["ip_version"], row["protocol"]) == (to, str(version), "17")
        assert (row["source_port"], row["destination_port"]) == ("40000", "5001")
        sent = datetime.fromisoformat(row["sent"])
        assert began < sent < ended
        assert abs(sent.timestamp() - int(row["sent_ns"]) / 1e9) < 1e-3
        if row["rtt_ns"]:
            assert int(row["received_ns"]) - int(row["sent_ns"]) == int(row["rtt_ns"]) > 0
            assert int(row["rtt_ns"]) < 100_000_000
    assert {row["kind"] for row in rows(tmp_path / "paths.csv")} >= {"summary"}
    windows = rows(tmp_path / "windows.csv")
    assert sum(int(r["rows"]) for r in windows if r["metric"] == "hops") == len(table)


@pytest.mark.slow
def test_tables_on_standard_output_are_nothing_else(lab: Lab, client: int) -> None:
    """S3.1: a program's one packet, its first, is traced; the program's words go elsewhere."""
    to = lab.server_ipv4
    code, out, err = deck_ends(
        "trace", "-i", lab.interface, to, lab.server_ipv6, "--timeout", "0.3", "--",
        *talk(to, 1), ns=client,
    )  # fmt: skip
    assert code == 7
    header, line = out.splitlines()
    assert header.startswith("schema,window,interface,sent,")
    assert line.startswith("hops/2,")
    assert "it is said\n" in err
    assert "probedeck: 1 probes, " in err


@pytest.mark.slow
def test_a_signal_ends_it_and_all_is_written(lab: Lab, client: int, tmp_path: Path) -> None:
    """S3.1: an interrupt ends the program, too, and the kernel keeps no object."""
    to = lab.server_ipv4
    arguments = ("trace", "-i", lab.interface, to, "-o", str(tmp_path), "--", *talk(to, 100_000))
    with deck(*arguments, ns=client) as run:
        assert becomes(lambda: len(rows(tmp_path / "hops.csv")) > 20, 30)
        remains = Remains(run)
        code, _, err = stop(run, signal.SIGTERM)
    assert code == 128 + signal.SIGTERM
    remains.assert_gone()
    table = rows(tmp_path / "hops.csv")
    assert f"probedeck: {len(table)} probes" in err.splitlines()[-1]
    assert_without_gaps(table)


@pytest.mark.slow
def test_the_api_starts_and_ends_tracing(lab: Lab, client: int, tmp_path: Path) -> None:
    """S3.1: in a controller that runs, while it counts flows."""
    socket = str(tmp_path / "api.sock")
    out = tmp_path / "out"
    arguments = ("run", "-i", lab.interface, "--headless", "--api-socket", socket)
    tables = ("-o", str(out), "--views", "hops,paths,flows")
    with deck(*arguments, *tables, ns=client) as run:
        assert becomes(lambda: Path(socket).exists(), 10)
        with closing(Client(Remote(f"unix:{socket}"))) as api:
            api.trace(lab.server_ipv4)
            assert [info.name for info in api.probes()] == ["flow", "path"]
            with inside(client):
                subprocess.run(talk(lab.server_ipv4, 200), check=False, capture_output=True)
            (traced,) = api.traced()
            assert traced.packets >= 200
            assert traced.sent >= traced.matched > 0
            assert becomes(lambda: len(rows(out / "hops.csv")) >= traced.matched)
            tables_now = api.export("path")
            assert tables_now[0].rows.dtype == HOP
            api.untrace(lab.server_ipv4)
            assert api.traced() == ()
            assert [info.name for info in api.probes()] == ["flow"]
        code, _, err = stop(run)
    assert code == 0
    assert "packets in flows, 0 lost" in err
    assert f"{len(rows(out / 'hops.csv'))} probes, " in err
