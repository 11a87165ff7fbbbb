"""The DNS flow analyser (S2.19): exact by client and server, and floods."""

from __future__ import annotations

import numpy as np
import pytest

from app.outputs.view import iso
from bpf.compiler import Compiler
from probes.snapshot import Loss, LossReason
from tests.probes.monitor.given import NOW_NS, Flow, Given, rows_of

CLIENT, SERVER = "192.0.2.10", "198.51.100.53"
QUERY = Flow(CLIENT, SERVER, 40000, 53)
RESPONSE = Flow(SERVER, CLIENT, 53, 40000)
MS = 1_000_000
# The header's bits in the packet's order: more fragments, and an offset.
FIRST, LATER = 0x0020, 0xB920
FIRST_OF_6, LATER_OF_6 = 0x0100, 0xC805


def query6(port: int = 53, protocol: str = "udp") -> Flow:
    return Flow("2001:db8::10", "2001:db8::53", 40000, port, protocol)


def test_what_is_asked_and_answered(compiler: Compiler) -> None:
    """S2.19: packets, bytes, first and last time, largest response; IPv4 and IPv6, UDP and TCP."""
    with Given(compiler, "dns") as app:
        app.give(QUERY, bytes=70)
        app.give(Flow(CLIENT, SERVER, 41000, 53), bytes=80, now_ns=NOW_NS + 8 * MS, cpu=1)
        for number, size in enumerate((300, 1400, 900)):
            app.give(RESPONSE, bytes=size, now_ns=NOW_NS + number * MS, cpu=number & 1)
        app.give(query6(), bytes=90, repeat=4)
        app.give(query6(protocol="tcp"), bytes=60, packets=2)
        (window,) = app.window()
        flows = {(row["key.client"], row["key.protocol"]): row for row in rows_of(window)}
        assert len(flows) == 3
        first = flows[CLIENT, 17]
        assert first == {
            "key.client": CLIENT,
            "key.server": SERVER,
            "key.protocol": 17,
            "value.queries.packets": 2,
            "value.queries.bytes": 150,
            "value.queries.first": iso(NOW_NS),
            "value.queries.last": iso(NOW_NS + 8 * MS),
            "value.responses.packets": 3,
            "value.responses.bytes": 2600,
            "value.responses.first": iso(NOW_NS),
            "value.responses.last": iso(NOW_NS + 2 * MS),
            "value.largest": 1400,
        }
        assert flows["2001:db8::10", 17]["value.queries.packets"] == 4
        assert flows["2001:db8::10", 6]["value.queries.packets"] == 2
        clients, servers, each = app.view([window])
        assert clients.columns[:2] == ("client", "servers")
        assert servers.columns[:2] == ("server", "clients")
        measured: tuple[object, ...] = (
            2.0,
            3.0,
            pytest.approx(2600 / 3),
            1400,
            pytest.approx(2600 / 150),
        )
        assert clients.rows[0] == ("2001:db8::10", 1, 6.0, 0.0, 0.0, 0, 0.0)
        assert clients.rows[1] == (CLIENT, 1, *measured)
        assert len(clients.rows) == 2
        assert servers.rows[1] == (SERVER, 1, *measured)
        assert {row[2] for row in each.rows} == {"udp", "tcp"}
        row: object = next(row for row in each.rows if row[0] == CLIENT)
        assert row == (CLIENT, SERVER, "udp", *measured, "00:16:40.000", "00:16:40.008")


def test_other_ports_are_not_dns(compiler: Compiler) -> None:
    """S2.19: the port is configurable; what comes from it is a response, wherever it goes to."""
    others = [QUERY, RESPONSE, query6(), Flow(CLIENT, SERVER, 0, 0, "icmp")]
    with Given(compiler, "dns", PORT=5353) as app:
        app.run(app.packets(others))
        assert app.tables()["flows"] == []
        app.give(query6(5353))
        app.give(Flow(SERVER, CLIENT, 5353, 5353), bytes=500)
        rows = app.tables()["flows"]
    assert {row["key.server"]: row["value.largest"] for row in rows} == {
        "2001:db8::53": 0,
        SERVER: 500,
    }


