"""Real collectors store what is sent: to the packet."""

from __future__ import annotations

import signal
import socket
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from app.api.address import Remote
from app.api.client import RemotePlane
from app.lab import netns
from tests.app.exporters.ipfix.collectors import deliver
from tests.app.exporters.ipfix.made import (
    Output,
    every_kind,
    flow,
    many,
    owned_window,
    totals,
    window,
)
from tests.app.exporters.ipfix.programs import COLLECTORS, collector, sums
from tests.support.runs import Row, deck, measures, rows, stop
from tests.support.sight import becomes
from tests.support.veth import End, veth_pair


def added(*counts: tuple[int, int, int]) -> tuple[int, int, int]:
    each = [sum(column) for column in zip(*counts, strict=True)]
    return each[0], each[1], each[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "url"),
    [
        *((name, "ipfix://{}?owners=on") for name in COLLECTORS),
        # nfacctd takes three seconds.
        *((name, "netflow9://{}") for name in COLLECTORS if name != "nfacctd"),
    ],
)
def test_totals_are_equal_to_the_packet(name: str, url: str, tmp_path: Path) -> None:
    with collector(name, tmp_path) as running:
        exporter = Output(url.format(f"127.0.0.1:{running.port}")).exporter()
        windows = window(every_kind()), owned_window(), window(many(2000), 3)
        for flows in windows:
            assert deliver(exporter, flows) == len(flows.rows)
        exporter.close()
        expected = added(*(totals(flows.rows) for flows in windows))
        found = running.flows(0 if name == "nfcapd" else expected[1])
    # pmacct adds up flows that differ by their tunnel only.
    assert sums(found)[name == "nfacctd" :] == expected[name == "nfacctd" :]


def test_nfdump_reads_every_field(tmp_path: Path) -> None:
    rows = np.concatenate((
        flow("10.0.0.5", "192.0.2.9", packets=2**40, bytes=2**50, tcp_flags=0x1B, tos=0x2E,
             vlan=4094, direction=1),
        flow("2001:db8::5", "2001:db8::9", protocol=58, destination_port=1 * 256 + 4),
    ))  # fmt: skip
    flows = window(rows)
    with collector("nfcapd", tmp_path) as running:
        exporter = Output(f"ipfix://127.0.0.1:{running.port}").exporter()
        deliver(exporter, flows)
        exporter.close()
        four, six = sorted(running.flows(), key=lambda row: row["proto"])
    index = socket.if_nametoindex("lo")
    ports = {"src_port": 40000, "dst_port": 443, "proto": 6, "tcp_flags": "...AP.SF"}
    counts = {"in_packets": 2**40, "in_bytes": 2**50, "src_tos": 0x2E, "src_vlan": 4094}
    places = {"direction": 1, "input_snmp": 0, "output_snmp": index, "sampled": 0}
    expected = {**ports, **counts, **places, "src4_addr": "10.0.0.5", "dst4_addr": "192.0.2.9"}
    assert {name: four[name] for name in expected} == expected
    assert (six["src6_addr"], six["dst6_addr"]) == ("2001:db8::5", "2001:db8::9")
    assert (six["icmp_type"], six["icmp_code"]) == (1, 4)
    assert (six["input_snmp"], six["output_snmp"]) == (index, 0)


def send(left: End, right: End, packets: int) -> None:
    """Send datagrams of both versions of IP, in a hundred flows."""
    for family, address in ((socket.AF_INET, right.ipv4), (socket.AF_INET6, right.ipv6)):
        with netns.inside(left.ns), socket.socket(family, socket.SOCK_DGRAM) as sender:
            for number in range(packets):
                sender.sendto(bytes(number % 900), (address, 1000 + number % 50))


@pytest.mark.slow
def test_a_run_and_nfdump_count_the_same_though_the_collector_was_away(tmp_path: Path) -> None:
    tables, stored, again, api = (tmp_path / each for each in ("tables", "stored", "again", "api"))
    stored.mkdir()
    again.mkdir()

    def written() -> list[Row]:
        return rows(tables / "flows.csv")

    with veth_pair() as (left, right), ExitStack() as stack:
        with netns.inside(right.ns):
            running = stack.enter_context(collector("nfcapd", stored))
        run = stack.enter_context(deck(
            "run", "-i", "right", "--headless", "--interval", "0.1", "-o", str(tables),
            "--views", "flows,windows,events", "--output", f"ipfix://127.0.0.1:{running.port}",
            "--api-socket", str(api), ns=right.ns,
        ))  # fmt: skip
        assert measures(tables)
        send(left, right, 500)
        assert becomes(lambda: sum(int(row["packets"]) for row in written()) >= 1000, 10)
        plane = RemotePlane(Remote(f"unix:{api}"))
        stack.callback(plane.close)
        assert becomes(lambda: plane.outputs.status()[0].delivered == len(written()), 10)
        found = running.flows()
        send(left, right, 500)
        assert becomes(lambda: "does not take records" in (tables / "events.csv").read_text(), 10)
        with netns.inside(right.ns):
            running = stack.enter_context(collector("nfcapd", again, running.port))
        assert becomes(lambda: "takes records again" in (tables / "events.csv").read_text(), 10)
        send(left, right, 200)
        code, _, told = stop(run, signal.SIGTERM)
        assert code == 0, told
        found += running.flows()
    ours = [sum(int(row[name]) for row in written()) for name in ("packets", "bytes")]
    assert sums(found) == (len(written()), *ours)
    assert ours[0] >= 2400
