"""Kinds of fields: their values, and tests of rows, packets and match tables."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from bpf.errors import did_you_mean
from probes.filter.error import TermError
from probes.filter.hosts import Hosts
from probes.filter.match import ADDRESSES, PORTS, PROTOCOL, VERSION, Match, between
from probes.filter.network import PROTOCOLS
from probes.filter.pattern import PatternError, searcher
from probes.filter.table import Array, RowTable

ENDS = ("source", "destination")
_FLAGS = "FSRPAUEW"
_NUMBER = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)([^0-9.]?.*)", re.ASCII | re.DOTALL)
_NAME = re.compile(r"(?=.*[A-Za-z])[\w.*-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Value:
    """One value of a term."""

    text: str
    column: int
    kind: Literal["word", "pattern", "quoted"]
    whole: bool = False
    """Whether mistakes have the column of the whole value: it is in a saved filter."""

    def wrong(self, problem: str, hint: str = "", at: int = 0) -> TermError:
        """A mistake in the value, from character `at` on."""
        return TermError(problem, self.column + (0 if self.whole else at), hint)


@dataclass(frozen=True, slots=True)
class Test:
    """One value of a term, as a test of rows, of packets in C, and as matches."""

    mask: Callable[[RowTable], Array]
    """From a table of n rows to bool (n,)."""
    c: str = ""
    """An expression over `struct packet *p`; empty if the kernel lacks the field."""
    matches: tuple[Match, ...] | None = None
    """Alternatives; None if match tables lack the field."""


class Field(Protocol):
    """A field of rows."""

    @property
    def help(self) -> str: ...

    @property
    def words(self) -> Mapping[str, str]:
        """Possible values or examples, with their meaning."""

    def test(self, operator: str, value: Value) -> Test:
        """Return the test for a value. Raises TermError."""


def plain(operator: str, value: Value) -> str:
    """The text of a value that is neither compared nor a pattern. Raises TermError."""
    if operator != ":":
        raise value.wrong(f"{operator} is for numbers", "write : instead")
    if value.kind == "pattern":
        raise value.wrong("a pattern is for texts, hosts and addresses")
    return value.text


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
    offset: int = 0
    """Offset in a flow's key."""

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
        matches = None
        if self.macro:
            matches = (Match.at(self.offset, b"\xff", bytes([code])),)
        c = f"{self.macro}(&p->key) == {code}" if self.macro else ""
        return Test(lambda table: table[self.column] == code, c, matches)


def protocol(help_text: str = "protocol: a name or a number") -> Codes:
    return Codes("protocol", help_text, "protocol", PROTOCOLS, 256, "PROTOCOL", PROTOCOL)


def ip_version() -> Codes:
    codes = {"4": 4, "6": 6}
    return Codes("version", "IP version", "IP version", codes, 0, "VERSION", VERSION)


@dataclass(frozen=True, slots=True)
class Ports:
    """One or both columns of ports."""

    help: str
    ends: tuple[str, ...] = ENDS

    @property
    def words(self) -> Mapping[str, str]:
        return {"443": "", "8000-8100": "a range", "53,853": "one of several"}

    def test(self, operator: str, value: Value) -> Test:
        if value.kind != "word":
            raise value.wrong(f"{value.text!r} is not a port")
        if operator == ":":
            low, dash, high = value.text.partition("-")
            first = self._port(value, low)
            last = self._port(value, high, len(low) + 1) if dash else first
            if last < first:
                raise value.wrong(f"no port is from {first} to {last}")
        else:
            port = self._port(value, value.text)
            # As a range: `<` and `>` leave the port itself out, and 0 is none.
            first = 1 if "<" in operator else port + (operator == ">")
            last = 65535 if ">" in operator else port - (operator == "<")
            if last < first:
                raise value.wrong(f"no port is {operator} {port}")
        return self._between(first, last)

    def _port(self, value: Value, said: str, at: int = 0) -> int:
        if not (said.isascii() and said.isdecimal() and int(said[:9]) < 65536):
            raise value.wrong(f"{said!r} is not a port", at=at)
        return int(said)

    def _between(self, first: int, last: int) -> Test:
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

        matches = tuple(match for end in self.ends for match in between(PORTS[end], first, last))
        return Test(mask, " || ".join(c), matches)


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
        if operator != ":":
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

        sides, matches = [], []
        version = Match.at(VERSION, b"\xff", bytes([network.version]))
        netmask, packed = network.netmask.packed, network.network_address.packed
        for end in filter(ADDRESSES.__contains__, self.ends):
            parts = [
                f"(p->key.{end}[{i}] & {int(masks[i]):#x}ULL) == {int(words[i]):#x}ULL"
                for i in range(2)
                if masks[i]
            ]
            sides.append("(" + (" && ".join(parts) or "true") + ")")
            match = Match.at(ADDRESSES[end], netmask, packed) & version
            assert match is not None
            matches.append(match)
        c = f"VERSION(&p->key) == {network.version} && ({' || '.join(sides)})" if sides else ""
        return Test(mask, c, tuple(matches) if sides else None)


