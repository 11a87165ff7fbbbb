"""Metrics as files and as one export's text, parsed back and compared with the maps' contents."""

from __future__ import annotations

import csv
import io
import json
import os
import resource
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from app.outputs.document import document
from app.outputs.formats import FORMATS
from app.outputs.sink import Sink
from app.outputs.views import VIEWS, counted
from bpf.errors import UsageError
from probes.flow.records import FLOW
from probes.snapshot import Event, Loss, LossReason, Snapshot
from probes.tables.conversion import TableKind, TableSchema
from tests.support.tables import element_value, records_in, rows_in

END = 10**12
UTC = 1_767_225_600_123_456_789
NARROW: Any = [("key", [("saddr", "u4"), ("port", "u2")]), ("value", "u8")]
WIDE: Any = [("key", "u4"), ("value", [("packets", "u8"), ("items", [("a$b", "u4")], (2,))])]
ADDRESSED = TableSchema(
    TableKind.HASH, "packets & <bytes>", {"key.saddr": "ipv4", "key.port": "be"}
)
PLAIN = TableSchema(TableKind.HASH)


def metric(
    rows: Any,
    schema: TableSchema = PLAIN,
    *,
    name: str = "hits",
    side: str = "ingress",
    window: int = 1,
    generation: int = 1,
    probe: str = "mine",
    losses: Any = None,
) -> Snapshot:
    return Snapshot(
        probe, "eth0", window, generation, END - 10**9, END, UTC, rows, losses or {}, 0.25, 50_000,
        1_000_000, side, name, schema,
    )  # fmt: skip


def narrow(count: int = 2) -> Any:
    rows = np.zeros(count, NARROW)
    rows["key"]["saddr"] = np.frombuffer(bytes((192, 0, 2, 1)), "u4")
    rows["key"]["port"] = np.frombuffer(b"\x01\xbb", "u2")
    rows["value"] = 2**63 + np.arange(count, dtype="u8")
    return rows


def wide(count: int = 1) -> Any:
    rows = np.zeros(count, WIDE)
    rows["value"]["packets"] = 7
    rows["value"]["items"]["a$b"] = [[1, 2]] * count
    return rows


def flows() -> Snapshot:
    rows = np.zeros(2, FLOW)
    rows["interface"] = b"eth0"
    rows["version"], rows["packets"], rows["bytes"] = 4, 3, 200
    return Snapshot("flow", "eth0", 1, 1, END - 10**9, END, UTC, rows, {}, 0.25, 50_000, 1_000_000)


