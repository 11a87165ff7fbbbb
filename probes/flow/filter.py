"""One filter language for flows: as a test in the kernel (what is captured), on rows (what is
shown), and as entries of match+action tables (what a policy selects).

    proto:tcp,udp  port:53  sport:1024  dport:443,8443  ip:6  dir:in
    net:10.0.0.0/8  src:2001:db8::/32  dst:192.0.2.1

Terms are joined by `and`; values of one term, after commas, by `or`; `!` before a term negates it.
A bare word is a protocol, an address or a port.
"""

from __future__ import annotations

import difflib
import ipaddress
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bpf.errors import UsageError
from probes.flow.records import Direction

Array = np.ndarray[Any, np.dtype[Any]]

PROTOCOLS = {
    "icmp": 1, "igmp": 2, "tcp": 6, "udp": 17, "dccp": 33, "gre": 47, "esp": 50, "ah": 51,
    "icmp6": 58, "ospf": 89, "sctp": 132, "udplite": 136,
}  # fmt: skip
"""Names of protocol numbers (IANA); any number may be given as such."""
_DIRECTIONS = {"in": Direction.INGRESS, "out": Direction.EGRESS}
_ENDS = ("source", "destination")
_PORTS = {"source": 32, "destination": 34}
_ADDRESSES = {"source": 0, "destination": 16}
_PROTOCOL, _VERSION = 36, 37
"""Where the parts of a `struct flow_key` are."""


KEY_SIZE = 40
"""Bytes of a `struct flow_key` (bpf/include/packet.h)."""
_MAX_MATCHES = 4096


@dataclass(frozen=True, slots=True)
class Match:
    """Flow keys that are as `value` where `mask` has bits; both are KEY_SIZE bytes."""

    mask: bytes
    value: bytes

    @classmethod
    def at(cls, offset: int, mask: bytes, value: bytes) -> Match:
        """Of one part of the key."""
        return cls(_placed(offset, mask), _placed(offset, value))

    def __and__(self, other: Match) -> Match | None:
        """Keys that match both; None where none can."""
        mine, theirs = (int.from_bytes(match.mask, "big") for match in (self, other))
        value, other_value = (int.from_bytes(match.value, "big") for match in (self, other))
        if (value ^ other_value) & mine & theirs:
            return None
        joined = (mine | theirs, value | other_value)
        return Match(*(number.to_bytes(KEY_SIZE, "big") for number in joined))


EVERYTHING = Match(bytes(KEY_SIZE), bytes(KEY_SIZE))


def _placed(offset: int, part: bytes) -> bytes:
    return (bytes(offset) + part).ljust(KEY_SIZE, b"\0")


@dataclass(frozen=True, slots=True)
class Test:
    """One value of a term, in all three languages."""

    c: str
    """An expression over `struct packet *p`; empty where the kernel can't tell."""
    mask: Callable[[Array], Array]
    """From rows of dtype FLOW (n,) to bool (n,)."""
    matches: tuple[Match, ...]
    """Of which one must hold."""


@dataclass(frozen=True, slots=True)
class Term:
    """Values of which one must hold, or none where negated."""

    tests: tuple[Test, ...]
    negated: bool
    text: str


@dataclass(frozen=True, slots=True)
class FlowFilter:
    """A parsed filter; the empty one takes every flow."""

    terms: tuple[Term, ...] = ()
    text: str = ""

    @classmethod
    def parse(cls, text: str) -> FlowFilter:
        """Read a filter; UsageError, naming the term, where it is none."""
        return cls(tuple(_term(word) for word in text.split()), text.strip())

    def mask(self, rows: Array) -> Array:
        """Which of `rows`, of dtype FLOW (n,), pass: bool (n,)."""
        result = np.ones(len(rows), bool)
        for term in self.terms:
            passed = np.zeros(len(rows), bool)
            for test in term.tests:
                passed |= test.mask(rows)
            result &= passed != term.negated
        return result

    def to_c(self) -> str:
        """`captured()` for flow.c; UsageError where a term can only be told of rows."""
        conditions = []
        for term in self.terms:
            if not all(test.c for test in term.tests):
                raise UsageError(
                    f"{term.text!r} can't choose what is captured",
                    hint="it can filter what is shown",
                )
            alternatives = " || ".join(f"({test.c})" for test in term.tests)
            conditions.append(f"{'!' if term.negated else ''}({alternatives})")
        return (
            "static __always_inline bool\ncaptured(struct packet *p)\n"
            f"{{\n    return {' && '.join(conditions) or 'true'};\n}}\n"
        )

    def matches(self) -> tuple[Match, ...]:
        """Alternatives that together are the filter, each a different one.

        UsageError where a term can't be said so, or there would be too many.
        """
        found: dict[Match, None] = {EVERYTHING: None}
        for term in self.terms:
            alternatives = [match for test in term.tests for match in test.matches]
            if term.negated or not all(test.matches for test in term.tests):
                hint = "leave it out: the monitor sees incoming packets"
                if term.negated:
                    hint = "tables hold what matches, not what does not"
                raise UsageError(f"{term.text!r} can't select packets", hint=hint)
            if len(found) * len(alternatives) > _MAX_MATCHES:
                raise UsageError(f"{self.text!r} is more than {_MAX_MATCHES} matches")
            both = (one & other for one in found for other in alternatives)
            found = dict.fromkeys(match for match in both if match)
        return tuple(found)


