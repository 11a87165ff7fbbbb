"""Parsers of DNS answers and ClientHellos, also of messages that are made to do harm."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.names.learned import AddressName, dns_names, tls_server_name
from tests.probes.names.tools import AAAA, CNAME, QUESTION, A, answer, client_hello, encoded, record

FOUR, SIX = bytes([192, 0, 2, 9]), bytes([0x20, 1, 13, 0xB8, *bytes(11), 9])
CHAIN = answer(
    "www.Example.org",
    record(QUESTION, CNAME, encoded("cdn.example.net")),
    record(encoded("cdn.example.net"), CNAME, encoded("edge.example.net")),
    record(encoded("edge.example.net"), A, FOUR, 30),
    record(encoded("edge.example.net"), AAAA, SIX, 40),
    record(encoded("other.example.net"), A, b"\1\2\3\4"),
)


def test_addresses_at_the_end_of_a_chain_of_aliases_have_the_name_asked_for() -> None:
    assert list(dns_names(CHAIN)) == [
        AddressName(FOUR, "www.example.org", 30),
        AddressName(SIX, "www.example.org", 40),
        AddressName(b"\1\2\3\4", "other.example.net", 300),
    ]


@pytest.mark.parametrize(
    "message",
    [
        answer("www.example", record(QUESTION, A, FOUR), flags=0x0100),  # a query
        answer("www.example", record(QUESTION, A, FOUR), flags=0x8183),  # no such name
        answer("www.example", record(QUESTION, A, SIX)),  # a wrong size
        answer("www.example", record(QUESTION, A, FOUR, 1 << 31)),
        answer("a b.example", record(QUESTION, A, FOUR)),
        answer("x\x1b[2J.example", record(QUESTION, A, FOUR)),
        answer("", record(QUESTION, A, FOUR)),
        answer("www.example", record(b"\xc0\xff", A, FOUR)),  # points behind the end
        answer("www.example", record(b"\xc0\x1f" + b"\xc0\x1d", A, FOUR)),  # a loop
        answer("www.example", record(b"\xc0\x1d", A, FOUR)),  # points to itself
        answer("www.example", record(b"\x80\x00", A, FOUR)),  # a reserved kind of label
        answer(".".join("a" * 60 for _ in range(5)), record(QUESTION, A, FOUR)),  # too long
        answer("a", record(QUESTION, CNAME, QUESTION), record(encoded("b"), A, FOUR[:3])),
    ],
)
def test_other_messages_tell_no_name(message: bytes) -> None:
    assert list(dns_names(message)) == []


def test_names_that_are_aliases_of_each_other_end() -> None:
    loop = (record(encoded("a"), CNAME, encoded("b")), record(encoded("b"), CNAME, encoded("a")))
    found = list(dns_names(answer("a", *loop, record(encoded("a"), A, FOUR))))
    assert [name.address for name in found] == [FOUR]


def test_the_names_before_a_cut_are_told() -> None:
    whole = list(dns_names(CHAIN))
    for size in range(len(CHAIN)):
        cut = list(dns_names(CHAIN[:size]))
        assert cut == whole[: len(cut)]


def test_the_most_laborious_message_takes_little_time() -> None:
    """Each record's name is a chain of pointers, each to the one before, in another record."""
    start = len(answer("x", record(QUESTION, 16, b"")))
    places = [start, *(start + 3 + 2 * number for number in range(30))]
    pointers = b"".join((0xC000 | place).to_bytes(2, "big") for place in places)
    last = pointers[-2:]
    records = [record(last, A, bytes([192, 0, 2, number])) for number in range(200)]
    message = answer("x", record(QUESTION, 16, encoded("y") + pointers), *records)
    started = time.process_time()
    for _ in range(50):
        assert {name.name for name in dns_names(message)} == {"y"}
    assert time.process_time() - started < 0.1


@given(data=st.binary(max_size=200))
def test_any_bytes_do_no_harm(data: bytes) -> None:
    for message in (data, b"\0\0\x81\x80\0\1\0\x09" + data, b"\x16\3\1\0\0\1" + data):
        list(dns_names(message))
        tls_server_name(message)


@given(at=st.integers(0, len(CHAIN) - 1), byte=st.integers(0, 255))
def test_a_changed_byte_does_no_harm(at: int, byte: int) -> None:
    for address, name, _ in dns_names(CHAIN[:at] + bytes([byte]) + CHAIN[at + 1 :]):
        assert len(address) in (4, 16)
        assert name.isprintable()


def test_the_server_name_of_a_client_hello() -> None:
    hello = client_hello("www.example.org")
    assert tls_server_name(hello) == "www.example.org"
    assert tls_server_name(hello[:1536]) == "www.example.org"
    for size in range(len(hello)):
        assert tls_server_name(hello[:size]) in ("", "www.example.org")
    for at in range(len(hello)):
        changed = tls_server_name(hello[:at] + b"\xff" + hello[at + 1 :])
        assert changed.isprintable() or not changed


@pytest.mark.parametrize("name", ["", "192.0.2.1"])
def test_a_client_hello_without_a_name_tells_none(name: str) -> None:
    assert tls_server_name(client_hello(name)) == ""
