"""Metrics of probes as Parquet files and JSON lines: the rows of `-o DIR`, and their types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.exporters.files.query import asked
from app.outputs.sink import Sink
from app.outputs.view import ColumnType
from probes.snapshot import Item, Snapshot
from probes.tables.conversion import TableKind, TableSchema, column_types, columns
from tests.app.exporters.files.made import output
from tests.app.outputs.test_metric_files import flows, metric, narrow, wide
from tests.support.tables import records_in

KEY: Any = [("saddr", "u4"), ("kind", "u4"), ("mac", "u1", (6,))]
VALUE: Any = [
    ("packets", "u8"), ("Packets", "i4"), ("mean", "f8"), ("seen", "u8"), ("up", "u1"),
    ("wide", "V16"), ("parts", "u2", (2,)),
]  # fmt: skip
FIELDS = {"key.saddr": "ipv4", "key.mac": "mac", "value.seen": "time", "value.up": "bool"}
SCHEMA = TableSchema(TableKind.HASH, "", FIELDS, {"key.kind": {1: "syn"}})


def every_type() -> Snapshot:
    rows = np.zeros(2, [("key", KEY), ("value", VALUE)])
    rows["key"]["saddr"] = np.frombuffer(bytes((192, 0, 2, 1)), "u4")
    rows["key"]["kind"] = 1, 9
    rows["value"]["packets"] = 2**64 - 1, 3
    rows["value"]["Packets"] = -7
    rows["value"]["mean"] = 0.5
    rows["value"]["seen"] = 10**12, 0
    rows["value"]["up"] = 0, 4
    return metric(rows, SCHEMA)


def per_cpu() -> Snapshot:
    rows = np.zeros(2, [("key", "u2"), ("value", "u8", (3,))])
    rows["key"], rows["value"] = (1, 2), [[1, 2, 3], [4, 5, 6]]
    return metric(rows, name="cpus")


def histogram() -> Snapshot:
    rows = np.zeros(65, [("key", "u4"), ("value", "u8")])
    rows["key"], rows["value"][[1, 64]] = np.arange(65), 2
    return metric(rows, TableSchema(TableKind.HISTOGRAM), name="sizes")


ITEMS = (every_type(), per_cpu(), histogram(), metric(wide(), name="more", side="egress"))


def written(url: str, *items: Item) -> int:
    """Write items as a run does. Returns the records."""
    exporter, lost = output(url)
    for item in items:
        exporter.deliver(item, 0)
    exporter.close()
    assert not lost
    return sum(map(exporter.records, items))


def selected(directory: Path, query: str) -> list[dict[str, Any]]:
    with asked(str(directory), query) as answer:
        return [dict(zip(answer.header, row, strict=True)) for row in answer.rows]


def test_json_lines_are_those_of_a_directory(tmp_path: Path) -> None:
    records = written(f"jsonl:{tmp_path}/a?tables=metrics", *ITEMS, flows())
    assert records == sum(len(item.rows) for item in ITEMS)
    with Sink(str(tmp_path / "b"), "jsonl", [], metrics=True) as sink:
        for item in ITEMS:
            sink.write(item)
    for file in (tmp_path / "b").iterdir():
        (own,) = (tmp_path / "a" / file.stem).iterdir()
        assert own.read_text() == file.read_text()
    assert len(list((tmp_path / "a").iterdir())) == len(ITEMS)


def test_parquet_has_the_columns_and_values_of_csv(tmp_path: Path) -> None:
    written(f"parquet:{tmp_path}/a", *ITEMS)
    with Sink(str(tmp_path / "b"), "csv", [], metrics=True) as sink:
        for item in ITEMS:
            sink.write(item)
    for file in (tmp_path / "b").iterdir():
        found = selected(tmp_path / "a", f'select * from "{file.stem}"')
        expected = records_in(file)
        assert len(found) == len(expected) > 0
        for row, wanted in zip(found, expected, strict=True):
            # DuckDB tells apart names that differ by case only.
            for (name, text), value in zip(wanted.items(), row.values(), strict=True):
                assert _text(value, text) == text.lower(), name


def _text(value: Any, text: str) -> str:
    if value is None:
        return ""
    if hasattr(value, "isoformat"):
        return f"{value.isoformat(timespec='microseconds')}{text[26:]}".lower()
    return str(value).lower()


def test_types_follow_the_fields_not_the_values() -> None:
    item = ITEMS[0]
    assert item.schema is not None
    dtype = item.rows.dtype
    found = dict(zip(columns(SCHEMA, dtype), column_types(SCHEMA, dtype), strict=True))
    assert found == {
        "key.saddr": ColumnType.TEXT, "key.kind": ColumnType.TEXT, "key.mac": ColumnType.TEXT,
        "value.packets": ColumnType.UNSIGNED, "value.Packets": ColumnType.INTEGER,
        "value.mean": ColumnType.FLOAT, "value.seen": ColumnType.TIME,
        "value.up": ColumnType.TRUTH, "value.wide": ColumnType.TEXT,
        "value.parts[0]": ColumnType.UNSIGNED, "value.parts[1]": ColumnType.UNSIGNED,
    }  # fmt: skip


@pytest.mark.parametrize("scheme", ["parquet", "jsonl"])
def test_other_columns_of_a_replacement_go_on_in_the_same_table(
    tmp_path: Path, scheme: str
) -> None:
    written(f"{scheme}:{tmp_path}", metric(narrow()), metric(wide(), generation=2))
    query = 'select "schema", generation from "mine.ingress.hits" order by 2'
    found = selected(tmp_path, query)
    assert [row["generation"] for row in found] == [1, 1, 2]
    assert len({row["schema"] for row in found}) == 2


def test_chosen_tables_have_no_metrics_unless_named(tmp_path: Path) -> None:
    assert written(f"jsonl:{tmp_path}/a?tables=windows", ITEMS[0]) == 1
    assert [each.name for each in (tmp_path / "a").iterdir()] == ["windows"]
    written(f"jsonl:{tmp_path}/b?tables=windows,metrics", metric(narrow(), name="json"))
    assert {each.name for each in (tmp_path / "b").iterdir()} == {"windows", "mine.ingress.json"}
    (row,) = selected(tmp_path / "b", 'select count(*) n from "mine.ingress.json"')
    assert row == {"n": 2}
    (file,) = (tmp_path / "b" / "windows").iterdir()
    assert json.loads(file.read_text())["metric"] == "json"
