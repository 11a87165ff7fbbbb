"""Flows in groups: sums, joined directions, and ids that stay."""

from __future__ import annotations

import socket
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpf.arrays import Array
from probes.flow.grouping import GROUP, KINDS, Groups, group, regroup
from probes.flow.records import FLOW

IN, OUT = 0, 1
HERE, THERE = "192.0.2.1", "198.51.100.7"
HERE6, THERE6 = "2001:db8::1", "2001:db8:1:2::7"


def flow(
    direction: int, source: str, destination: str, source_port: int, destination_port: int,
    protocol: int = 6, **fields: Any,
) -> Array:  # fmt: skip
    row = np.zeros(1, FLOW)
    version = 6 if ":" in source else 4
    for end, text in (("source", source), ("destination", destination)):
        raw = socket.inet_pton(socket.AF_INET6 if version == 6 else socket.AF_INET, text)
        row[end] = list(raw.ljust(16, b"\0"))
    values = {"packets": 3, "bytes": 300, "first_ns": 50, "last_ns": 60} | fields
    values |= {"direction": direction, "version": version, "protocol": protocol}
    values |= {"source_port": source_port, "destination_port": destination_port}
    for name, value in values.items():
        row[name] = value
    return row


def both(here: str, there: str, near: int, far: int, protocol: int = 6, **fields: Any) -> Array:
    """A flow that leaves, and the one that answers with twice the bytes."""
    return np.concatenate(
        (
            flow(OUT, here, there, near, far, protocol, bytes=100, packets=1, **fields),
            flow(IN, there, here, far, near, protocol, bytes=200, packets=2, **fields),
        )
    )


def the_only(groups: Groups) -> Any:
    assert len(groups.rows) == 1
    return groups.rows[0]


@pytest.mark.parametrize(("here", "there"), [(HERE, THERE), (HERE6, THERE6)])
def test_both_directions_are_one_conversation(here: str, there: str) -> None:
    rows = both(here, there, 40001, 443)
    rows["first_ns"], rows["last_ns"], rows["tcp_flags"] = (20, 10), (30, 40), (0x02, 0x12)
    found = group(rows, "conversations")
    row = the_only(found)
    assert (row["near_port"], row["far_port"], row["service_port"]) == (40001, 443, 443)
    assert (row["near"] == rows["source"][0]).all()
    assert (row["far"] == rows["destination"][0]).all()
    assert (row["out_packets"], row["out_bytes"]) == (1, 100)
    assert (row["in_packets"], row["in_bytes"]) == (2, 200)
    assert (row["first_ns"], row["last_ns"], row["tcp_flags"]) == (10, 40, 0x12)
    assert (row["flows"], row["at_least"]) == (1, 0)
    assert found.of.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("protocol", "here", "there", "request_type", "answer_type"),
    [(1, HERE, THERE, 8, 0), (1, HERE, THERE, 13, 14), (58, HERE6, THERE6, 128, 129)],
)
def test_an_icmp_request_and_its_answer_are_one_conversation(
    protocol: int, here: str, there: str, request_type: int, answer_type: int
) -> None:
    for outward in (True, False):
        first = flow(OUT if outward else IN, *((here, there) if outward else (there, here)),
                     77, request_type << 8, protocol)  # fmt: skip
        answer = flow(IN if outward else OUT, *((there, here) if outward else (here, there)),
                      77, answer_type << 8, protocol)  # fmt: skip
        row = the_only(group(np.concatenate((first, answer)), "conversations"))
        assert (row["near_port"], row["far_port"]) == (77, request_type << 8)
        assert row["service_port"] == 0
    other = flow(OUT, here, there, 78, request_type << 8, protocol)
    assert len(group(np.concatenate((first, answer, other)), "conversations").rows) == 2


def test_an_icmp_error_is_not_joined_to_an_echo() -> None:
    rows = np.concatenate((flow(OUT, HERE, THERE, 0, 8 << 8, 1), flow(IN, THERE, HERE, 0, 769, 1)))
    assert group(rows, "conversations").rows["far_port"].tolist() != [8 << 8, 8 << 8]


@pytest.mark.parametrize("difference", [{"vlan": 5}, {"tunnel": 3}, {"tunnel": 3, "tunnel_id": 9}])
def test_vlans_and_tunnels_are_apart_as_conversations_and_together_as_hosts(
    difference: dict[str, int],
) -> None:
    plain, other = both(HERE, THERE, 40001, 443), both(HERE, THERE, 40001, 443, **difference)
    rows = np.concatenate((plain, other))
    found = group(rows, "conversations")
    assert len(found.rows) == 2
    assert found.of[0] == found.of[1] != found.of[2] == found.of[3]
    assert [the_only(group(rows, kind))["flows"] for kind in KINDS[1:]] == [2, 2, 2]


