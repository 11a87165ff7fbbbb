"""Types of fields beyond C, such as addresses and text: guesses by name, or an operator's choice.

A guess keeps the value: every conversion can be undone, and an unknown field stays a number.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from socket import AF_INET, AF_INET6, AddressFamily, inet_ntop
from typing import Any

import numpy as np

from bpf.arrays import Array
from bpf.maps.layout import CType
from probes.tables.map_layout import ColumnType

DType = np.dtype[Any]

_ADDRESS = re.compile(
    r"(s|d|src|dst|source|dest|destination|local|remote|peer|l(?=addr)|r(?=addr))?"
    r"(ip|ipv4|ip4|ipv6|ip6|addr|address|ipaddr|inaddr|in6addr)(v?[46])?(src|dst)?"
)
_ENDS = frozenset({
    "src", "dst", "source", "dest", "destination", "local", "remote", "peer", "client", "server",
    "next", "hop", "nexthop", "gw", "gateway", "host", "router", "sender", "receiver",
})  # fmt: skip
"""Words for the owner of an address."""
_BESIDES = frozenset({
    "s", "d", "a", "b", "h", "0", "1", "2", "4", "6", "v4", "v6", "l3", "in", "out", "inner",
    "outer", "orig", "original", "reply", "prev", "bgp", "nat", "net", "network", "tun", "tunnel",
    "from", "to", "target", "victim", "attacker",
})  # fmt: skip
"""Words that may stand beside others, and mean nothing alone."""
_MAC = frozenset({
    "mac", "macaddr", "smac", "dmac", "srcmac", "dstmac", "eth", "ether", "ethernet", "hw",
    "hwaddr", "ll", "lladdr", "sha", "tha", "saddr", "daddr", "addr", "address",
})  # fmt: skip
_BIG_ENDIAN = frozenset({"__be16", "__be32", "__be64", "__sum16"})
MAPPED = bytes(10) + b"\xff\xff"
"""Prefix of an IPv4 address in place of an IPv6 one (RFC 4291, 2.5.5.2)."""
_VERSIONS = frozenset({"v4", "v6", "ip4", "ip6"})
"""Members of a union with the name of an address."""


@dataclass(frozen=True, slots=True)
class FieldType:
    """One type of fields."""

    about: str
    """Description for the manual."""
    needs: str
    """Required C type, in words."""
    takes: Callable[[DType], bool]
    """Whether a field of a dtype can have this type."""
    values: Callable[[Array], list[Any]]
    """Converts an array of fields, shape (n, *field shape), to Python's values."""
    type: ColumnType = ColumnType.TEXT
    """Type of these values, if they fit into it."""


def packed(array: Array) -> list[bytes]:
    """Return the bytes of each field of an array, shape (n, *field shape)."""
    size = array.dtype.itemsize
    if array.ndim > 1:
        array = array.reshape(len(array), -1)
        size *= array.shape[1]
    result: list[bytes] = array.view(f"V{size}").reshape(-1).tolist()
    return result


def _integers(array: Array, kind: str) -> list[int]:
    """Convert integers of up to 128 bits; `kind` is numpy's without the size: `u`, `i`, `>u`."""
    if array.dtype.kind == "V":
        order = "big" if kind == ">u" else sys.byteorder
        return [int.from_bytes(each, order, signed=kind == "i") for each in packed(array)]
    result: list[int] = array.view(f"{kind}{array.dtype.itemsize}").tolist()
    return result


def unsigned(array: Array) -> list[int]:
    """Convert integers of up to 128 bits in host order."""
    return _integers(array, "u")


def _addresses(array: Array, family: AddressFamily) -> list[str]:
    return [inet_ntop(family, each) for each in packed(array)]


def _ipv6(array: Array) -> list[str]:
    return [
        inet_ntop(AF_INET, each[12:]) if each[:12] == MAPPED else inet_ntop(AF_INET6, each)
        for each in packed(array)
    ]


def _hex(array: Array) -> list[str]:
    if array.ndim == 1 and array.dtype.kind in "iu":
        digits = 2 * array.dtype.itemsize
        return [f"{value:#0{digits + 2}x}" for value in unsigned(array)]
    return [each.hex() for each in packed(array)]


def _text(array: Array) -> list[str]:
    return [_readable(each.rstrip(b"\0")) for each in packed(array)]


def _readable(raw: bytes) -> str:
    """Return text with escapes such as `\\x07` for control characters and invalid bytes."""
    text = raw.replace(b"\\", b"\\\\").decode(errors="backslashreplace")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _prefix(array: Array) -> list[str]:
    family = AF_INET if array.dtype.itemsize == 8 else AF_INET6
    return [
        f"{inet_ntop(family, each[4:])}/{int.from_bytes(each[:4], sys.byteorder)}"
        for each in packed(array)
    ]


def _sized(size: int) -> Callable[[DType], bool]:
    return lambda dtype: dtype.itemsize == size


def is_number(dtype: DType) -> bool:
    """Return whether a dtype is one integer; `V16` has 128 bits."""
    return not dtype.shape and (dtype.kind in "iu" or (dtype.names is None and dtype.kind == "V"))


