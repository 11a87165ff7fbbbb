"""Tables: maps of the kernel, filled byte by byte by ctypes, and a reader's view of them."""

from __future__ import annotations

import ctypes as ct
import json
import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpf.abi import MapType, ProgType
from bpf.compiler import Compiled, CompiledMap, Compiler
from bpf.cpus import possible_cpus
from bpf.errors import UsageError
from bpf.maps.ctype import CType, Member, array_of, record
from bpf.maps.map import Map
from bpf.syscall import MapSpec, map_update, prog_test_run
from probes.program.metrics import rows_of
from probes.tables.conversion import TableKind, TableSchema, columns, flat_rows, objects, schema_of

PROGRAM = "int program(struct xdp_md *ctx) { return XDP_PASS; }\n"


class Read:
    """A map's entries, as a reader gets them."""

    def __init__(self, compiled: Compiled, name: str, **types: Any) -> None:
        found = compiled.maps[name]
        self.schema = schema_of(found, **types)
        self._found = found
        self.map = Map.create(found.spec, found.key, found.value)

    def put(self, key: bytes | None, value: bytes) -> None:
        """Store an entry, byte for byte; a per-CPU map's value has every CPU's part."""
        map_update(self.map.fd, key, value)

    def rows(self, agg: str = "") -> Any:
        return rows_of(self.map.read(), agg)

    def objects(self) -> list[dict[str, Any]]:
        found = list(objects(self.schema, self.rows()))
        json.dumps(found)  # Python's own values
        return found

    def flat(self) -> list[dict[str, Any]]:
        rows = self.rows()
        names = columns(self.schema, rows.dtype)
        assert len(set(names)) == len(names)
        return [dict(zip(names, row, strict=True)) for row in flat_rows(self.schema, rows)]