ABOUT = {
    "probe": "mine", "side": "ingress", "metric": "hits", "interface": "eth0", "window": 1,
    "start": "2025-12-31T23:59:59.123456789Z", "end": "2026-01-01T00:00:00.123456789Z",
    "generation": 1,
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_for_each_metric_holds_what_its_map_held(tmp_path: Path, name: str) -> None:
    """S1.2, S1.10."""
    with Sink(str(tmp_path), name, [], metrics=True) as sink:
        sink.write(metric(narrow(), ADDRESSED))
        sink.write(metric(wide(), name="more", side="egress"))
    assert {path.name for path in tmp_path.iterdir()} == {
        f"mine.ingress.hits.{name}", f"mine.egress.more.{name}",
    }  # fmt: skip
    first = records_in(tmp_path / f"mine.ingress.hits.{name}")
    schema = first[0].pop("schema")
    assert schema.startswith("mine.ingress.hits/")
    values = [2**63, 2**63 + 1]
    assert [int(row["value"]) for row in first] == values
    key = {"saddr": "192.0.2.1", "port": 443}
    if name == "csv":
        expected: dict[str, Any] = {**ABOUT, "key.saddr": "192.0.2.1", "key.port": 443}
        assert first[0] == {k: str(v) for k, v in {**expected, "value": 2**63}.items()}
    elif name == "xml":
        assert first[0]["key"] == {k: str(v) for k, v in key.items()}
        assert first[0]["start"] == ABOUT["start"]
    else:
        assert first[0] == {**ABOUT, "key": key, "value": 2**63}


@pytest.mark.parametrize(("name", "items"), [
    ("json", [{"a$b": 1}, {"a$b": 2}]),
    ("xml", [{"a$b": "1"}, {"a$b": "2"}]),
])  # fmt: skip
def test_arrays_and_names_that_are_no_xml_names(tmp_path: Path, name: str, items: Any) -> None:
    with Sink(str(tmp_path), name, [], metrics=True) as sink:
        sink.write(metric(wide()))
    [row] = records_in(tmp_path / f"mine.ingress.hits.{name}")
    assert row["value"]["items"] == items


@pytest.mark.parametrize("name", FORMATS)
def test_other_columns_go_into_a_further_file(tmp_path: Path, name: str) -> None:
    """S1.26: a replacement under way may change what a metric is."""
    with Sink(str(tmp_path), name, [], metrics=True) as sink:
        sink.write(metric(narrow(1), ADDRESSED, window=1, generation=1))
        sink.write(metric(wide(1), window=2, generation=2))
        sink.write(metric(wide(1), window=3, generation=2))
        sink.write(metric(narrow(1), ADDRESSED, window=4, generation=3))  # rolled back
    first = rows_in(tmp_path / f"mine.ingress.hits.{name}")
    further = rows_in(tmp_path / f"mine.ingress.hits.g2.{name}")
    assert [row["window"] for row in first] == ["1", "4"]
    assert [row["window"] for row in further] == ["2", "3"]
    assert len(list(tmp_path.iterdir())) == 2
    assert first[0]["schema"] == first[1]["schema"] != further[0]["schema"]


def test_each_probe_has_its_format(tmp_path: Path) -> None:
    """S1.2: the format is the configuration's."""
    with Sink(str(tmp_path), "csv", [], metrics=True, formats={"mine": "xml"}) as sink:
        sink.write(metric(narrow()))
        sink.write(metric(narrow(), probe="other"))
    assert {path.name for path in tmp_path.iterdir()} == {
        "mine.ingress.hits.xml", "other.ingress.hits.csv",
    }  # fmt: skip


def test_metrics_are_written_only_where_asked_for(tmp_path: Path) -> None:
    with Sink(str(tmp_path), "csv", [VIEWS["windows"]]) as sink:
        sink.write(metric(narrow()))
    assert [path.name for path in tmp_path.iterdir()] == ["windows.csv"]


def test_built_in_views_beside_metrics(tmp_path: Path) -> None:
    """A metric has a row in `windows`, none in `flows`, and no packets to be summed up."""
    losses = {LossReason.TABLE_FULL: Loss(2, 120)}
    with Sink(str(tmp_path), "csv", list(VIEWS.values()), metrics=True) as sink:
        for item in (flows(), metric(narrow(), losses=losses), Event(0, "info", "mine", "text")):
            sink.write(item)
    assert len(rows_in(tmp_path / "flows.csv")) == 2
    assert len(rows_in(tmp_path / "events.csv")) == 1
    built_in, mine = rows_in(tmp_path / "windows.csv")
    assert (built_in["probe"], built_in["metric"], built_in["packets"]) == ("flow", "", "6")
    assert (mine["side"], mine["metric"], mine["rows"]) == ("ingress", "hits", "2")
    assert (mine["packets"], mine["bytes"], mine["table_full"]) == ("", "", "2")


def test_a_metric_of_a_probe_named_flow_is_no_flow(tmp_path: Path) -> None:
    with Sink(str(tmp_path), "csv", [VIEWS["flows"]]) as sink:
        sink.write(metric(narrow(), probe="flow"))
    assert rows_in(tmp_path / "flows.csv") == []
    assert counted(metric(narrow(), probe="flow")) is None
    assert counted(flows()) == (6, 400)


@pytest.mark.parametrize("name", FORMATS)
def test_standard_output_takes_one_metric(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    told: list[Event] = []
    with Sink("-", name, [], metrics=True, report=told.append) as sink:
        sink.write(metric(narrow(1), window=1))
        sink.write(metric(narrow(3), side="egress"))
        sink.write(metric(narrow(1), window=2))
        sink.write(metric(narrow(3), side="egress"))
    [event] = told
    assert "one table, and mine.egress.hits is another" in event.text
    assert sink.lost == {"mine.egress.hits": 6}
    text = capfd.readouterr().out
    if name == "json":
        assert len(json.loads(text)) == 2
    elif name == "xml":
        assert len(ElementTree.fromstring(text)) == 2
    else:
        assert text.count("mine.ingress.hits/") == 2


@pytest.mark.parametrize(
    ("views", "metrics", "said"),
    [(["flows"], True, "1 and metrics"), (["flows", "events"], False, "2")],
)
def test_standard_output_takes_one_table(views: list[str], metrics: bool, said: str) -> None:
    """Or none, if something else takes it."""
    with pytest.raises(UsageError, match=f"standard output takes one view, not {said}"):
        Sink("-", "csv", [VIEWS[name] for name in views], metrics=metrics)
    with Sink("-", "csv", []) as sink:
        sink.write(Event.now("info", "test", "nothing is written"))


def test_truth_values_are_spelled_alike(tmp_path: Path) -> None:
    rows = np.zeros(1, [("key", "u4"), ("value", "?")])
    for name in ("csv", "xml", "jsonl"):
        with Sink(str(tmp_path), name, [], metrics=True) as sink:
            sink.write(metric(rows.copy()))
        assert "false" in (tmp_path / f"mine.ingress.hits.{name}").read_text()


def test_per_cpu_values_are_rows_or_lists(tmp_path: Path) -> None:
    rows = np.zeros(1, [("key", "u4"), ("value", "u8", (3,))])
    rows["value"] = [[1, 2, 3]]
    for name in ("csv", "json"):
        with Sink(str(tmp_path), name, [], metrics=True) as sink:
            sink.write(metric(rows.copy()))
    table = rows_in(tmp_path / "mine.ingress.hits.csv")
    assert [(row["cpu"], row["value"]) for row in table] == [("0", "1"), ("1", "2"), ("2", "3")]
    assert records_in(tmp_path / "mine.ingress.hits.json")[0]["value"] == [1, 2, 3]


def export() -> list[Snapshot]:
    losses = {LossReason.TABLE_FULL: Loss(2, 120), LossReason.NOT_IP: Loss(1, 60)}
    return [
        metric(narrow(), ADDRESSED, losses=losses),
        metric(wide(), name="more.of_it"),
        metric(narrow(0), ADDRESSED, side="egress"),
    ]


def test_an_export_as_json() -> None:
    """S1.1, S1.2."""
    key = {"saddr": "192.0.2.1", "port": 443}
    assert json.loads(document(export(), "json")) == {
        "probe": "mine", "window": 1, "generation": 1, "start": ABOUT["start"],
        "end": ABOUT["end"], "interfaces": {"ingress": "eth0", "egress": "eth0"},
        "losses": {
            "ingress": {
                "not_ip": {"packets": 1, "bytes": 60},
                "table_full": {"packets": 2, "bytes": 120},
            }
        },
        "ingress": {
            "hits": [{"key": key, "value": 2**63}, {"key": key, "value": 2**63 + 1}],
            "more.of_it": [
                {"key": 0, "value": {"packets": 7, "items": [{"a$b": 1}, {"a$b": 2}]}}
            ],
        },
        "egress": {"hits": []},
    }  # fmt: skip


def test_an_export_as_xml_says_what_json_says() -> None:
    """S1.2."""
    root = ElementTree.fromstring(document(export(), "xml"))
    truth = json.loads(document(export(), "json"), parse_int=str)
    assert root.attrib == {
        name: truth[name] for name in ("probe", "window", "generation", "start", "end")
    }
    found: dict[str, Any] = {side.tag: {} for side in root}
    for side in root:
        assert side.attrib["interface"] == truth["interfaces"][side.tag]
        for table in side.iter("metric"):
            found[side.tag][table.attrib["name"]] = [element_value(row) for row in table]
    assert found == {side: truth[side] for side in found}
    hits = root.find("ingress/metric")
    assert hits is not None
    assert hits.attrib == {"name": "hits", "kind": "hash", "help": "packets & <bytes>"}
    assert [loss.attrib["reason"] for loss in root.iter("loss")] == ["not_ip", "table_full"]


def test_an_export_as_csv_is_a_table_for_each_metric() -> None:
    tables = document(export(), "csv").decode().split("\n\n")
    assert len(tables) == 3
    rows = list(csv.DictReader(io.StringIO(tables[0])))
    assert [row["value"] for row in rows] == [str(2**63), str(2**63 + 1)]
    assert rows[0]["metric"] == "hits"
    assert list(csv.DictReader(io.StringIO(tables[2]))) == []


def test_an_export_as_lines() -> None:
    rows = [json.loads(line) for line in document(export(), "jsonl").splitlines()]
    assert [(row["metric"], row["key"]) for row in rows][-1] == ("more.of_it", 0)
    assert len(rows) == 3


@pytest.mark.parametrize("name", FORMATS)
def test_an_export_of_the_flow_probe(name: str) -> None:
    text = document([flows()], name).decode()
    if name == "json":
        assert [row["packets"] for row in json.loads(text)["flows"]] == [3, 3]
    elif name == "xml":
        assert len(ElementTree.fromstring(text).findall("flows/row")) == 2
    else:
        assert text.count("flows/3") == 2


@pytest.mark.parametrize("name", FORMATS)
def test_an_export_of_nothing(name: str) -> None:
    text = document([], name).decode()
    if name == "json":
        assert json.loads(text) == {}
    elif name == "xml":
        assert len(ElementTree.fromstring(text)) == 0
    else:
        assert text == ""


def test_xml_takes_any_text() -> None:
    nasty = "".join(map(chr, range(128))) + "\x85\u2028\ufffe\udc80]]><!--&amp;"
    schema = TableSchema(TableKind.HASH, nasty, names={"value": {0: nasty}})
    text = document([metric(np.zeros(1, [("key", "u4"), ("value", "u4")]), schema)], "xml").decode()
    root = ElementTree.fromstring(text.encode())
    value = root.findtext(".//row/value")
    assert value is not None
    assert value.endswith("\x85\u2028\\ufffe\\udc80]]><!--&amp;")
    assert value.startswith(r"\x00\x01")


@pytest.mark.slow
@pytest.mark.timing
def test_a_hundred_thousand_rows_take_little_time_and_memory(tmp_path: Path) -> None:
    item = metric(narrow(100_000), ADDRESSED)
    for name in FORMATS:
        with Sink(str(tmp_path), name, [], metrics=True) as sink:
            sink.write(metric(narrow(1), ADDRESSED))
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            started = time.process_time()
            sink.write(item)
            assert time.process_time() - started < 5  # 0.3 to 1.0 on an idle machine
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB
        assert os.stat(tmp_path / f"mine.ingress.hits.{name}").st_size > 1 << 20
