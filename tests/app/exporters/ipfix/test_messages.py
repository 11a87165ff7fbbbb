"""Messages of IPFIX and NetFlow v9, read by a reader that is written from the RFCs."""

from __future__ import annotations

import time

import numpy as np
import pytest

from app.exporters.ipfix.about import Encoder
from app.exporters.ipfix.message import ObservationDomain, template_messages
from app.exporters.ipfix.records import EndReason, exported
from app.exporters.ipfix.templates import IPFIX, NETFLOW9, NTOP, OWN, flow_template
from bpf.arrays import Array
from probes.snapshot import Snapshot
from probes.sockets.records import OWNERS_TABLE
from tests.app.exporters.ipfix.made import (
    every_kind,
    flow,
    many,
    owned_window,
    totals,
    window,
)  # fmt: skip
from tests.app.exporters.ipfix.reader import Reader, addresses, number, text

MTU = 1420


def read(flows: Snapshot, version: int, *, owners: bool = False, skip: int = 0) -> Reader:
    """Send a window through the encoder to the reader."""
    encoder, domain, reader = Encoder(version, MTU), ObservationDomain("lo"), Reader()
    if owners:
        encoder.texts.learn(flows.tables[OWNERS_TABLE].rows)  # type: ignore[attr-defined]
    rows = exported(flows, owners=owners)
    messages = list(encoder.messages(domain, np.full(len(rows), 3), rows, skip))
    numbers = dict.fromkeys(message.sets[0][0] for message in messages)
    templates = [flow_template(each - 256, version) for each in numbers]
    for message in (*template_messages(domain, templates, version, MTU), *messages):
        reader.read(message.frame(version))
        domain.sequence += message.step(version)
    return reader


def by_protocol(reader: Reader, rows: Array) -> list[tuple[dict[tuple[int, int], bytes], Array]]:
    """Pair records with rows by their bytes, which are unlike."""
    of = {int(row["bytes"]): row for row in rows}
    return [(record, of[number(record, 1)]) for record in reader.flows]


@pytest.mark.parametrize("version", [IPFIX, NETFLOW9])
def test_every_field_of_every_kind_of_flow_arrives(version: int) -> None:
    rows = every_kind()
    rows["bytes"] += np.arange(len(rows), dtype="u8") * 1000
    flows = window(rows)
    reader = read(flows, version)
    assert reader.sums() == totals(rows)
    for record, row in by_protocol(reader, rows):
        six = row["version"] == 6
        ends = (row["source"], row["destination"])
        assert [record[0, each] for each in ((27, 28) if six else (8, 12))] == [
            bytes(end)[: 16 if six else 4] for end in ends
        ]
        is_icmp = row["protocol"] in (1, 58)
        if is_icmp:
            kind, code = divmod(int(row["destination_port"]), 256)
            assert (0, 7) not in record
            assert number(record, 139 if six else 32) == kind * 256 + code
            assert number(record, 178 if six else 176) == kind
            assert number(record, 179 if six else 177) == code
        else:
            assert number(record, 7) == row["source_port"]
            assert number(record, 11) == row["destination_port"]
        plain = {4: "protocol", 5: "tos", 6: "tcp_flags", 60: "version", 58: "vlan",
                 61: "direction", 2: "packets", 1: "bytes"}  # fmt: skip
        assert {each: number(record, each) for each in plain} == {
            each: int(row[name]) for each, name in plain.items()
        }
        leaves = row["direction"] == 1
        assert (number(record, 10), number(record, 14)) == ((0, 3) if leaves else (3, 0))
        assert number(record, 34) == 1
        assert number(record, 136) == (3 if row["tcp_flags"] & 1 and row["protocol"] == 6 else 2)
        tunnels = {each: number(record, each) for each in (351, 507) if (0, each) in record}
        assert tunnels == {3: {351: 1 << 56 | 0xABCDEF}, 5: {507: 0xFFFFFFFE}}.get(
            int(row["tunnel"]), {}
        )