class Sources:
    """Compiles sources, and opens maps of them."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._open: list[Any] = []

    def read(self, source: str, name: str = "m", **types: Any) -> Read:
        compiled = self._compiler.compile(source + PROGRAM, ProgType.XDP)
        self._open.append(compiled)
        read = Read(compiled, name, **types)
        self._open.append(read.map)
        return read

    def close(self) -> None:
        for each in self._open:
            each.close()


@pytest.fixture
def sources(compiler: Compiler) -> Any:
    made = Sources(compiler)
    yield made
    made.close()


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
        prog_test_run(compiled.programs["program"].fd, bytes(64))
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
        prog_test_run(compiled.programs["program"].fd, bytes(64))
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


def test_each_cpu_has_a_row_or_an_item_of_a_list(sources: Sources) -> None:
    """S1.11: empty `agg` means one value per CPU."""
    read = sources.read(
        "struct inner { u8 a; u32 b; };\nBPF_PERCPU_HASH(m, u32, struct inner, 4);\n"
    )
    cpus = possible_cpus()
    read.put(b"\1\0\0\0", b"".join(bytes(Inner(1, cpu)) for cpu in range(cpus)))
    [entry] = read.objects()
    assert entry["key"] == 1
    assert entry["value"] == [{"a": 1, "b": cpu} for cpu in range(cpus)]
    assert read.flat() == [
        {"key": 1, "cpu": cpu, "value.a": 1, "value.b": cpu} for cpu in range(cpus)
    ]


def test_an_aggregate_is_one_value(sources: Sources) -> None:
    """S1.11: also if the type is wider than the aggregated one, or a mean."""
    read = sources.read(
        "struct v { u32 saddr; u64 n; enum { A, B } kind; char name[4]; };\n"
        "BPF_PERCPU_HASH(m, u32, struct v, 4);\n"
    )
    cpus = possible_cpus()
    one = b"\1\0\0\0" + bytes(4) + (10).to_bytes(8, "little") + b"\1\0\0\0" + b"abcd"
    read.put(b"\1\0\0\0", one * cpus)
    for agg, times in (("sum", cpus), ("avg", 1)):
        [entry] = objects(read.schema, read.rows(agg))
        assert entry["value"]["n"] == 10 * times
        assert entry["value"]["saddr"] == times
        [row] = flat_rows(read.schema, read.rows(agg))
        assert all(isinstance(each, (int, float, str)) for each in row)


def test_an_array_has_an_index_and_a_queue_a_position(sources: Sources) -> None:
    array = sources.read("BPF_ARRAY(m, u64, 3);\n")
    array.put(b"\1\0\0\0", (7).to_bytes(8, "little"))
    assert array.flat() == [{"index": i, "value": 7 * (i == 1)} for i in range(3)]
    queue = sources.read("struct inner { u8 a; u32 b; };\nBPF_QUEUE(m, struct inner, 4);\n")
    assert queue.schema.kind == TableKind.QUEUE
    for number in (5, 6):
        queue.put(None, bytes(Inner(1, number)))
    assert queue.objects() == [
        {"position": 0, "value": {"a": 1, "b": 5}},
        {"position": 1, "value": {"a": 1, "b": 6}},
    ]


@pytest.mark.parametrize(
    ("key", "raw", "prefix"),
    [
        ("u32 prefixlen; u32 addr;", b"\x08\0\0\0\x0a\0\0\0", "10.0.0.0/8"),
        ("u32 prefixlen; u8 data[4];", b"\x18\0\0\0\xc0\0\2\0", "192.0.2.0/24"),
        ("u32 len; u8 data[16];", b"\x20\0\0\0\x20\x01\x0d\xb8" + bytes(12), "2001:db8::/32"),
    ],
)
def test_a_key_of_an_lpm_trie_is_a_prefix(
    sources: Sources, key: str, raw: bytes, prefix: str
) -> None:
    """S1.10."""
    read = sources.read(f"struct key {{ {key} }};\nBPF_LPM_TRIE(m, struct key);\n")
    read.put(raw, (3).to_bytes(8, "little"))
    assert read.objects() == [{"key": prefix, "value": 3}]
    assert read.flat() == [{"key": prefix, "value": 3}]


def test_an_lpm_key_with_more_in_it_is_a_struct(sources: Sources) -> None:
    read = sources.read(
        "struct key { u32 prefixlen; u32 vrf; u32 addr; };\nBPF_LPM_TRIE(m, struct key);\n"
    )
    read.put(b"\x28\0\0\0\1\0\0\0\x0a\0\0\0", bytes(8))
    assert read.objects()[0]["key"] == {"prefixlen": 40, "vrf": 1, "addr": "10.0.0.0"}


def test_a_histogram_has_ranges_and_ends_with_its_last_count(sources: Sources) -> None:
    read = sources.read("BPF_HISTOGRAM(m);\n")
    for slot, count in ((1, 4), (2, 5), (4, 6)):
        read.put(slot.to_bytes(4, "little"), count.to_bytes(8, "little"))
    assert read.schema.kind == TableKind.HISTOGRAM
    assert [tuple(row.values()) for row in read.flat()] == [
        (0, 0, 0, 0), (1, 0, 1, 4), (2, 2, 3, 5), (3, 4, 7, 0), (4, 8, 15, 6),
    ]  # fmt: skip
    assert list(read.flat()[0]) == ["slot", "low", "high", "count"]
    assert read.objects()[2] == {"slot": 2, "low": 2, "high": 3, "count": 5}


def test_an_empty_histogram_has_no_rows(sources: Sources) -> None:
    assert sources.read("BPF_HISTOGRAM(m);\n").objects() == []


def test_a_histogram_may_be_linear(sources: Sources) -> None:
    read = sources.read("BPF_HISTOGRAM(m);\n", types={"slot": "linear"})
    read.put(b"\3\0\0\0", b"\1" + bytes(7))
    assert read.objects()[3] == {"slot": 3, "low": 3, "high": 3, "count": 1}


def test_a_histogram_for_each_of_something(sources: Sources) -> None:
    read = sources.read("struct key { u32 daddr; u64 slot; };\nBPF_HISTOGRAM(m, struct key);\n")
    read.put(b"\x0a\0\0\1" + bytes(4) + (3).to_bytes(8, "little"), b"\2" + bytes(7))
    expected = {"key": {"daddr": "10.0.0.1"}, "slot": 3, "low": 4, "high": 7, "count": 2}
    assert read.objects() == [expected]
    assert read.flat() == [{"key.daddr": "10.0.0.1", "slot": 3, "low": 4, "high": 7, "count": 2}]


def test_a_slot_that_is_no_logarithm_is_itself(sources: Sources) -> None:
    read = sources.read("BPF_HISTOGRAM(m, u64);\n")
    read.put((2**40).to_bytes(8, "little"), b"\1" + bytes(7))
    assert read.objects() == [{"slot": 2**40, "low": 2**40, "high": 2**40, "count": 1}]


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
    ],
)
def test_an_operator_says_what_a_field_is(
    sources: Sources, types: Mapping[str, str], field: str, shown: Any
) -> None:
    """S1.10."""
    read = sources.read(TYPED, types=types)
    key = b"\x0a\0\0\1\xff\xfe\0\0\0\1" + bytes(6) + (2**64 - 2).to_bytes(8, "little")
    read.put(key + b"\x20\x01\x0d\xb8" + bytes(12), bytes(8))
    assert read.objects()[0]["key"][field] == shown


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


@given(st.binary(min_size=20, max_size=20))
def test_shown_as_hex_no_byte_is_lost(raw: bytes) -> None:
    dtype = np.dtype([("key", "u4"), ("value", [("a", "u4"), ("b", "u1", (12,))])])
    rows = np.frombuffer(raw, dtype).copy()
    schema = TableSchema(TableKind.HASH, fields={"value.b": "hex", "value.a": "hex", "key": "hex"})
    [entry] = objects(schema, rows)
    found = int(entry["key"], 16).to_bytes(4, "little")
    found += int(entry["value"]["a"], 16).to_bytes(4, "little")
    assert found + bytes.fromhex(entry["value"]["b"]) == raw


@pytest.mark.timing
def test_a_hundred_thousand_rows_take_little_time() -> None:
    key = np.dtype([("saddr", "u4"), ("daddr", "u4"), ("sport", "u2"), ("dport", "u2")])
    value_ = np.dtype([("packets", "u8"), ("bytes", "u8")])
    rows = np.zeros(100_000, [("key", key), ("value", value_)])
    rows["key"]["saddr"] = np.arange(100_000)
    schema = TableSchema(
        TableKind.HASH,
        fields={"key.saddr": "ipv4", "key.daddr": "ipv4", "key.sport": "be", "key.dport": "be"},
    )
    for read in (flat_rows, objects):
        started = time.process_time()
        assert sum(1 for _ in read(schema, rows)) == 100_000
        assert time.process_time() - started < 1  # 0.15 on an idle machine
