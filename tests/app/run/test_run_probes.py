"""Probes from files: beside the flow probe and instead of it, into a file for each metric."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from app.api.address import Remote
from app.api.client import Client
from app.lab.netns import inside
from app.run.spec import probes_of
from bpf.errors import UsageError
from probes.config.model import load
from tests.support.kernel import TC_MODE
from tests.support.runs import deck, deck_ends, rows, stop
from tests.support.sight import becomes
from tests.support.tables import records_in
from tests.support.veth import End, veth_pair

PORTS = """\
#include "packet.h"
BPF_PERCPU_HASH(ports, u16, u64, 1024);
int count(CONTEXT *ctx) {
    struct packet packet = {};
    if (parse_packet(ctx, &packet) == PARSED && PROTOCOL(&packet.key) == IPPROTO_UDP) {
        u16 port = bpf_ntohs(DESTINATION_PORT(&packet.key));
        u64 none = 0, *packets = ports.lookup_or_try_init(&port, &none);
        if (packets)
            (*packets)++;
    }
    return VERDICT_PASS;
}
"""
CONFIGURATION = """\
name = "ports"
format = "FORMAT"
interval = 0.1
[SIDE]
source = "ports.c"
[[SIDE.metrics]]
name = "packets"
map = "ports"
snapshot = true
agg = "sum"
"""


@pytest.fixture
def pair() -> Iterator[tuple[End, End]]:
    with veth_pair() as ends:
        yield ends


def probe(directory: Path, *, format_name: str = "jsonl", side: str = "ingress") -> str:
    """A configuration and its source; the configuration's path."""
    (directory / "ports.c").write_text(PORTS)
    path = directory / "ports.toml"
    path.write_text(CONFIGURATION.replace("FORMAT", format_name).replace("SIDE", side))
    return str(path)


def send(source: End, target: End, port: int, packets: int) -> None:
    with inside(source.ns), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _ in range(packets):
            sock.sendto(b"x", (target.ipv4, port))


def counted(path: Path, port: int) -> int:
    if not path.exists() or not path.stat().st_size:
        return 0
    return sum(int(row["value"]) for row in records_in(path) if int(row["key"]) == port)


@pytest.mark.parametrize("side", ["ingress", "egress"])
@pytest.mark.parametrize("format_name", ["jsonl", "json", "xml", "csv"])
def test_a_probe_instead_of_the_flow_probe_fills_its_file_alone(
    pair: tuple[End, End], tmp_path: Path, format_name: str, side: str
) -> None:
    """S1.2, S1.4: every datagram in one window, in the format that the configuration asks for."""
    left, right = pair
    out = tmp_path / "out"
    path = probe(tmp_path, format_name=format_name, side=side)
    arguments = ("run", "-i", "left", "--only", "--probe", path, "--headless", "-o", str(out))
    table = out / f"ports.{side}.packets.{format_name}"
    with deck(*arguments, "--ingress", "xdp", ns=left.ns) as run:
        assert becomes(lambda: len(rows(out / "windows.csv")) > 0, 10)
        ends = (left, right) if side == "egress" else (right, left)
        send(*ends, 7001, 30)
        send(*ends, 7002, 7)
        assert becomes(lambda: counted(table, 7002) == 7)
        code, _, err = stop(run)
    assert code == 0
    assert "tables of metrics, 0 lost" in err
    assert (counted(table, 7001), counted(table, 7002)) == (30, 7)
    windows = [int(row["window"]) for row in rows(out / "windows.csv")]
    assert windows == list(range(1, len(windows) + 1))
    hooks = {row["hooks"] for row in rows(out / "windows.csv")}
    assert hooks == {"xdp native" if side == "ingress" else f"tc egress {TC_MODE}"}
    assert sorted(p.name for p in out.iterdir()) == sorted(
        ["events.csv", table.name, "windows.csv"]
    )


def test_a_probe_that_cuts_off_its_interface_is_not_started(
    pair: tuple[End, End], tmp_path: Path
) -> None:
    left, _ = pair
    path = probe(tmp_path)
    (tmp_path / "ports.c").write_text(PORTS.replace("VERDICT_PASS", "XDP_ABORTED"))
    arguments = ("run", "-i", "left", "--only", "--probe", path, "--headless", "-o", str(tmp_path))
    code, out, said = deck_ends(*arguments, ns=left.ns)
    assert (code, out) == (2, "")
    assert said.splitlines()[-1] == (
        "probedeck: ports: ingress lets none of the test frames pass (XDP_ABORTED): left receives "
        "nothing then; use --force to run it anyway"
    )
    with deck(*arguments, "--force", ns=left.ns) as run:
        assert becomes(lambda: len(rows(tmp_path / "windows.csv")) > 0, 10)
        assert stop(run)[0] == 0