def test_hosts_networks_and_services_have_their_keys_and_nothing_else() -> None:
    rows = np.concatenate(
        (
            both(HERE, THERE, 40001, 443, vlan=7),
            both(HERE, "198.51.100.200", 443, 50000),
            both(HERE6, THERE6, 40003, 443),
            both(HERE6, THERE6, 40003, 443, 17),
        )
    )
    hosts = group(rows, "hosts").rows
    assert sorted(hosts["far"][:, 3].tolist()) == [7, 0xB8, 200]
    services = group(rows, "services").rows
    columns = (services[name].tolist() for name in ("protocol", "service_port", "flows"))
    assert sorted(zip(*columns, strict=True)) == [(6, 443, 3), (17, 443, 1)]
    networks = group(rows, "networks", (16, 48)).rows
    assert sorted(
        (raw.tobytes()[:7].hex(), prefix)
        for raw, prefix in zip(networks["far"], networks["prefix"].tolist(), strict=True)
    ) == [("20010db8000100", 48), ("c6330000000000", 16)]
    unused = {
        "hosts": ("near", "near_port", "far_port", "service_port", "protocol", "vlan", "prefix"),
        "services": ("near", "far", "near_port", "far_port", "version", "vlan", "prefix"),
        "networks": ("near", "near_port", "far_port", "service_port", "protocol", "vlan"),
    }
    for kind, names in unused.items():
        assert not any(group(rows, kind).rows[name].any() for name in names)
    near = group(rows, "hosts", near=True).rows
    assert len(near) == 2
    assert not near["far"].any()


def test_prefixes_cut_within_a_byte_and_may_be_whole_or_empty() -> None:
    rows = np.concatenate((both(HERE, "198.51.100.130", 1, 2), both(HERE, "198.51.100.129", 1, 2)))
    found = group(rows, "networks", (25, 64)).rows
    assert found["far"][0, :4].tolist() == [198, 51, 100, 128]
    assert len(group(rows, "networks", (32, 128)).rows) == 2
    assert not the_only(group(rows, "networks", (0, 0)))["far"].any()


ADDRESSES = {4: [HERE, THERE, "198.51.100.8"], 6: [HERE6, THERE6, "2001:db8:1:2::8"]}


@st.composite
def many_flows(draw: st.DrawFn) -> Array:
    seed = draw(st.integers(0, 1 << 32))
    size = draw(st.integers(0, 80))
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(size):
        source, destination = random.choice(ADDRESSES[int(random.choice((4, 6)))], 2)
        ports = random.choice((0, 8 << 8, 443, 40001), 2).tolist()
        rows.append(
            flow(
                int(random.integers(2)), source, destination, ports[0], ports[1],
                int(random.choice((1, 6, 17, 47, 58))), vlan=int(random.integers(2)),
                tunnel=int(random.integers(2)), packets=int(random.integers(1 << 50)),
                bytes=int(random.integers(1 << 62)), first_ns=int(random.integers(100)),
                last_ns=int(random.integers(100, 200)), tcp_flags=int(random.integers(256)),
            )
        )  # fmt: skip
    return np.concatenate(rows) if rows else np.zeros(0, FLOW)


@given(rows=many_flows(), near=st.booleans())
def test_sums_over_groups_are_the_sums_over_flows(rows: Array, near: bool) -> None:
    conversations = group(rows, "conversations")
    for kind in KINDS:
        found = group(rows, kind, near=near)
        again = regroup(conversations, kind, near=near)
        assert (again.rows == found.rows).all()
        assert (again.of == found.of).all()
        assert (np.diff(found.rows["id"].astype("f8")) > 0).all()
        assert found.rows["flows"].sum() == len(conversations.rows)
        for place, row in enumerate(found.rows):
            mine = rows[found.of == place]
            assert len(mine)
            for way, direction in (("in", IN), ("out", OUT)):
                of_way = mine[mine["direction"] == direction]
                assert row[f"{way}_packets"] == of_way["packets"].sum()
                assert row[f"{way}_bytes"] == of_way["bytes"].sum()
            assert row["first_ns"] == mine["first_ns"].min()
            assert row["last_ns"] == mine["last_ns"].max()
            assert row["tcp_flags"] == np.bitwise_or.reduce(mine["tcp_flags"])


@given(rows=many_flows())
def test_ids_stay_from_window_to_window(rows: Array) -> None:
    shuffled = rows[::-1][: len(rows) // 2]
    for kind in KINDS:
        first, later = group(rows, kind), group(shuffled, kind)
        ids = later.rows["id"][later.of][::-1]
        assert (first.rows["id"][first.of][len(rows) - len(shuffled) :] == ids).all()


def test_a_lower_bound_makes_its_group_one() -> None:
    rows = both(HERE, THERE, 40001, 443)
    live = np.zeros(2, [*((name, FLOW[name]) for name in FLOW.names or ()), ("at_least", "u8")])
    for name in FLOW.names or ():
        live[name] = rows[name]
    live["at_least"] = (0, 1)
    assert the_only(group(live, "conversations"))["at_least"] == 1


def test_ipv6_hosts_that_differ_in_the_last_byte_only_are_apart() -> None:
    rows = np.repeat(both(HERE6, THERE6, 40001, 443)[:1], 1 << 12)
    number = np.arange(1 << 12)
    rows["source"][:, 15], rows["destination"][:, 15] = number & 63, number >> 6
    assert len(group(rows, "conversations").rows) == 1 << 12


def test_the_layout_has_no_gap() -> None:
    assert GROUP.itemsize == 14 * 8
    assert sum(GROUP[name].itemsize for name in GROUP.names or ()) == GROUP.itemsize
