"""Values of fields: addresses, text, bit fields, nested structures, arrays, unions, enums."""

from __future__ import annotations

import ctypes as ct
import json
import os
from typing import Any

import numpy as np
import pytest

from bpf.abi import ProgType
from bpf.compiler import Compiler
from bpf.maps.map import Map
from bpf.syscall import prog_test_run
from probes.tables.conversion import TableKind, TableSchema, columns, flat_rows, objects, schema_of
from probes.tables.map_layout import rows_of
from tests.probes.tables.sources import Sources

KEY = """
#include <uapi/linux/in6.h>
struct key {
    __be32 saddr; u32 daddr; __be16 sport; u16 dport; u8 proto; u8 h_source[6];
    struct in6_addr from; u64 dst_ip6[2]; u8 IPV6_NEXT_HOP[16];
};
BPF_HASH(m, struct key, u64);
"""


class Key(ct.Structure):
    _fields_ = [
        ("saddr", ct.c_uint8 * 4), ("daddr", ct.c_uint8 * 4), ("sport", ct.c_uint8 * 2),
        ("dport", ct.c_uint16), ("proto", ct.c_uint8), ("h_source", ct.c_uint8 * 6),
        ("pad", ct.c_uint8), ("from_", ct.c_uint8 * 16), ("pad2", ct.c_uint8 * 4),
        ("dst", ct.c_uint8 * 16), ("hop", ct.c_uint8 * 16),
    ]  # fmt: skip


def test_addresses_ports_and_macs_are_shown_as_such(sources: Sources) -> None:
    """S1.10: by their C types and names, never as raw bytes."""
    read = sources.read(KEY)
    key = Key(
        (192, 0, 2, 1), (198, 51, 100, 7), (0x01, 0xBB), 8080, 6, (2, 0, 0, 0, 0xAB, 1),
        from_=(0x20, 1, 0xD, 0xB8), dst=(0xFE, 0x80), hop=(0,) * 15 + (1,),
    )  # fmt: skip
    read.put(bytes(key), (2**63).to_bytes(8, "little"))
    assert read.objects() == [
        {
            "key": {
                "saddr": "192.0.2.1", "daddr": "198.51.100.7", "sport": 443, "dport": 8080,
                "proto": 6, "h_source": "02:00:00:00:ab:01", "from": "2001:db8::",
                "dst_ip6": "fe80::", "IPV6_NEXT_HOP": "::1",
            },
            "value": 2**63,
        }
    ]  # fmt: skip
    [row] = read.flat()
    assert row["key.saddr"] == "192.0.2.1"
    assert list(row)[-1] == "value"


VALUE = """
enum state { NEW = 1, OPEN, DONE = 7 };
struct inner { u8 a; u32 b; };
struct packed { u8 a; u32 b; u16 c; } __attribute__((packed));
struct value {
    enum state state; char comm[16]; u8 raw[3]; struct inner items[2]; s32 delta; _Bool ok;
    union { u32 word; u16 halves[2]; };
    union { u8 low; u16 both; } un;
    struct packed packed; u16 matrix[2][2]; unsigned __int128 big; __be64 stamp; u64 ip_count;
};
"""


class Inner(ct.Structure):
    _fields_ = [("a", ct.c_uint8), ("b", ct.c_uint32)]


class Packed(ct.Structure):
    _pack_ = 1
    _fields_ = [("a", ct.c_uint8), ("b", ct.c_uint32), ("c", ct.c_uint16)]


class Value(ct.Structure):
    _fields_ = [
        ("state", ct.c_uint32), ("comm", ct.c_char * 16), ("raw", ct.c_uint8 * 3),
        ("items", Inner * 2), ("delta", ct.c_int32), ("ok", ct.c_bool), ("word", ct.c_uint32),
        ("un", ct.c_uint16), ("packed", Packed), ("pad", ct.c_uint8 * 3),
        ("big", ct.c_uint64 * 2), ("stamp", ct.c_uint8 * 8), ("ip_count", ct.c_uint64),
    ]  # fmt: skip


