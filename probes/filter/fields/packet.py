"""Fields of packets, which the kernel knows too."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bpf.arrays import Array
from bpf.errors import did_you_mean
from probes.filter.conjunction import SIZES, Conjunction, Dimension, NumberSet, PrefixSet
from probes.filter.fields.numbers import EQUAL, Test, Value, passing, plain
from probes.filter.hosts import PROTOCOLS, TCP_FLAGS, Hosts
from probes.filter.table import RowTable

ENDS = ("source", "destination")
PORT_DIMENSIONS = dict(zip(ENDS, (Dimension.SOURCE_PORT, Dimension.DESTINATION_PORT), strict=True))
_ADDRESSES = dict(zip(ENDS, (Dimension.SOURCE, Dimension.DESTINATION), strict=True))
_PLAIN_FLAGS = 0x3F
"""FSRPAU."""
_NAME = re.compile(r"(?=.*[A-Za-z])[\w.*-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Codes:
    """A column of numbers with names."""

    column: str
    help: str
    what: str
    """The word for a value in messages: `protocol`."""
    codes: Mapping[str, int]
    numbers: int = 0
    """Numbers below this are values, too."""
    macro: str = ""
    """Macro of packet.h; empty if the kernel lacks the field."""
    dimension: Dimension | None = None
    """None if packets are not selected by the field."""
    shift: int = 0
    """Bits of the column below the number."""

    @property
    def words(self) -> Mapping[str, str]:
        return dict.fromkeys(self.codes, "")

    def test(self, operator: str, value: Value) -> Test:
        said = plain(operator, value)
        code = self.codes.get(said.lower())
        if code is None and said.isascii() and said.isdecimal() and int(said[:9]) < self.numbers:
            code = int(said)
        if code is None:
            hint = did_you_mean(said.lower(), self.codes)
            raise value.wrong(f"there is no {self.what} {said!r}", hint)
        c = f"{self.macro}(&p->key) == {code}" if self.macro else ""
        within: tuple[Conjunction, ...] = ()
        if self.dimension is not None:
            passed = NumberSet.between(SIZES[self.dimension], code, code)
            within = (Conjunction.of({self.dimension: passed}),)
        return Test(lambda table: table[self.column] >> self.shift == code, c, within)


def protocol(help_text: str = "protocol: a name or a number") -> Codes:
    return Codes("protocol", help_text, "protocol", PROTOCOLS, 256, "PROTOCOL", Dimension.PROTOCOL)


def ip_version() -> Codes:
    codes = {"4": 4, "6": 6}
    return Codes("version", "IP version", "IP version", codes, 0, "VERSION", Dimension.VERSION)


@dataclass(frozen=True, slots=True)
class WholeNumbers:
    """Numbers that are compared, and have ranges."""

    what: str
    """The word for a number in messages: `port`."""
    size: int
    """The number above the largest."""

    def between(self, operator: str, value: Value) -> tuple[int, int]:
        """First and last number of a term's value. Raises TextError."""
        if value.kind != "word":
            raise value.wrong(f"{value.text!r} is not a {self.what}")
        if operator in EQUAL:
            low, dash, high = value.text.partition("-")
            first = self._number(value, low)
            last = self._number(value, high, len(low) + 1) if dash else first
            if last < first:
                raise value.wrong(f"no {self.what} is from {first} to {last}")
        else:
            number = self._number(value, value.text)
            # As a range: `<` and `>` leave the number itself out, and 0 is none.
            first = 1 if "<" in operator else number + (operator == ">")
            last = self.size - 1 if ">" in operator else number - (operator == "<")
            if last < first:
                raise value.wrong(f"no {self.what} is {operator} {number}")
        return first, last

    def _number(self, value: Value, said: str, at: int = 0) -> int:
        if not (said.isascii() and said.isdecimal() and int(said[:9]) < self.size):
            raise value.wrong(f"{said!r} is not a {self.what}", at=at)
        return int(said)


_PORT = WholeNumbers("port", 65536)
_VLAN_ID = WholeNumbers("VLAN id", 4096)


@dataclass(frozen=True, slots=True)
class Ports:
    """One or both columns of ports."""

    help: str
    ends: tuple[str, ...] = ENDS

    @property
    def words(self) -> Mapping[str, str]:
        return {"443": "", "8000-8100": "a range", "53,853": "one of several"}

    def test(self, operator: str, value: Value) -> Test:
        first, last = _PORT.between(operator, value)
        c = []
        for end in self.ends:
            port = f"{end.upper()}_PORT(&p->key)"
            if first == last:
                c.append(f"{port} == bpf_htons({first})")
            else:
                c.append(f"(bpf_ntohs({port}) >= {first} && bpf_ntohs({port}) <= {last})")

        def mask(table: RowTable) -> Array:
            passed = np.zeros(len(table), bool)
            for end in self.ends:
                port = table[f"{end}_port"]
                passed |= (port >= first) & (port <= last)
            return passed

        passed = NumberSet.between(_PORT.size, first, last)
        within = tuple(Conjunction.of({PORT_DIMENSIONS[end]: passed}) for end in self.ends)
        return Test(mask, " || ".join(c), within)


