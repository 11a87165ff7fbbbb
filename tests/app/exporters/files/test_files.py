"""Parquet files and JSON lines: every row, its type, and whole files at any moment."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

from app.exporters.delivery import Outputs
from app.exporters.exporter import DeliveryError
from app.exporters.files import parts
from app.exporters.files.parts import connect
from app.outputs.view import ColumnType, OutputView, iso
from app.outputs.views import VIEWS
from bpf.errors import UsageError
from probes.control.controller import Controller
from probes.reports import OutputConfig
from probes.snapshot import Item, Snapshot
from tests.app.exporters.files.made import HOUR_NS, START_UTC_NS, at, everything, output
from tests.app.outputs.disks import small_disk
from tests.app.outputs.test_owner_tables import flows
from tests.support.sight import becomes

TABLES = [view for view in VIEWS.values() if view.make is None]
PYTHON: dict[ColumnType, tuple[type, ...]] = {
    ColumnType.INTEGER: (int,), ColumnType.FLOAT: (int, float), ColumnType.TRUTH: (bool,),
    ColumnType.TEXT: (str,), ColumnType.TIME: (str,),
}  # fmt: skip


def read(pattern: Path) -> list[dict[str, Any]]:
    with connect("a test") as database:
        database.execute(f"select * from read_parquet('{pattern}')")
        names = [each[0] for each in database.description]
        return [dict(zip(names, row, strict=True)) for row in database.fetchall()]


def rows_of(pattern: Path) -> int:
    return len(read(pattern))


def expected(view: OutputView, items: tuple[Item, ...]) -> list[dict[str, Any]]:
    return [cast(dict[str, Any], row) for item in items for row in view.records(item, nested=True)]


def same(read: Any, made: Any, kind: ColumnType) -> bool:
    if made in (None, "") and kind is not ColumnType.TEXT:
        return read is None
    if kind is ColumnType.TIME:
        return bool(read.isoformat(timespec="microseconds") == made[:26])
    return bool(read == made)


@pytest.mark.parametrize("view", TABLES, ids=lambda view: view.name)
def test_a_parquet_table_has_the_values_and_types_of_the_rows(
    tmp_path: Path, view: OutputView
) -> None:
    items = tuple(everything())
    exporter, _ = output(f"parquet:{tmp_path}?every=window&tables={view.name}")
    for item in items:
        exporter.deliver(item, 0)
    exporter.close()
    found = read(tmp_path / view.name / "*.parquet")
    made = expected(view, items)
    assert len(found) == len(made) == sum(map(exporter.records, items)) > 0
    kinds = {column.name: column.type for column in view.columns}
    key = lambda row: str(row.get("metric", "")) + str(row.get("probe", ""))  # noqa: E731
    for row, wanted in zip(sorted(found, key=key), sorted(made, key=key), strict=True):
        assert row.pop("schema") == view.schema
        for name, kind in kinds.items():
            assert same(row[name], wanted[name], kind), (name, row[name], wanted[name])
            assert wanted[name] in (None, "") or isinstance(wanted[name], PYTHON[kind]), name


def test_json_lines_have_every_row(tmp_path: Path) -> None:
    items = tuple(everything())
    exporter, _ = output(f"jsonl:{tmp_path}")
    for item in items:
        exporter.deliver(item, 0)
    exporter.close()
    for view in TABLES:
        files = sorted((tmp_path / view.name).glob("*.jsonl"))
        lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        assert sorted(lines, key=str) == sorted(expected(view, items), key=str), view.name
    assert (tmp_path / "flows" / "20260101T00.jsonl").exists()


def test_each_hour_and_day_has_its_file(tmp_path: Path) -> None:
    for every, names in (("hour", ["20260101T00", "20260101T01"]), ("day", ["20260101"])):
        exporter, _ = output(f"jsonl:{tmp_path}/{every}?every={every}&tables=flows")
        for number in (0, 1):
            exporter.deliver(at(flows(1), START_UTC_NS + number * HOUR_NS), 0)
        exporter.close()
        found = sorted((tmp_path / every / "flows").iterdir())
        assert [each.stem for each in found] == names


def join(directory: Path, current: str = "20260101T01") -> list[str]:
    with connect("a test", threads=1) as database:
        return list(parts.join_parts(directory, current, database))


def written(directory: Path, *windows: Snapshot) -> None:
    """Write windows of flows as a run does."""
    exporter, _ = output(f"parquet:{directory}?tables=flows")
    for window in windows:
        exporter.deliver(window, 0)
    exporter.close()


FIRST, SECOND = at(flows(1), START_UTC_NS), at(flows(2), START_UTC_NS + HOUR_NS)


def test_parts_of_a_past_hour_become_one_file_and_those_of_the_present_stay(
    tmp_path: Path,
) -> None:
    for _ in range(3):
        written(tmp_path, FIRST, SECOND)
    past, present = tmp_path / "flows" / "20260101T00", tmp_path / "flows" / "20260101T01"
    assert (len(list(past.iterdir())), len(list(present.iterdir()))) == (3, 3)
    assert join(tmp_path) == []
    assert [each.name for each in past.iterdir()] == ["20260101T00.parquet"]
    assert len(list(present.iterdir())) == 3
    assert rows_of(past / "*.parquet") == 3 * len(FIRST.rows)

    # Late rows are one more part.
    written(tmp_path, FIRST)
    assert join(tmp_path) == []
    assert [each.name for each in past.iterdir()] == ["20260101T00.parquet"]
    assert rows_of(past / "*.parquet") == 4 * len(FIRST.rows)


@pytest.mark.parametrize("function", ["_exchange", "copy"])
def test_a_killed_join_loses_and_doubles_no_row(
    tmp_path: Path, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        written(tmp_path, FIRST)
    real = getattr(parts, function)

    def killed(*arguments: Any) -> None:
        real(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(parts, function, killed)
    with pytest.raises(KeyboardInterrupt):
        join(tmp_path)
    monkeypatch.undo()
    everything = tmp_path / "flows" / "*" / "*.parquet"
    assert rows_of(everything) == 2 * len(FIRST.rows)
    written(tmp_path, SECOND)
    assert join(tmp_path) == []
    assert rows_of(everything) == 2 * len(FIRST.rows) + len(SECOND.rows)
    assert not list((tmp_path / ".staged").iterdir())


def test_a_part_that_comes_during_a_join_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        written(tmp_path, FIRST)
    folder = tmp_path / "flows" / "20260101T00"
    real = parts._exchange

    def late(one: Path, other: Path) -> None:
        source = next(iter(folder.iterdir()))
        shutil.copy(source, folder / "late.parquet")
        real(one, other)

    monkeypatch.setattr(parts, "_exchange", late)
    assert join(tmp_path) == []
    assert sorted(each.name for each in folder.iterdir()) == [
        "20260101T00.parquet", "late.parquet",
    ]  # fmt: skip


def test_without_an_exchange_the_parts_stay_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        written(tmp_path, FIRST)
    monkeypatch.setattr(parts, "_EXCHANGE", 1 << 20)
    (text,) = join(tmp_path)
    assert text.startswith("the parts of flows 20260101T00 stay apart: folders cannot be exchanged")
    assert len(list((tmp_path / "flows" / "20260101T00").iterdir())) == 2


def test_a_broken_part_stays_and_a_sentence_names_it(tmp_path: Path) -> None:
    folder = tmp_path / "flows" / "20260101T00"
    written(tmp_path, FIRST)
    (folder / "x.parquet").write_bytes(b"torn")
    (text,) = join(tmp_path)
    assert text.startswith("the parts of flows 20260101T00 stay apart: ")
    assert len(list(folder.iterdir())) == 2


def test_the_output_joins_by_itself(tmp_path: Path) -> None:
    for _ in range(2):
        written(tmp_path, FIRST)
    exporter, _ = output(f"parquet:{tmp_path}?tables=flows")
    exporter.tick()
    joined = tmp_path / "flows" / "20260101T00" / "20260101T00.parquet"
    assert becomes(joined.exists)
    exporter.close()


@pytest.mark.parametrize("scheme", ["parquet", "jsonl"])
@pytest.mark.parametrize("every", ["window", "hour"])
def test_a_full_disk_tears_no_file_and_no_row_is_lost_when_there_is_room_again(
    tmp_path: Path, scheme: str, every: str
) -> None:
    window = flows(1)
    with small_disk(tmp_path / "disk", "256k") as disk:
        full = disk / "full"
        exporter, lost = output(f"{scheme}:{disk}?every={every}&tables=flows")
        with suppress(OSError), full.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        if every == "hour":
            exporter.deliver(window, 0)
        failing = exporter.close if every == "hour" else lambda: exporter.deliver(window, 0)
        with pytest.raises(DeliveryError, match="flows: ") as found:
            failing()
        assert "space" in str(found.value).lower()
        assert not list(disk.glob("flows/**/*.parquet"))
        assert not any(file.read_bytes() for file in disk.glob("flows/*.jsonl"))
        if every == "hour":
            assert lost == [(len(window.rows), "not written")]
            return
        full.unlink()
        exporter.tick()
        exporter.close()
        assert lost == []
        assert len(list(disk.glob(f"flows/*.{scheme}"))) == 1


def test_a_line_that_a_killed_run_cut_off_goes(tmp_path: Path) -> None:
    file = tmp_path / "flows" / "20260101T00.jsonl"
    file.parent.mkdir()
    file.write_text('{"a": 1}\n{"a"' + " " * 70_000)
    exporter, _ = output(f"jsonl:{tmp_path}?tables=flows")
    exporter.deliver(at(flows(1), START_UTC_NS), 0)
    exporter.close()
    lines = file.read_text().splitlines()
    assert json.loads(lines[0]) == {"a": 1}
    assert len(lines) == 1 + len(flows(1).rows)


def test_another_run_in_the_directory_is_waited_for(tmp_path: Path) -> None:
    first, _ = output(f"jsonl:{tmp_path}")
    with pytest.raises(DeliveryError, match="another run writes to"):
        output(f"jsonl:{tmp_path}")
    first.close()
    output(f"jsonl:{tmp_path}")[0].close()


def test_rows_of_an_hour_wait_some_seconds_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter, _ = output(f"jsonl:{tmp_path}?tables=flows")
    exporter.deliver(at(flows(1), START_UTC_NS), 0)
    exporter.tick()
    assert not (tmp_path / "flows").exists()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 10)
    exporter.tick()
    assert (tmp_path / "flows" / "20260101T00.jsonl").exists()
    exporter.close()


def test_mistakes_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no table 'flow'"):
        output(f"jsonl:{tmp_path}?tables=flow")
    with pytest.raises(UsageError, match="'week' is not one of window, hour, day"):
        output(f"jsonl:{tmp_path}?every=week")
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(UsageError, match="parquet needs DuckDB") as found:
        output(f"parquet:{tmp_path}")
    assert "install 'duckdb" in found.value.hint


@pytest.fixture
def controller() -> Iterator[Controller]:
    with Controller() as made:
        made.outputs = Outputs(made)
        yield made
        made.outputs.close()


def test_a_run_delivers_every_row(tmp_path: Path, controller: Controller) -> None:
    for scheme in ("parquet", "jsonl"):
        controller.outputs.add(OutputConfig(f"{scheme}:{tmp_path}/{scheme}"))
    sent: list[Snapshot] = [flows(number) for number in range(1, 30)]
    for item in sent:
        controller.publish(item)
    controller.outputs.close()
    rows = sum(len(item.rows) for item in sent)
    assert rows_of(tmp_path / "parquet" / "flows" / "*" / "*.parquet") == rows
    text = "".join(file.read_text() for file in (tmp_path / "jsonl" / "flows").iterdir())
    assert text.count("\n") == rows
    for status in controller.outputs.status():
        assert (status.delivered, status.lost) == (rows + len(sent), 0), "flows and windows"
        assert status.url.endswith(f"{tmp_path}/{status.name}")
    assert iso(sent[0].start_utc_ns)[:13] in text