def test_times_are_utc_milliseconds_and_of_netflow_9_ms_of_its_uptime() -> None:
    flows = window(many(1))
    first, last = (flows.utc_ns(int(flows.rows[name][0])) // 10**6
                   for name in ("first_ns", "last_ns"))  # fmt: skip
    record = read(flows, IPFIX).flows[0]
    assert (number(record, 152), number(record, 153)) == (first, last)
    encoder = Encoder(NETFLOW9, MTU)
    rows = exported(flows, owners=False)
    (message,) = encoder.messages(ObservationDomain("lo"), np.full(1, 3), rows)
    header = message.frame(NETFLOW9)
    uptime, seconds = (int.from_bytes(header[at : at + 4], "big") for at in (4, 8))
    reader = Reader()
    for made in template_messages(message.domain, [flow_template(0, 9)], 9, MTU):
        reader.read(made.frame(9))
        message.domain.sequence += 1
    reader.read(message.frame(NETFLOW9))
    assert seconds == pytest.approx(time.time(), abs=2)
    began = seconds * 1000 - uptime
    assert began + number(reader.flows[0], 22) == pytest.approx(first, abs=1500)
    assert number(reader.flows[0], 21) - number(reader.flows[0], 22) == last - first


@pytest.mark.parametrize("version", [IPFIX, NETFLOW9])
def test_datagrams_are_full_and_never_longer_than_the_limit(version: int) -> None:
    rows = many(20_000)
    reader = read(window(rows), version)
    assert reader.sums() == totals(rows)
    sizes = reader.sizes[1:]
    assert max(sizes) <= MTU
    # Only the last message of a block of rows may be short.
    assert sum(size < MTU - 70 for size in sizes) <= 3
    assert {addresses(record)[0] for record in reader.flows} >= {"10.0.0.0", "10.0.78.31"}


def test_a_delivery_that_goes_on_leaves_out_the_records_before() -> None:
    rows = np.concatenate((every_kind(), many(500)))
    flows = window(rows)
    whole = read(flows, IPFIX).flows
    assert read(flows, IPFIX, skip=123).flows == whole[123:]
    assert read(flows, IPFIX, skip=len(rows)).flows == []


def test_owners_are_texts_of_the_end_that_has_them() -> None:
    flows = owned_window()
    reader = read(flows, IPFIX, owners=True)
    assert reader.sums() == totals(flows.rows)
    seen = {}
    for record in reader.flows:
        port = max(number(record, 7), number(record, 11))
        seen[port, number(record, 61)] = record
    names = {40001: ("nginx", "www-data", "", "web.service", "", 812),
             443: ("postgres", "postgres", "db-1", "db.service", "shop", 901)}  # fmt: skip
    ends = {1: (169, 372, 558, 168, 109), 0: (376, 377, 559, 375, 110)}
    for port, expected in names.items():
        for direction, (name, user, container, process, again) in ends.items():
            record = seen[port, direction]
            assert (
                text(record, name, NTOP), text(record, user, NTOP), text(record, container, NTOP),
                text(record, 1, OWN), text(record, 2, OWN), number(record, process, NTOP),
            ) == expected  # fmt: skip
            assert number(record, again, NTOP) == 3
            assert [number(record, each, OWN) for each in (3, 4, 5, 6)] == [1500, 900, 6, 0]
    # A flow that nobody asked for has no such elements.
    assert all(enterprise == 0 for enterprise, _ in seen[40003, 1])


def test_records_with_texts_fill_datagrams_too() -> None:
    flows = owned_window()
    again = flows.rows.repeat(300)
    again["packets"] = np.arange(len(again)) + 1
    made = type(flows)(
        **{name: getattr(flows, name) for name in flows.__dataclass_fields__ if name != "rows"},
        rows=again,
    )
    reader = read(made, IPFIX, owners=True)
    assert reader.sums() == totals(again)
    assert max(reader.sizes) <= MTU
    # Each of the five kinds of records has a last message.
    assert sum(size < MTU - 150 for size in reader.sizes[1:]) <= 5


def test_end_reasons_follow_the_flags_of_tcp() -> None:
    ends = ("10.0.0.5", "192.0.2.9")
    rows = np.concatenate([
        flow(*ends, tcp_flags=0x11), flow(*ends, tcp_flags=0x04, source_port=2),
        flow(*ends, tcp_flags=0x12, source_port=3), flow(*ends, protocol=17, tcp_flags=1),
    ])  # fmt: skip
    found = exported(window(rows), owners=False)["end_reason"].tolist()
    closed, active = EndReason.CLOSED, EndReason.ACTIVE
    assert found == [closed, closed, active, active]


def test_an_interface_keeps_its_domain_and_another_has_another() -> None:
    assert (
        ObservationDomain("eth0").number
        == ObservationDomain("eth0").number
        != ObservationDomain("eth1").number
    )
