"""Destinations of path tracing: addresses and names that are understood, or refused."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from app.resolve import address, addresses, check_address
from bpf.errors import UsageError


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:DB8:0::1", "2001:db8::1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
    ],
)
def test_an_address_is_its_own(text: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "getaddrinfo")  # nobody is asked
    assert addresses(text) == (found,)
    assert address(text) == found


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("127.0.0.1", "this host"),
        ("::1", "this host"),
        ("0.0.0.0", "nobody's"),
        ("224.0.0.5", "not of one host"),
        ("ff02::1", "not of one host"),
        ("255.255.255.255", "not of one host"),
        ("fe80::1%lo", "on the link itself"),
        ("2001:db8::1%2", "on the link itself"),
    ],
)
def test_an_address_without_a_path_is_refused_with_the_reason(text: str, reason: str) -> None:
    for ask in (address, addresses):
        with pytest.raises(UsageError, match=rf"^cannot trace {text}: it is .*{reason}"):
            ask(text)


def answer(monkeypatch: pytest.MonkeyPatch, *found: str) -> None:
    """Have every name resolved so."""

    def getaddrinfo(*_: Any, **__: Any) -> Any:
        return [(socket.AF_UNSPEC, socket.SOCK_DGRAM, 0, "", (each, 0)) for each in found]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def test_a_name_is_all_addresses_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """S3.1, S3.22."""
    answer(monkeypatch, "192.0.2.1", "2001:db8::1", "fe80::1%3", "192.0.2.1", "192.0.2.2")
    assert addresses("example.org") == ("192.0.2.1", "2001:db8::1", "192.0.2.2")
    answer(monkeypatch, "127.0.1.1", "::1")
    with pytest.raises(UsageError, match=r"^here: cannot trace 127.0.1.1: it is this host"):
        addresses("here")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("010.033.005.002", "8.27.5.2 (a leading 0 makes a number octal)"),
        ("10.33.5", "10.33.0.5"),
        ("0x0a210502", "10.33.5.2"),
        ("167772161", "10.0.0.1"),
    ],
)
def test_numbers_that_are_another_address_are_refused(text: str, meant: str) -> None:
    hint = "; write four decimal numbers without leading zeros"
    for ask in (check_address, addresses):
        with pytest.raises(UsageError) as caught:
            ask(text)
        assert str(caught.value) == f"cannot trace {text}: it would be {meant}{hint}"


@pytest.mark.parametrize("name", ["no-such.invalid", "", "a..b", "x" * 300, "a\0b", "[::1]"])
def test_a_name_that_does_not_resolve_is_named(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        addresses(name)
    assert str(caught.value).startswith(f"cannot resolve {name!r}: ")