def value(**more: Any) -> Value:
    made: dict[str, Any] = {
        "state": 2, "comm": b"probedeck", "raw": (1, 2, 3), "items": (Inner(1, 2), Inner(3, 4)),
        "delta": -5, "ok": True, "word": 0x00020001, "un": 0x0102, "packed": Packed(1, 2, 3),
        "big": (1, 2), "stamp": (0, 0, 0, 0, 0, 0, 1, 0), "ip_count": 9,
    }  # fmt: skip
    return Value(**{**made, **more})


SHOWN = {
    "state": "OPEN", "comm": "probedeck", "raw": [1, 2, 3],
    "items": [{"a": 1, "b": 2}, {"a": 3, "b": 4}], "delta": -5, "ok": True,
    "word": 0x00020001, "halves": [1, 2], "un": {"low": 2, "both": 0x0102},
    "packed": {"a": 1, "b": 2, "c": 3}, "big": 2 * 2**64 + 1, "stamp": 256, "ip_count": 9,
}  # fmt: skip
VALUE_MAP = VALUE.replace("u16 matrix[2][2]; ", "") + "BPF_HASH(m, u32, struct value);\n"


def test_nested_values_keep_their_structure(sources: Sources) -> None:
    """S1.10: structs, unions, arrays, packed structs, enums, text, truth values, 128 bits."""
    read = sources.read(VALUE_MAP)
    read.put(b"\1\0\0\0", bytes(value()))
    assert read.objects() == [{"key": 1, "value": SHOWN}]


def test_flat_rows_have_a_scalar_in_each_column(sources: Sources) -> None:
    """S1.10."""
    read = sources.read(VALUE_MAP)
    read.put(b"\1\0\0\0", bytes(value()))
    [row] = read.flat()
    assert row == {
        "key": 1, "value.state": "OPEN", "value.comm": "probedeck",
        "value.raw[0]": 1, "value.raw[1]": 2, "value.raw[2]": 3,
        "value.items[0].a": 1, "value.items[0].b": 2, "value.items[1].a": 3, "value.items[1].b": 4,
        "value.delta": -5, "value.ok": True, "value.word": 0x00020001,
        "value.halves[0]": 1, "value.halves[1]": 2, "value.un.low": 2, "value.un.both": 0x0102,
        "value.packed.a": 1, "value.packed.b": 2, "value.packed.c": 3,
        "value.big": 2 * 2**64 + 1, "value.stamp": 256, "value.ip_count": 9,
    }  # fmt: skip


def test_a_number_without_a_name_stays_one(sources: Sources) -> None:
    read = sources.read(VALUE_MAP)
    read.put(b"\1\0\0\0", bytes(value(state=5)))
    assert read.objects()[0]["value"]["state"] == 5


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", ""),
        (b"exactly16charsxx", "exactly16charsxx"),
        ("größe".encode(), "größe"),
        (b"a\0b", r"a\x00b"),
        (b"\xff\x1b[31m", r"\xff\x1b[31m"),
        (b"\\x00", r"\\x00"),
        ("\u2028".encode(), r"\u2028"),
    ],
)
def test_text_hides_no_byte(raw: bytes, text: str) -> None:
    rows = np.zeros(1, [("key", "u4"), ("value", "i1", (16,))])
    rows["value"][0, : len(raw)] = np.frombuffer(raw, "i1")
    per_value = rows.view([("key", "u4"), ("value", [("t", "i1", (16,))])])
    schema = TableSchema(TableKind.HASH, fields={"value.t": "text"})
    assert next(objects(schema, per_value))["value"]["t"] == text