def _is_prefix(dtype: DType) -> bool:
    """Return whether a dtype is the key of an LPM trie: a prefix length and an address."""
    if dtype.names is None or len(dtype.names) != 2 or dtype.itemsize not in (8, 20):
        return False
    (_, first), (_, second) = (dtype.fields or {}).items()
    return first[:2] == (np.dtype("u4"), 0) and second[1] == 4


TIME = "time"
FIELD_TYPES = {
    "ipv4": FieldType(
        "an IPv4 address in network order",
        "4 bytes",
        _sized(4),
        partial(_addresses, family=AF_INET),
    ),
    "ipv4-host": FieldType(
        "an IPv4 address in host order",
        "4 bytes",
        lambda dtype: is_number(dtype) and dtype.itemsize == 4,
        lambda array: [inet_ntop(AF_INET, value.to_bytes(4, "big")) for value in unsigned(array)],
    ),
    "ipv6": FieldType(
        "an IPv6 address, or an IPv4 address mapped into it (`::ffff:192.0.2.1`), shown as IPv4",
        "16 bytes",
        _sized(16),
        _ipv6,
    ),
    TIME: FieldType(
        "a time of `bpf_ktime_get_ns()` in nanoseconds, shown as UTC; empty if 0",
        "8 bytes",
        lambda dtype: is_number(dtype) and dtype.itemsize == 8,
        unsigned,
        ColumnType.TIME,
    ),
    "mac": FieldType(
        "a MAC address",
        "6 bytes",
        _sized(6),
        lambda array: [each.hex(":") for each in packed(array)],
    ),
    "prefix": FieldType(
        "a prefix, as the key of an LPM trie", "a u32 and an address", _is_prefix, _prefix
    ),
    "be": FieldType(
        "a number in network order",
        "an integer",
        is_number,
        partial(_integers, kind=">u"),
        ColumnType.UNSIGNED,
    ),
    "unsigned": FieldType(
        "a number without a sign", "an integer", is_number, unsigned, ColumnType.UNSIGNED
    ),
    "signed": FieldType(
        "a number with a sign",
        "an integer",
        is_number,
        partial(_integers, kind="i"),
        ColumnType.INTEGER,
    ),
    "bool": FieldType(
        "true or false",
        "an integer",
        is_number,
        lambda array: [value != 0 for value in unsigned(array)],
        ColumnType.TRUTH,
    ),
    "text": FieldType(
        "text without the NULs at its end", "bytes", lambda dtype: dtype.base.itemsize == 1, _text
    ),
    "hex": FieldType("hexadecimal digits", "anything", lambda dtype: True, _hex),
}
"""By their names in `types` of a configuration."""

PLAIN = "host"
"""Overrides a guess: the C type alone describes the field."""
SLOT = "slot"
SLOT_TYPES = {"log2": "ranges of bpf_log2l()", "linear": "each slot is one value"}
"""Types of a histogram's slots."""


def guess(type_: CType, name: str, inside: str = "") -> str:
    """Return the name in FIELD_TYPES that fits a field; empty for a plain number or a record.

    The guess uses the typedefs, `name` of the field, and `inside`, the name of the struct or union
    around it.
    """
    dtype = type_.dtype
    size, base = dtype.itemsize, dtype.base
    if dtype.names is not None:
        return {"s_addr": "ipv4", "in6_u": "ipv6"}.get(" ".join(dtype.names), "")
    if base.names is not None:
        return ""
    types = _type_names(type_)
    if len(dtype.shape) == 1 and base == np.dtype("i1") and "signed char" not in types:
        return "text"
    words = [_words(each.removesuffix("_t")) for each in types] + [_words(name)]
    network = not _BIG_ENDIAN.isdisjoint(types)
    if network or name in _VERSIONS:
        words.append(_words(inside) + _words(name))
    wide = size == 16 and (dtype.shape or base.kind == "V")
    if wide and (name == "v6" or any(map(_is_address, words))):
        return "ipv6"
    if (
        size == 6
        and base.itemsize == 1
        and dtype.shape
        and any(_say(each, _MAC | _ENDS) for each in words)
    ):
        return "mac"
    is_word = size == 4 and base.kind in "iu" and (not dtype.shape or base.itemsize == 1)
    if is_word and any(map(_is_address, words)):
        return "ipv4"
    if base.kind == "V" and not dtype.shape and "__int128" in types:
        return "signed"
    if network and not dtype.shape:
        # A whole key or value has no name that could contradict its type.
        alone = not (name or inside)
        address = size == 4 and (alone or name == "v4" or any(_say(each, _ENDS) for each in words))
        return "ipv4" if address else "be"
    return ""


def _type_names(type_: CType) -> list[str]:
    """Return the names of a type, its typedefs, and the elements of an array."""
    names = list(type_.names)
    while type_.element is not None:
        type_ = type_.element
        names += type_.names
    return names


def _words(name: str) -> list[str]:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.strip("_")).lower().split("_")


def _is_address(words: list[str]) -> bool:
    """Return whether every word fits an address: `src_ip`, but not `ip_len` or `ip_count`."""
    return _say(words, frozenset(word for word in words if _ADDRESS.fullmatch(word)))


def _say(words: list[str], what: frozenset[str]) -> bool:
    """Return whether `words` have one of `what`, and otherwise only words of addresses."""
    return not what.isdisjoint(words) and (what | _ENDS | _BESIDES).issuperset(words)