@pytest.mark.parametrize("records", [1, 45])
def test_an_answer_in_fragments_is_one_response(compiler: Compiler, records: int) -> None:
    """Later fragments have their datagram's ports; without ports they are none of DNS."""
    fragments = [FIRST, LATER, LATER]
    with Given(compiler, "dns", records=records) as app:
        app.give(QUERY)
        app.run(app.packets([RESPONSE] * 3, bytes=[1500, 1500, 900], fragment=fragments))
        app.run(app.packets([Flow(SERVER, CLIENT)] * 2, fragment=LATER))
        (row,) = app.tables()["flows"]
        assert (row["value.queries.packets"], row["value.responses.packets"]) == (1, 1)
        assert (row["value.responses.bytes"], row["value.largest"]) == (3900, 1500)
        app.run(app.packets([query6()] * 3, fragment=[FIRST_OF_6, LATER_OF_6, LATER_OF_6]))
        (row,) = app.tables()["flows"]
        assert (row["value.queries.packets"], row["value.queries.bytes"]) == (1, 300)
        app.give(Flow(SERVER, CLIENT), fragment=LATER)
        assert app.tables()["flows"] == []


def test_an_amplified_flood_is_told_of(compiler: Compiler) -> None:
    """S2.19: above the threshold, with how many times what was asked came back, or that nobody
    was seen asking."""
    servers = [f"198.51.100.{n}" for n in range(1, 38)]
    answers = [Flow(server, CLIENT, 53, 40000) for server in servers]
    with Given(compiler, "dns", records=8) as app:
        app.run(app.packets(answers, bytes=3000), repeat=100)
        flood = app.window(seconds=0.5)
        assert app.findings(flood) == (
            f"{CLIENT} gets 7400 DNS responses/s from 37 servers, and no query was seen",
        )
        app.run(app.packets([Flow(CLIENT, s, 40000, 53) for s in servers], bytes=60), repeat=10)
        app.run(app.packets(answers, bytes=600), repeat=90)
        app.give(Flow("203.0.113.1", servers[0], 40000, 53), repeat=50)
        assert app.findings(app.window()) == (
            f"{CLIENT} gets 3330 DNS responses/s from 37 servers, "
            "90 times the bytes of its queries",
        )


def test_a_flood_of_queries_is_told_of(compiler: Compiler) -> None:
    """S2.19: target and clients of the flood; and the error bound if the table was full."""
    clients = [f"203.0.113.{n}" for n in range(200)]
    with Given(compiler, "dns", ENTRIES=128, records=8) as app:
        app.run(app.packets([Flow(c, SERVER, 40000, 53) for c in clients[:100]]), repeat=20)
        assert app.findings(app.window()) == (f"{SERVER} gets 2000 DNS queries/s from 100 clients",)
        app.give(Flow(CLIENT, SERVER, 40000, 53), repeat=1500)
        app.give(Flow(CLIENT, "198.51.100.54", 40000, 53), repeat=500)
        assert app.findings(app.window()) == (
            f"{CLIENT} sends 2000 DNS queries/s to 2 servers",
            f"{SERVER} gets 1500 DNS queries/s from 1 client",
        )
        for _ in range(2):
            packets = app.packets([Flow(c, SERVER, 40000, 53) for c in clients], bytes=70)
            app.run(packets, repeat=10)
            (window,) = app.window()
            lost = window.losses[LossReason.TABLE_FULL]
            assert len(window.rows) == 128
            assert lost == Loss(720, 720 * 70)
            assert window.rows["value"]["queries"]["packets"].sum() + lost.packets == 2000
            assert app.findings([window]) == (
                f"{SERVER} gets at least 1280 DNS queries/s from 128 clients",
            )


def test_ordinary_dns_is_no_finding(compiler: Compiler) -> None:
    """No false finding: many clients, many servers, 900 queries/s in all and as many answers."""
    pairs = [(f"192.0.2.{n % 250}", f"198.51.100.{n % 9}") for n in range(900)]
    with Given(compiler, "dns", records=8) as app:
        app.run(app.packets([Flow(c, s, 40000, 53) for c, s in pairs], bytes=80))
        app.run(app.packets([Flow(s, c, 53, 40000) for c, s in pairs], bytes=np.arange(900) + 100))
        windows = app.window()
        assert app.findings(windows) == ()
        _, servers, _ = app.view(windows)
    assert sum(row[2] for row in servers.rows if isinstance(row[2], float)) == 900
    assert max(row[5] for row in servers.rows if isinstance(row[5], int)) == 999
