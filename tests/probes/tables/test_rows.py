"""Rows of a table: of each kind of map, of each CPU, aggregated, as histograms, and many."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpf.machine import possible_cpus
from probes.tables.conversion import TableKind, TableSchema, flat_rows, objects
from tests.probes.tables.sources import Sources
from tests.probes.tables.test_values import Inner


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


@given(st.binary(min_size=20, max_size=20))
def test_shown_as_hex_no_byte_is_lost(raw: bytes) -> None:
    dtype = np.dtype([("key", "u4"), ("value", [("a", "u4"), ("b", "u1", (12,))])])
    rows = np.frombuffer(raw, dtype).copy()
    schema = TableSchema(TableKind.HASH, fields={"value.b": "hex", "value.a": "hex", "key": "hex"})
    [entry] = objects(schema, rows)
    found = int(entry["key"], 16).to_bytes(4, "little")
    found += int(entry["value"]["a"], 16).to_bytes(4, "little")
    assert found + bytes.fromhex(entry["value"]["b"]) == raw