def test_a_probe_without_an_interval_takes_that_of_the_run(tmp_path: Path) -> None:
    path = probe(tmp_path)
    (own,) = probes_of([path], "left", 0.5)
    assert own.interval == 0.1
    Path(path).write_text(Path(path).read_text().replace("interval = 0.1\n", ""))
    (without,) = probes_of([path], "left", 0.5)
    assert without.interval == 0.5


@pytest.mark.slow
def test_beside_the_flow_probe_both_see_every_packet(pair: tuple[End, End], tmp_path: Path) -> None:
    left, right = pair
    out = tmp_path / "out"
    arguments = ("run", "-i", "left", "--probe", probe(tmp_path), "--headless", "-o", str(out))
    flags = ("--format", "csv", "--interval", "0.1")
    table = out / "ports.ingress.packets.csv"
    with deck(*arguments, *flags, ns=left.ns) as run:
        assert becomes(lambda: table.exists(), 10)
        send(right, left, 7003, 25)
        assert becomes(lambda: counted(table, 7003) == 25)
        assert stop(run)[0] == 0
    flows = [row for row in rows(out / "flows.csv") if row["destination_port"] == "7003"]
    assert sum(int(row["packets"]) for row in flows) == 25
    assert counted(table, 7003) == 25


@pytest.mark.slow
def test_what_the_api_adds_is_written_in_its_own_format_unless_read_only(
    pair: tuple[End, End], tmp_path: Path
) -> None:
    left, right = pair
    out, door = tmp_path / "out", tmp_path / "api.sock"
    arguments = ("run", "--only", "--headless", "-o", str(out), "--api-socket", str(door))
    config = load(probe(tmp_path, format_name="xml")).on("left")
    with deck(*arguments, ns=left.ns) as run:
        assert becomes(door.exists, 10)
        with closing(Client(Remote(f"unix:{door}"))) as client:
            client.add(config)
            send(right, left, 7004, 12)
            table = out / "ports.ingress.packets.xml"
            assert becomes(lambda: counted(table, 7004) == 12)
        assert stop(run)[0] == 0
    with deck(*arguments, "--read-only", ns=left.ns) as run:
        assert becomes(door.exists, 10)
        with closing(Client(Remote(f"unix:{door}"))) as client:
            with pytest.raises(UsageError, match="--read-only"):
                client.add(config)
            assert client.probes() == ()
        assert stop(run)[0] == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            ("map =", "mapp ="),
            "ports.toml:8:1: ingress.metrics[0].mapp: no such key; did you mean map?",
        ),
        (('"ports"\nsnap', '"prots"\nsnap'), "ports.toml: ingress.metrics[0].map: "),
        (("ports.c", "prots.c"), "ports.toml: ingress.source: "),
    ],
)
def test_a_wrong_configuration_begins_nothing(
    pair: tuple[End, End], tmp_path: Path, change: tuple[str, str], words: str
) -> None:
    """S1.6: a line with file, position, key and the nearest match; exit 2."""
    path = Path(probe(tmp_path))
    path.write_text(path.read_text().replace(*change))
    arguments = ("run", "-i", "left", "--only", "--probe", str(path), "--headless")
    code, out, err = deck_ends(*arguments, ns=pair[0].ns)
    assert (code, out) == (2, "")
    assert words in err
    assert "Traceback" not in err


def test_a_source_that_does_not_compile_is_told_by_its_line(
    pair: tuple[End, End], tmp_path: Path
) -> None:
    path = probe(tmp_path)
    (tmp_path / "ports.c").write_text(PORTS.replace("u16 port", "u61 port"))
    code, out, err = deck_ends(
        "run", "-i", "left", "--only", "--probe", path, "--headless", ns=pair[0].ns
    )
    assert (code, out) == (2, "")
    assert ":6:" in err
    assert "u61" in err


def test_two_probes_of_one_name_are_refused(pair: tuple[End, End], tmp_path: Path) -> None:
    path = probe(tmp_path)
    arguments = ("run", "-i", "left", "--probe", path, "--probe", path, "--headless")
    code, _, err = deck_ends(*arguments, ns=pair[0].ns)
    assert code == 2
    assert "another file has a probe 'ports' too" in err
