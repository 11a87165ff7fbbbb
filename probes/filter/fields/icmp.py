"""Fields of ICMP: its messages have numbers in place of ports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bpf.arrays import Array
from bpf.errors import did_you_mean
from probes.filter.conjunction import Conjunction, Dimension
from probes.filter.fields.field import Test, Value, plain
from probes.filter.fields.packet import PORT_DIMENSIONS, WholeNumbers
from probes.filter.hosts import PROTOCOLS
from probes.filter.sets import NumberSet
from probes.filter.table import RowTable

_FOUR, _SIX = PROTOCOLS["icmp"], PROTOCOLS["icmp6"]
_TYPES = {
    "echo-reply": {_FOUR: 0, _SIX: 129},
    "unreachable": {_FOUR: 3, _SIX: 1},
    "packet-too-big": {_SIX: 2},
    "source-quench": {_FOUR: 4},
    "redirect": {_FOUR: 5, _SIX: 137},
    "echo-request": {_FOUR: 8, _SIX: 128},
    "router-advertisement": {_FOUR: 9, _SIX: 134},
    "router-solicitation": {_FOUR: 10, _SIX: 133},
    "time-exceeded": {_FOUR: 11, _SIX: 3},
    "parameter-problem": {_FOUR: 12, _SIX: 4},
    "timestamp-request": {_FOUR: 13},
    "timestamp-reply": {_FOUR: 14},
    "neighbor-solicitation": {_SIX: 135},
    "neighbor-advertisement": {_SIX: 136},
}
"""Types of ICMP and ICMPv6 (IANA) by name and protocol."""
_IDENTIFIER = WholeNumbers("16-bit identifier", 65536)


@dataclass(frozen=True, slots=True)
class IcmpTypes:
    """Type, or type and code, of ICMP and ICMPv6: the destination port's bytes."""

    help: str = "type of ICMP and ICMPv6, a name or a number; with its code as in unreachable/3"

    @property
    def words(self) -> Mapping[str, str]:
        return dict.fromkeys(_TYPES, "")

    def test(self, operator: str, value: Value) -> Test:
        said, slash, code = plain(operator, value).partition("/")
        types = _TYPES.get(said.lower())
        if types is None:
            if not _is_byte(said):
                hint = did_you_mean(said.lower(), _TYPES)
                raise value.wrong(f"there is no ICMP type {said!r}", hint)
            types = {_FOUR: int(said), _SIX: int(said)}
        if slash and not _is_byte(code):
            raise value.wrong(f"{code!r} is not an ICMP code", at=len(said) + 1)
        low, high = (int(code), int(code)) if slash else (0, 255)
        ranges = [(protocol, n << 8 | low, n << 8 | high) for protocol, n in types.items()]
        return _test("destination", ranges)


@dataclass(frozen=True, slots=True)
class IcmpIdentifiers:
    """Identifier of ICMP's echo and the like: the source port."""

    help: str = "identifier of ICMP echo, 0 for other messages"

    @property
    def words(self) -> Mapping[str, str]:
        return {"77": "", "1-1000": "a range"}

    def test(self, operator: str, value: Value) -> Test:
        first, last = _IDENTIFIER.between(operator, value)
        return _test("source", [(protocol, first, last) for protocol in (_FOUR, _SIX)])


def _is_byte(said: str) -> bool:
    return said.isascii() and said.isdecimal() and int(said[:9]) < 256


def _test(end: str, ranges: Sequence[tuple[int, int, int]]) -> Test:
    """Return the test for protocols with the first and last number in place of a port."""

    def mask(table: RowTable) -> Array:
        passed = np.zeros(len(table), bool)
        port = table[f"{end}_port"]
        for protocol, first, last in ranges:
            passed |= (table["protocol"] == protocol) & (port >= first) & (port <= last)
        return passed

    port = f"bpf_ntohs({end.upper()}_PORT(&p->key))"
    c = " || ".join(
        f"(PROTOCOL(&p->key) == {protocol} && {port} >= {first} && {port} <= {last})"
        for protocol, first, last in ranges
    )
    within = (
        Conjunction.of(
            {
                Dimension.PROTOCOL: NumberSet.between(256, protocol, protocol),
                PORT_DIMENSIONS[end]: NumberSet.between(65536, first, last),
            }
        )
        for protocol, first, last in ranges
    )
    return Test(mask, c, tuple(within))