def test_bit_fields_are_cut_out_of_their_words(compiler: Compiler) -> None:
    """S1.10: a table shows the values that a program stores."""
    stored = {
        "a": 1, "b": 99, "c": 0xABC, "d": 9, "e": -7, "f": 200, "g": 2**39 + 5, "h": 77,
        "in_struct": 5, "in_union": 2, "last": 1, "plain": 1, "deep": 21,
    }  # fmt: skip
    values = ", ".join(f".{name} = {number}ULL" for name, number in stored.items())
    source = f"""
struct bits {{
    u8 a:1; u8 b:7; u16 c:12; u16 d:4; int e:5; u8 f; u64 g:40; u64 h:24;
    struct {{ u32 :3; u32 in_struct:9; }}; union {{ u8 in_union:2; }};
    u16 :0; u16 last:1; u32 :0; u8 plain; u32 deep:5;
}};
BPF_HASH(m, u32, struct bits);
int program(struct xdp_md *ctx) {{
    struct bits value = {{ {values.replace("-7ULL", "-7")} }};
    u32 key = 1;
    m.update(&key, &value);
    return XDP_PASS;
}}
"""
    with compiler.compile(source, ProgType.XDP) as compiled:
        found = compiled.maps["m"]
        schema = schema_of(found)
        prog_test_run(compiled.programs["program"].loaded(), bytes(64))
        with Map(os.dup(found.fd), found.spec, found.key, found.value) as map_:
            [entry] = objects(schema, rows_of(map_.read(), ""))
    assert entry["value"] == stored


def stored(compiler: Compiler, declared: str, type_: str, code: str, **more: Any) -> Any:
    """Return the export of a value that a program stores."""
    source = f"""{declared}
BPF_ARRAY(m, {type_}, 1);
int program(struct xdp_md *ctx)
{{
    u32 key = 0;
    {type_} value = {{}};
    {code}
    m.update(&key, &value);
    return XDP_PASS;
}}
"""
    with compiler.compile(source, ProgType.XDP) as compiled:
        found = compiled.maps["m"]
        schema = schema_of(found, **more)
        prog_test_run(compiled.programs["program"].loaded(), bytes(64))
        with Map(os.dup(found.fd), found.spec, found.key, found.value) as map_:
            rows = rows_of(map_.read(), "")
    [entry] = objects(schema, rows)
    [row] = flat_rows(schema, rows)
    names = columns(schema, rows.dtype)
    assert len(names) == len(row)
    return json.loads(json.dumps(entry["value"]))


def test_headers_of_packets_are_shown_as_they_are(compiler: Compiler) -> None:
    """S1.10: `struct iphdr` and its like, filled in network order as a packet has them."""
    headers = "".join(f"#include <uapi/linux/{n}.h>\n" for n in ("if_ether", "ip", "ipv6", "tcp"))
    types = headers + "struct v { struct ethhdr e; struct iphdr i; struct tcphdr t; };\n"
    code = """
    value.e.h_proto = htons(0x0800); value.e.h_dest[5] = 7;
    value.i.ihl = 5; value.i.version = 4; value.i.tot_len = htons(100); value.i.ttl = 64;
    value.i.check = htons(0xabcd); value.i.saddr = htonl(0x0a000001);
    value.t.source = htons(80); value.t.seq = htonl(70000); value.t.doff = 5;
    value.t.syn = 1; value.t.window = htons(512);
    """
    value = stored(compiler, types, "struct v", code)
    assert (value["e"]["h_proto"], value["e"]["h_dest"]) == (0x0800, "00:00:00:00:00:07")
    ip, tcp = value["i"], value["t"]
    assert [ip[n] for n in ("ihl", "version", "tot_len", "ttl")] == [5, 4, 100, 64]
    assert (ip["check"], ip["saddr"], ip["addrs"]["saddr"]) == (0xABCD, "10.0.0.1", "10.0.0.1")
    assert [tcp[n] for n in ("source", "seq", "doff", "window")] == [80, 70000, 5, 512]
    assert [tcp[n] for n in ("syn", "ack", "fin", "cwr", "res1")] == [1, 0, 0, 0, 0]