def _term(word: str) -> Term:
    negated = word.startswith("!")
    body = word[negated:]
    name, colon, values = body.partition(":")
    if not colon or name not in _KEYS:
        # A bare word; an IPv6 address has colons too.
        test = _bare(body)
        if test is None:
            near = difflib.get_close_matches(name, _KEYS, n=1) if colon else []
            raise UsageError(
                f"filter term {word!r} is not understood",
                hint=f"did you mean {near[0]}:?" if near else f"terms are {': '.join(_KEYS)}:",
            )
        return Term((test,), negated, word)
    try:
        tests = tuple(_KEYS[name](value) for value in values.split(","))
    except ValueError as error:
        raise UsageError(f"filter term {word!r}: {error}") from None
    return Term(tests, negated, word)


def _bare(word: str) -> Test | None:
    for kind in (_protocol, _port, _network_either):
        try:
            return kind(word)
        except ValueError:
            continue
    return None


def _protocol(value: str) -> Test:
    number = PROTOCOLS.get(value.lower())
    if number is None:
        # A bare number is a port; as a protocol it has to be said.
        raise ValueError(f"no protocol {value!r}")
    return _protocol_number(number)


def _protocol_any(value: str) -> Test:
    if value.isdecimal():
        if not int(value) < 256:
            raise ValueError(f"{value} is not a protocol number")
        return _protocol_number(int(value))
    return _protocol(value)


def _protocol_number(number: int) -> Test:
    match = Match.at(_PROTOCOL, b"\xff", bytes([number]))
    return Test(f"PROTOCOL(&p->key) == {number}", lambda rows: rows["protocol"] == number, (match,))


def _port_at(value: str, ends: tuple[str, ...]) -> Test:
    if not value.isdecimal() or not int(value) < 65536:
        raise ValueError(f"{value!r} is not a port")
    number = int(value)
    c = " || ".join(f"{end.upper()}_PORT(&p->key) == bpf_htons({number})" for end in ends)

    def mask(rows: Array) -> Array:
        result = np.zeros(len(rows), bool)
        for end in ends:
            result |= rows[f"{end}_port"] == number
        return result

    packed = number.to_bytes(2, "big")
    matches = tuple(Match.at(_PORTS[end], b"\xff\xff", packed) for end in ends)
    return Test(c, mask, matches)


def _port(value: str) -> Test:
    return _port_at(value, _ENDS)


def _network_at(value: str, ends: tuple[str, ...]) -> Test:
    try:
        network = ipaddress.ip_network(value, strict=False)
    except ValueError:
        raise ValueError(f"{value!r} is not an address or prefix") from None
    # Both versions as two words in the order of memory, as the kernel and the rows hold them.
    words = np.frombuffer(network.network_address.packed.ljust(16, b"\0"), "u8")
    masks = np.frombuffer(network.netmask.packed.ljust(16, b"\0"), "u8")
    conditions = [f"VERSION(&p->key) == {network.version}"]
    sides = []
    for end in ends:
        parts = [
            f"(p->key.{end}[{i}] & {int(masks[i]):#x}ULL) == {int(words[i]):#x}ULL"
            for i in range(2)
            if masks[i]
        ]
        sides.append("(" + (" && ".join(parts) or "true") + ")")
    conditions.append("(" + " || ".join(sides) + ")")

    def mask(rows: Array) -> Array:
        result = np.zeros(len(rows), bool)
        for end in ends:
            address = np.ascontiguousarray(rows[end]).view("u8").reshape(-1, 2)
            result |= ((address & masks) == words).all(axis=1)
        result &= rows["version"] == network.version
        return result

    version = _version_match(network.version)
    netmask, packed = network.netmask.packed, network.network_address.packed
    both = (Match.at(_ADDRESSES[end], netmask, packed) & version for end in ends)
    return Test(" && ".join(conditions), mask, tuple(match for match in both if match))


def _network_either(value: str) -> Test:
    return _network_at(value, _ENDS)


def _version(value: str) -> Test:
    if value not in ("4", "6"):
        raise ValueError(f"IP version {value!r} is neither 4 nor 6")
    number = int(value)
    match = _version_match(number)
    return Test(f"VERSION(&p->key) == {number}", lambda rows: rows["version"] == number, (match,))


def _version_match(number: int) -> Match:
    return Match.at(_VERSION, b"\xff", bytes([number]))


def _direction(value: str) -> Test:
    if value not in _DIRECTIONS:
        raise ValueError(f"direction {value!r} is neither in nor out")
    return Test("", lambda rows: rows["direction"] == _DIRECTIONS[value], ())


_KEYS: dict[str, Callable[[str], Test]] = {
    "proto": _protocol_any,
    "port": _port,
    "sport": lambda value: _port_at(value, ("source",)),
    "dport": lambda value: _port_at(value, ("destination",)),
    "net": _network_either,
    "host": _network_either,
    "src": lambda value: _network_at(value, ("source",)),
    "dst": lambda value: _network_at(value, ("destination",)),
    "ip": _version,
    "dir": _direction,
}


def protocol_name(number: int) -> str:
    """The protocol's name in lower case, or its number."""
    return _NAMES.get(number, str(number))


def address_text(raw: bytes, version: int) -> str:
    """An address of a row as text."""
    if version == 4:
        return socket.inet_ntop(socket.AF_INET, raw[:4])
    return socket.inet_ntop(socket.AF_INET6, raw)


_NAMES = {number: name for name, number in PROTOCOLS.items()}