def passing(value: Value) -> Callable[[str], bool]:
    """Return a test whether a text contains a value, ignoring case. Raises TermError."""
    if value.kind == "pattern":
        try:
            return searcher(value.text)
        except PatternError as error:
            raise value.wrong(str(error), error.hint, error.at + 1) from None
    wanted = value.text.casefold()
    return lambda text: wanted in text.casefold()


@dataclass(frozen=True, slots=True)
class Quantity:
    """A column of numbers."""

    column: str
    help: str
    units: Mapping[str, float]
    """Units that may follow a number, in the column's own unit."""
    usual: float = 1.0
    """Unit of a number without one."""
    most: float = np.inf
    """Largest value, in the column's own unit."""

    @property
    def words(self) -> Mapping[str, str]:
        return dict.fromkeys((f"1{unit}" for unit in self.units), "")

    def test(self, operator: str, value: Value) -> Test:
        if value.kind != "word":
            raise value.wrong(f"{value.text!r} is not a number")
        if operator == ":":
            said, dash, end = value.text.partition("-")
            low = self._number(value, said)
            high = self._number(value, end, len(said) + 1) if dash else low
            if not low <= high:
                raise value.wrong("the range is empty: it ends before it begins")
            return Test(lambda t: (t[self.column] >= low) & (t[self.column] <= high))
        compare, number = _COMPARE[operator], self._number(value, value.text)
        return Test(lambda table: compare(table[self.column], number))

    def _number(self, value: Value, said: str, at: int = 0) -> float:
        found = _NUMBER.fullmatch(said)
        if found is None:
            raise value.wrong(f"{said!r} is not a number", self._hint(), at)
        unit, at_unit = found[2], at + len(found[1])
        alike = [name for name in self.units if name.lower() == unit.lower()]
        if not unit:
            scale = self.usual
        elif unit in self.units or len(alike) == 1:
            scale = self.units[unit if unit in self.units else alike[0]]
        else:
            raise value.wrong(f"{unit!r} is no unit here", self._hint(), at_unit)
        number = float(found[1]) * scale
        if not number <= self.most:
            raise value.wrong(f"{said!r} is larger than the field can be", self._hint(), at)
        return number

    def _hint(self) -> str:
        return f"units are {', '.join(self.units)}" if self.units else ""


_COMPARE: dict[str, Callable[[Array, float], Array]] = {
    "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal,
}  # fmt: skip
_DECIMAL = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
PLAIN = {**_DECIMAL, **_BINARY}
_ONE = {"": 1.0, **PLAIN}
SIZES = {f"{p}B": n for p, n in _ONE.items()} | PLAIN
BIT_RATES = (
    {f"{p}bit": n for p, n in _ONE.items()}
    | {f"{p}bit/s": n for p, n in _ONE.items()}
    | {f"{p}bps": n for p, n in _ONE.items()}
    | {f"{p}B/s": 8 * n for p, n in _ONE.items()}
    | PLAIN
)
RATES = {**PLAIN, "/s": 1.0, **{f"{p}/s": n for p, n in PLAIN.items()}}
_TIMES = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9, "m": 60e9, "h": 3600e9, "d": 86400e9}
SHARES = {"%": 0.01}


def times(column: str, help_text: str, usual: str, *, column_ns: float = 1.0) -> Quantity:
    """A column of times in units of `column_ns`; a number without a unit is in `usual`."""
    units = {name: ns / column_ns for name, ns in _TIMES.items()}
    return Quantity(column, help_text, units, units[usual])


@dataclass(frozen=True, slots=True)
class Flags:
    """TCP flags that were all seen."""

    column: str = "tcp_flags"
    help: str = "TCP flags that were all seen, of FSRPAUEW"

    @property
    def words(self) -> Mapping[str, str]:
        return {"S": "SYN", "SA": "SYN and ACK", "R": "RST", "F": "FIN"}

    def test(self, operator: str, value: Value) -> Test:
        said = plain(operator, value)
        bits = 0
        for at, letter in enumerate(said.upper()):
            if letter not in _FLAGS:
                raise value.wrong(f"{letter!r} is no TCP flag", f"they are {_FLAGS}", at)
            bits |= 1 << _FLAGS.index(letter)
        return Test(lambda table: (table[self.column] & bits) == bits)


@dataclass(frozen=True, slots=True)
class Texts:
    """A column of text that contains a value."""

    column: str
    help: str
    examples: tuple[str, ...] = ()

    @property
    def words(self) -> Mapping[str, str]:
        return dict.fromkeys(self.examples, "")

    def test(self, operator: str, value: Value) -> Test:
        if operator != ":":
            raise value.wrong(f"{operator} is for numbers", "write : instead")
        passes = passing(value)

        def mask(table: RowTable) -> Array:
            texts = table[self.column]
            return np.fromiter((passes(_text(text)) for text in texts.tolist()), bool, len(texts))

        return Test(mask)


def _text(text: object) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text)