def test_bit_fields_wherever_they_lie(compiler: Compiler) -> None:
    """S1.10: of truth values, packed, with a sign, of an enum, behind an anonymous union."""
    types = """
    enum color { RED = 1, BLUE = 6 };
    struct packed { u8 a:6; u8 b:8; s32 c:20; u32 ip:32; } __attribute__((packed));
    struct v {
    #if defined(__BIG_ENDIAN_BITFIELD)
        u8 version:4, ihl:4;
    #else
        u8 ihl:4, version:4;
    #endif
        bool x:1, y:1, z:1; union { u32 v4; u64 w; }; u8 proto:4, ver:4; enum color color:3;
        struct packed p; u32 saddr:24;
    };
    """
    code = """
    value.ihl = 5; value.version = 4; value.y = 1; value.w = 9; value.proto = 6; value.ver = 4;
    value.color = BLUE; value.p.a = 9; value.p.b = 101; value.p.c = -3; value.p.ip = 0x0100000a;
    value.saddr = 77;
    """
    typed = {"value.p.ip": "ipv4", "value.y": "host"}
    value = stored(compiler, types, "struct v", code, types=typed)
    assert [value[name] for name in "xyz"] == [False, 1, False]
    assert type(value["x"]) is bool
    assert value == {
        "ihl": 5, "version": 4, "x": False, "y": 1, "z": False, "v4": 9, "w": 9, "proto": 6,
        "ver": 4, "color": "BLUE", "p": {"a": 9, "b": 101, "c": -3, "ip": "10.0.0.1"}, "saddr": 77,
    }  # fmt: skip


def test_arrays_of_arrays_and_of_typedefs(compiler: Compiler) -> None:
    """S1.10."""
    types = """
    typedef u8 mac_t[6]; typedef u32 pair_t[2];
    struct v { u64 packets[2][3]; mac_t mac; mac_t macs[2]; pair_t pairs[2]; char names[2][4];
               u16 y[sizeof(u64)]; struct { __be32 hops[2]; } by[2]; };
    """
    code = """
    value.packets[1][2] = 12; value.mac[0] = 2; value.macs[1][5] = 3; value.pairs[1][0] = 4;
    value.names[1][0] = 'x'; value.y[7] = 8; value.by[1].hops[0] = htonl(0x0a000001);
    """
    value = stored(compiler, types, "struct v", code, types={"value.by[].hops[]": "ipv4"})
    assert value["packets"] == [[0, 0, 0], [0, 0, 12]]
    assert value["mac"] == "02:00:00:00:00:00"
    assert value["macs"] == ["00:00:00:00:00:00", "00:00:00:00:00:03"]
    assert value["pairs"] == [[0, 0], [4, 0]]
    assert value["names"] == ["", "x"]
    assert value["y"] == [0] * 7 + [8]
    assert value["by"] == [{"hops": ["0.0.0.0", "0.0.0.0"]}, {"hops": ["10.0.0.1", "0.0.0.0"]}]


def test_both_kinds_of_address_in_a_union_are_addresses(compiler: Compiler) -> None:
    """S1.10: `v4` says it by its type or by the union's name."""
    types = """
    #include <uapi/linux/in6.h>
    struct v {
        union { __be32 v4; struct in6_addr v6; } saddr; union { u32 v4; u8 v6[16]; } daddr;
        union { __be32 v4; u8 v6[16]; } who; struct { u32 v4, v6; } packets; __be32 v4;
        struct { u32 in, out; } ip;
    };
    """
    code = """
    value.saddr.v4 = value.daddr.v4 = value.who.v4 = value.v4 = htonl(0x0a000001);
    value.packets.v4 = 5; value.ip.in = 6;
    """
    value = stored(compiler, types, "struct v", code)
    for name in ("saddr", "daddr", "who"):
        assert value[name] == {"v4": "10.0.0.1", "v6": "a00:1::"}
    assert value["v4"] == "10.0.0.1"
    assert value["packets"] == {"v4": 5, "v6": 0}
    assert value["ip"] == {"in": 6, "out": 0}


def test_an_enum_may_be_negative(compiler: Compiler) -> None:
    types = "enum e { BAD = -2, GOOD = 1 };\nstruct v { enum e a, b, c; };\n"
    value = stored(compiler, types, "struct v", "value.a = BAD; value.b = GOOD; value.c = -7;")
    assert value == {"a": "BAD", "b": "GOOD", "c": -7}
