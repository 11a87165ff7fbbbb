"""Snapshots as bytes: exact there and back, and nothing else is believed."""

from __future__ import annotations

import json
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from app.api import wire
from app.api.wire import Decoder, Lost, MalformedError, WireRecord, encode
from bpf.maps.layout import described
from probes.flow.records import FLOW
from probes.path.records import HOP, PATH
from probes.snapshot import Event, Loss, LossReason, Snapshot
from probes.tables.conversion import TableKind, TableSchema

UNION = ["u", [["address", "unsigned int"], ["bytes", "unsigned char", [4]]], "union"]
KEY = ["key", [["to", UNION], ["port", "unsigned short"], ["half", "unsigned int"]], "struct"]


def dtype_of(described_by: list[Any]) -> np.dtype[Any]:
    return described(json.dumps(described_by)).dtype


LAYOUTS = [
    dtype_of(KEY),
    dtype_of(["all", [["k", KEY], ["v", "unsigned __int128"]], "struct"]),
    np.dtype([("key", dtype_of(KEY)), ("value", dtype_of(UNION), (4,))]),
    np.dtype([("key", "<u4"), ("value", ">f8", (2, 3)), ("name", "S16"), ("on", "?")]),
    np.dtype([("at", "M8[ns]"), ("for", "m8[25us]")]),
    np.dtype({"names": ["a"], "formats": ["u2"], "offsets": [6], "itemsize": 32}),
    np.dtype([("a", "u1"), ("b", "u8")], align=True),
    np.dtype({"names": ["a", "b"], "formats": ["u1", "V3"], "offsets": [0, 0], "itemsize": 3}),
    FLOW,
    HOP,
    PATH,
]


def snapshot(dtype: np.dtype[Any], rows: int = 5) -> Snapshot:
    random = np.random.default_rng(1).bytes(dtype.itemsize * rows)
    return Snapshot(
        probe="counter",
        interface="eth0",
        window=3,
        generation=2,
        start_ns=10**18,
        end_ns=10**18 + 1,
        end_utc_ns=2**62,
        rows=np.ndarray((rows,), dtype, random),
        losses={LossReason.TABLE_FULL: Loss(3, 180)},
        occupancy=0.25,
        swap_ns=4,
        drain_ns=5,
        side="egress",
        metric="packets",
        schema=TableSchema(TableKind.LPM, "help", {"key.a": "ipv4"}, {"value.b": {1: "ONE"}}),
    )


def decoded(data: bytes, piece: int = 1 << 20) -> list[WireRecord]:
    decoder = Decoder()
    parts = [data[at : at + piece] for at in range(0, len(data), piece)]
    records = [record for part in parts for record in decoder.feed(part)]
    decoder.end()
    return records


def header(**changes: Any) -> bytes:
    """A snapshot's, and three rows, with `changes` in the header."""
    data = encode(snapshot(np.dtype([("key", "<u4")]), rows=3))
    size = int.from_bytes(data[:4], "big")
    text = json.dumps(json.loads(data[4 : 4 + size]) | changes).encode()
    return len(text).to_bytes(4, "big") + text + data[4 + size :]


@pytest.mark.parametrize("dtype", LAYOUTS, ids=str)
@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_a_snapshot_comes_back_as_it_was(dtype: np.dtype[Any], piece: int) -> None:
    """S1.10: of any layout, with gaps, overlaps and dimensions."""
    sent = snapshot(dtype)
    (got,) = decoded(encode(sent), piece)
    assert isinstance(got, Snapshot)
    for name in Snapshot.__slots__:
        if name != "rows":
            assert getattr(got, name) == getattr(sent, name), name
    assert got.rows.dtype == dtype
    assert got.rows.dtype.itemsize == dtype.itemsize
    assert got.rows.dtype.isalignedstruct == dtype.isalignedstruct
    assert got.rows.tobytes() == sent.rows.tobytes()
    assert not got.rows.flags.writeable


