"""Kinds of fields: guessed from names and types, or given by the operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from bpf.abi import MapType
from bpf.compiler import CompiledMap
from bpf.errors import UsageError
from bpf.maps.layout import CType, Member, array_of, record
from bpf.syscall import MapSpec
from probes.filter.hosts import address_text
from probes.monitor.applications.catalog import built_in
from probes.monitor.policy import BUILT_IN
from probes.tables.conversion import objects, schema_of
from probes.tables.field_types import FIELD_TYPES, MAPPED
from tests.probes.tables.sources import Sources

CHAINS = {
    "u8": ("u1", "u8 __u8", "unsigned char"),
    "u16": ("u2", "u16 __u16", "unsigned short"),
    "u32": ("u4", "u32 __u32", "unsigned int"),
    "u64": ("u8", "u64 __u64", "unsigned long long"),
    "__be32": ("u4", "__be32 __u32", "unsigned int"),
    "__be16": ("u2", "__be16 __u16", "unsigned short"),
    "char": ("i1", "", "char"),
    "s8": ("i1", "s8 __s8", "signed char"),
}
"""Layout, typedefs and name, as BTF has them."""


def scalar(name: str, c_type: str, size: int) -> str:
    """The guessed type of a struct's only field, of `size` bytes."""
    code, typedefs, own = CHAINS[c_type]
    field = CType(np.dtype(code), (*typedefs.split(), own))
    if size > field.dtype.itemsize:
        field = array_of(field, size // field.dtype.itemsize)
    key = record("struct k", {name: Member(field, 0)}, size)
    number = CType(np.dtype("u8"), ("unsigned long long",))
    schema = schema_of(CompiledMap(MapSpec("m", MapType.HASH, size, 8, 1), key, number, -1, -1))
    return schema.fields.get(f"key.{name}", "")


ADDRESSES = """
saddr daddr src_ip dst_ip ip_src ip_dst ip addr srcIp dstAddr IPV4_SRC_ADDR IPV4_DST_ADDR
IPV4_NEXT_HOP remote_ip4 laddr raddr peer_addr client_ip next_hop_addr local_ipv4 s_addr ipv4_src
source_address nat_ip sip dip
"""
NUMBERS = """
ip_len ip_id ip_count n_ips tos proto ip_proto addr_count ip_version packets zip script
address_family hash id seq src dst spi ifindex ips descriptor tip skip
"""


@pytest.mark.parametrize(("c_type", "kind"), [("__be32", "ipv4"), ("__be16", "be"), ("u32", "")])
def test_a_whole_key_or_value_by_its_typedef(c_type: str, kind: str) -> None:
    code, typedefs, own = CHAINS[c_type]
    type_ = CType(np.dtype(code), (*typedefs.split(), own))
    size = type_.dtype.itemsize
    schema = schema_of(CompiledMap(MapSpec("m", MapType.HASH, size, size, 1), type_, type_, -1, -1))
    assert (schema.fields.get("key", ""), schema.fields.get("value", "")) == (kind, kind)


@pytest.mark.parametrize("name", ADDRESSES.split())
def test_names_that_say_address(name: str) -> None:
    assert scalar(name, "u32", 4) == "ipv4"


@pytest.mark.parametrize("name", NUMBERS.split())
def test_names_that_do_not_say_address(name: str) -> None:
    """A guess must never turn a number into something else."""
    assert scalar(name, "u32", 4) == ""


@pytest.mark.parametrize(
    ("name", "c_type", "size", "kind"),
    [
        ("src", "__be32", 4, "ipv4"),
        ("next_hop", "__be32", 4, "ipv4"),
        ("seq", "__be32", 4, "be"),
        ("ack_seq", "__be32", 4, "be"),
        ("port", "__be16", 2, "be"),
        ("addr", "u16", 2, ""),
        ("saddr", "u64", 8, ""),
        ("ip6", "u8", 16, "ipv6"),
        ("daddr", "u32", 16, "ipv6"),
        ("payload", "u8", 16, ""),
        ("mac", "u8", 6, "mac"),
        ("h_dest", "u8", 6, "mac"),
        ("eth_src", "u8", 6, "mac"),
        ("a", "u8", 6, ""),
        ("flags", "u8", 6, ""),
        ("src_ip", "u8", 4, "ipv4"),
        ("version", "u8", 4, ""),
        ("name", "char", 8, "text"),
        ("temperatures", "s8", 8, ""),
    ],
)
def test_what_is_guessed_depends_on_the_type_too(
    name: str, c_type: str, size: int, kind: str
) -> None:
    assert scalar(name, c_type, size) == kind


def test_128_bits_may_have_a_sign(sources: Sources) -> None:
    read = sources.read("struct v { __int128 balance; };\nBPF_HASH(m, u32, struct v);\n")
    read.put(bytes(4), (-3).to_bytes(16, "little", signed=True))
    assert read.objects()[0]["value"] == {"balance": -3}


def test_elements_of_an_array_of_addresses(sources: Sources) -> None:
    read = sources.read("struct v { u32 hop_ips[2]; };\nBPF_HASH(m, u32, struct v);\n")
    read.put(bytes(4), b"\x0a\0\0\1\x0a\0\0\2")
    assert read.objects()[0]["value"] == {"hop_ips": ["10.0.0.1", "10.0.0.2"]}


def test_typedefs_and_macros_lead_to_the_type(sources: Sources) -> None:
    read = sources.read(
        "typedef __be32 ip_t;\n#define KEY struct key\n"
        "typedef struct { ip_t one; u8 kind; } pair_t;\n"
        "struct key { ip_t who; pair_t pair; };\nBPF_HASH(m, KEY);\n"
    )
    read.put(b"\x0a\0\0\1\x0a\0\0\2\3\0\0\0", bytes(8))
    assert read.objects()[0]["key"] == {"who": "10.0.0.1", "pair": {"one": "10.0.0.2", "kind": 3}}


def test_of_two_branches_the_one_that_was_compiled_counts(sources: Sources) -> None:
    read = sources.read(
        "#ifdef NEVER\nstruct key { __be16 port; u32 saddr; };\n#else\n"
        "struct key { u16 port; __be32 spi; };\n#endif\n"
        "#ifdef NEVER\nBPF_HASH(m, u32);\n#else\nBPF_HASH(m, struct key);\n#endif\n"
    )
    assert read.schema.fields.get("key.spi") == "be"


TYPED = "struct key { u32 who; u8 a[6]; u64 n; u8 id[16]; };\nBPF_HASH(m, struct key);\n"


@pytest.mark.parametrize(
    ("types", "field", "shown"),
    [
        ({"key.who": "ipv4"}, "who", "10.0.0.1"),
        ({"key.who": "ipv4-host"}, "who", "1.0.0.10"),
        ({"key.who": "be"}, "who", 0x0A000001),
        ({"key.who": "hex"}, "who", "0x0100000a"),
        ({"key.who": "signed"}, "who", 0x0100000A),
        ({"key.a": "mac"}, "a", "ff:fe:00:00:00:01"),
        ({"key.a": "hex"}, "a", "fffe00000001"),
        ({"key.a[]": "signed"}, "a", [-1, -2, 0, 0, 0, 1]),
        ({"key.n": "signed"}, "n", -2),
        ({"key.id": "ipv6"}, "id", "2001:db8::"),
        ({"key.n": "time"}, "n", "1970-01-01T00:00:02.999999998Z"),
    ],
)
def test_an_operator_says_what_a_field_is(
    sources: Sources, types: Mapping[str, str], field: str, shown: Any
) -> None:
    """S1.10."""
    read = sources.read(TYPED, types=types)
    key = b"\x0a\0\0\1\xff\xfe\0\0\0\1" + bytes(6) + (2**64 - 2).to_bytes(8, "little")
    read.put(key + b"\x20\x01\x0d\xb8" + bytes(12), bytes(8))
    (row,) = objects(read.schema, read.rows(), 3 * 10**9)
    assert row["key"][field] == shown


def test_a_time_of_0_is_none_and_a_mapped_address_is_ipv4(sources: Sources) -> None:
    read = sources.read(TYPED, types={"key.n": "time", "key.id": "ipv6"})
    read.put(bytes(24) + bytes(10) + b"\xff\xff\xc0\x00\x02\x01", bytes(8))
    (row,) = read.objects()
    assert (row["key"]["n"], row["key"]["id"]) == ("", "192.0.2.1")


def test_host_takes_a_guess_back(sources: Sources) -> None:
    source = "enum e { A };\nstruct v { u32 saddr; u8 mac[6]; enum e e; };\n"
    read = sources.read(
        f"{source}BPF_HASH(m, u32, struct v);\n",
        types={"value.saddr": "host", "value.mac[]": "host", "value.e": "host"},
    )
    read.put(bytes(4), b"\1\0\0\0" + bytes(range(6)) + bytes(2) + bytes(4))
    assert read.objects()[0]["value"] == {"saddr": 1, "mac": [0, 1, 2, 3, 4, 5], "e": 0}


@pytest.mark.parametrize(
    ("types", "message"),
    [
        (
            {"key.wo": "ipv4"},
            r"map m: types: key\.wo: m has no such field; did you mean key\.who\?",
        ),
        ({"zzz": "ipv4"}, r"zzz: m has no such field; there are key, key\.who"),
        ({"key.who": "ipv5"}, r"types: key\.who: no type 'ipv5'; did you mean ipv[46]\?"),
        ({"key.n": "ipv4"}, r"key\.n: can't be ipv4: that takes 4 bytes; it has 8 bytes"),
        ({"key.a": "be"}, r"key\.a: can't be be: that takes an integer"),
    ],
)
def test_a_type_that_cannot_be_is_refused(
    sources: Sources, types: Mapping[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        sources.read(TYPED, types=types)


def test_addresses_of_applications_read_as_those_of_flows() -> None:
    """An IPv4 address mapped into IPv6 is plain: tables of both can be joined."""
    raw = MAPPED + bytes([192, 0, 2, 1])
    read = FIELD_TYPES["ipv6"].values
    assert read(np.frombuffer(raw, "u8").reshape(1, 2)) == [address_text(raw[12:], 4)]
    for name in BUILT_IN:
        ingress = built_in(name, "eth0").ingress
        assert ingress is not None
        assert any("ipv6" in metric.types.values() for metric in ingress.metrics), name