@dataclass(frozen=True, slots=True)
class Vlans:
    """The id of the outermost VLAN tag; 0: none."""

    help: str = "id of the outermost VLAN tag, 0 for none"

    @property
    def words(self) -> Mapping[str, str]:
        return {"100": "", "100-199": "a range", "0": "no tag"}

    def test(self, operator: str, value: Value) -> Test:
        first, last = _VLAN_ID.between(operator, value)
        return Test(
            lambda table: (table["vlan"] >= first) & (table["vlan"] <= last),
            f"p->vlan >= {first} && p->vlan <= {last}",
            (Conjunction.of({Dimension.VLAN: NumberSet.between(_VLAN_ID.size, first, last)}),),
        )


@dataclass(frozen=True, slots=True)
class Addresses:
    """One or both columns of addresses: prefixes, patterns and names."""

    help: str
    ends: tuple[str, ...] = ENDS
    named: bool = False
    """Whether names of addresses may be known."""
    prefixes_only: bool = False

    @property
    def words(self) -> Mapping[str, str]:
        known = {"10.0.0.0/8": "a prefix", "2001:db8::1": ""}
        return known if self.prefixes_only else {**known, "/^10\\.1\\./": "a pattern"}

    def test(self, operator: str, value: Value) -> Test:
        if operator not in EQUAL:
            raise value.wrong(f"{operator} is for numbers", "write : instead")
        if value.kind == "word":
            try:
                return self._within(value.text)
            except ValueError:
                pass
        named = value.kind == "quoted" or bool(_NAME.fullmatch(value.text))
        if self.prefixes_only or not (value.kind == "pattern" or named):
            raise value.wrong(f"{value.text!r} is not an address or prefix")
        if value.kind != "pattern" and not self.named:
            raise value.wrong(f"names of hosts are not known here: {value.text!r}",
                              "an address, a prefix or a pattern of addresses")  # fmt: skip
        hosts = Hosts(passing(value))

        def mask(table: RowTable) -> Array:
            passed = np.zeros(len(table), bool)
            for end in self.ends:
                names = table.names if self.named else None
                passed |= hosts.mask(table[end], table["version"], names)
            return passed

        return Test(mask)

    def _within(self, prefix: str) -> Test:
        """Return the test for a prefix. Raises ValueError if it is invalid."""
        network = ipaddress.ip_network(prefix, strict=False)
        # Both versions as two words in the order of memory, as the kernel and the rows hold them.
        words = np.frombuffer(network.network_address.packed.ljust(16, b"\0"), "u8")
        masks = np.frombuffer(network.netmask.packed.ljust(16, b"\0"), "u8")

        def mask(table: RowTable) -> Array:
            result = np.zeros(len(table), bool)
            for end in self.ends:
                address = np.ascontiguousarray(table[end]).view("u8").reshape(-1, 2)
                result |= ((address & masks) == words).all(axis=1)
            result &= table["version"] == network.version
            return result

        sides = []
        ends = tuple(filter(_ADDRESSES.__contains__, self.ends))
        for end in ends:
            parts = [
                f"(p->key.{end}[{i}] & {int(masks[i]):#x}ULL) == {int(words[i]):#x}ULL"
                for i in range(2)
                if masks[i]
            ]
            sides.append("(" + (" && ".join(parts) or "true") + ")")
        c = f"VERSION(&p->key) == {network.version} && ({' || '.join(sides)})" if sides else ""
        inside = PrefixSet.within(network)
        return Test(mask, c, tuple(Conjunction.of({_ADDRESSES[end]: inside}) for end in ends))


@dataclass(frozen=True, slots=True)
class Flags:
    """TCP flags: `flags:S` if all of these were seen, `flags=S` if no others were, too."""

    column: str = "tcp_flags"
    help: str = "TCP flags that were all seen, of FSRPAUEW; = for exactly these, 0 for none"

    @property
    def words(self) -> Mapping[str, str]:
        return {"S": "SYN", "SA": "SYN and ACK", "R": "RST", "F": "FIN"}

    def test(self, operator: str, value: Value) -> Test:
        said = plain(operator, value)
        bits = 0
        for at, letter in enumerate("" if said == "0" and operator == "=" else said.upper()):
            if letter not in TCP_FLAGS:
                raise value.wrong(f"{letter!r} is no TCP flag", f"they are {TCP_FLAGS}", at)
            bits |= 1 << TCP_FLAGS.index(letter)
        # ECN sets E and W on handshakes of any kind: they count only if they are named.
        looked_at = bits | _PLAIN_FLAGS if operator == "=" else bits
        passed = NumberSet(256, sum(1 << n for n in range(256) if n & looked_at == bits))
        return Test(
            lambda table: (table[self.column] & looked_at) == bits,
            f"(p->tcp_flags & {looked_at}) == {bits}",
            (Conjunction.of({Dimension.FLAGS: passed}),),
        )


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