def test_losses_of_any_mapping_are_sent() -> None:
    """Tables of built-in probes without losses share one empty mapping that nobody can change."""
    sent = replace(snapshot(PATH), losses=MappingProxyType({}))
    (got,) = decoded(encode(sent))
    assert isinstance(got, Snapshot)
    assert got.losses == {}


@pytest.mark.parametrize("rows", [0, 1])
def test_a_built_in_probes_table_has_no_schema(rows: int) -> None:
    (got,) = decoded(
        encode(Snapshot("flow", "lo", 1, 1, 0, 1, 2, np.zeros(rows, FLOW), {}, 0, 0, 0))
    )
    assert isinstance(got, Snapshot)
    assert (got.schema, got.metric, got.losses, len(got.rows)) == (None, "", {}, rows)


def test_what_is_no_snapshot_comes_back_too() -> None:
    event = Event(2**62, "warning", "eth0", "ärger\n\x1b[31m")
    lost = Lost({"counter": 3}, 2)
    unknown = len(b'{"later": 1}').to_bytes(4, "big") + b'{"later": 1}'
    stream = encode(event) + wire.ALIVE + unknown + encode(lost)
    assert decoded(stream, 3) == [event, lost]


@pytest.mark.parametrize(
    "junk",
    [
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x02[]",
        b"\x00\x00\x00\x04nope",
        len(b"[" * 100_000).to_bytes(4, "big") + b"[" * 100_000,
        b"\x00\x00\x00\x0d" + b'{"event": {}}',
        header(bytes=1 << 40),
        header(bytes=-1),
        header(bytes="12"),
        header(rows=4),
        header(rows=-3),
        header(rows=1 << 62),
        header(snapshot={}),
        header(snapshot=None),
        header(dtype="|O"),
        header(dtype=["<u4", "3"]),
        header(dtype=["<u4", [1 << 40, 1 << 40]]),
        header(dtype="(2,3)i4,object"),
        header(dtype={"names": ["a"], "formats": ["|O"], "offsets": [0], "itemsize": 8}),
        header(dtype={"names": ["a"], "formats": ["<u4"], "offsets": [-4], "itemsize": 4}),
        header(dtype={"names": ["a"], "formats": ["<u4"], "offsets": [8], "itemsize": 4}),
        header(dtype={"names": [], "formats": [], "offsets": [], "itemsize": 0, "aligned": 0}),
        header(dtype=None),
        header(dtype=7),
    ],
)
def test_a_hostile_stream_is_refused_in_words(junk: bytes) -> None:
    with pytest.raises(MalformedError, match="the stream holds a record"):
        decoded(junk)


def test_a_stream_that_ends_early_is_noticed() -> None:
    whole = encode(snapshot(LAYOUTS[0]))
    for size in (2, 40, len(whole) - 1):
        with pytest.raises(MalformedError, match="within a record"):
            decoded(whole[:size])


def test_layouts_of_the_same_names_are_told_apart() -> None:
    kinds = [np.dtype([("key", kind)]) for kind in ("<u4", ">u4", "<f4", "<u4")]
    sent = [snapshot(kind) for kind in kinds]
    got = decoded(b"".join(map(encode, sent)))
    assert [one.rows.dtype for one in got if isinstance(one, Snapshot)] == kinds


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_a_table_beyond_the_readers_limit_is_a_lost_window(piece: int) -> None:
    small, large = snapshot(LAYOUTS[-1], 1), snapshot(LAYOUTS[-1], 3)
    data = encode(small) + encode(large) + encode(small)
    decoder = Decoder(max_rows=small.rows.nbytes)
    parts = [data[at : at + piece] for at in range(0, len(data), piece)]
    first, lost, last = [record for part in parts for record in decoder.feed(part)]
    decoder.end()
    assert lost == Lost({"counter": 1}, cause=f"a table of {large.rows.nbytes} bytes is too large")
    assert isinstance(first, Snapshot)
    assert isinstance(last, Snapshot)
    assert len(first.rows) == len(last.rows) == 1
