"""A table that cannot be written: an event and a counted loss, while everything else goes on."""

from __future__ import annotations

import json
import os
import resource
import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from app.outputs.formats import FORMATS, Record
from app.outputs.sink import OutputTable, Sink
from app.outputs.table_output import RowsLostError
from app.outputs.views import VIEWS
from app.run.item_loop import Mailbox
from probes.snapshot import Event
from tests.app.outputs.test_metric_files import metric, narrow
from tests.app.outputs.test_outputs import snapshot
from tests.support.runs import rows
from tests.support.tables import records_in, rows_in

FLOWS, WINDOWS, EVENTS = VIEWS["flows"], VIEWS["windows"], VIEWS["events"]


def layout(number: int) -> Any:
    """One row, in other columns for each number."""
    return np.zeros(1, [("key", "u4"), ("value", [(f"field{number}", "u8")])])


class FailingOutput:
    """An output that loses every row while `fails`."""

    fails = False

    def append(self, rows: Sequence[Record]) -> None:
        if self.fails and rows:
            raise RowsLostError(len(rows), "no space")

    def is_current(self) -> bool:
        return True

    def close(self) -> int:
        return 0


def test_a_table_that_fails_again_and_again_is_reported_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also the rows that were lost silently are in the sums."""
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    told: list[str] = []
    output = FailingOutput()
    table = OutputTable("flows", lambda: output, lambda event: told.append(event.text))
    for step in range(20):
        now += 0.1
        output.fails = step % 2 == 0
        assert table.append([("row",)]) == output.fails
    assert told == [
        "flows is not written, its rows are lost: no space", "flows is written again; 1 row lost",
    ]  # fmt: skip
    output.fails = True
    table.append([("row",)] * 3)
    assert len(told) == 2
    now += 10
    table.append([("row",)])
    output.fails = False
    table.append([("row",)])
    assert told[2:] == [
        "flows is not written, its rows are lost: no space", "flows is written again; 13 rows lost",
    ]  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_a_full_disk_recovers_when_space_returns(tiny: Path, name: str) -> None:
    told: list[Event] = []
    filler = tiny / "filler"
    with Sink(str(tiny), name, [FLOWS], report=told.append) as sink:
        sink.write(snapshot(20))
        filler.write_bytes(bytes(40 << 10))
        for window in range(2, 6):
            sink.write(snapshot(100, window=window))
            rows_in(tiny / f"flows.{name}")  # whole after each write
        assert [event.severity for event in told] == ["error"]
        before = len(rows_in(tiny / f"flows.{name}"))
        assert sink.lost == {"flows": 420 - before}
        assert 20 < before < 120
        filler.unlink()
        sink.write(snapshot(7, window=6))
    assert [event.severity for event in told] == ["error", "info"]
    assert told[1].text == f"flows is written again; {420 - before} rows lost"
    table = rows_in(tiny / f"flows.{name}")
    assert len(table) == before + 7
    assert [row["window"] for row in table[-7:]] == ["6"] * 7


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("room", range(0, 4096, 511))
def test_however_little_room_is_left_no_row_is_torn(
    tmp_path: Path, name: str, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk with room for so many bytes, at all places of a row."""
    left = room
    pwrite = os.pwrite

    def short(fd: int, data: Any, at: int) -> int:
        nonlocal left
        new = at + len(data) - os.fstat(fd).st_size
        if new <= 0:
            return pwrite(fd, data, at)
        if not left:
            raise OSError(28, "No space left on device")
        taken = len(data) - new + min(new, left)
        left -= min(new, left)
        return pwrite(fd, data[:taken], at)

    with Sink(str(tmp_path), name, [FLOWS]) as sink:
        sink.write(snapshot(3))
        monkeypatch.setattr(os, "pwrite", short)
        sink.write(snapshot(30, window=2))
        sink.write(snapshot(1, window=3))
        table = rows_in(tmp_path / f"flows.{name}")
        assert sink.lost == {"flows": 34 - len(table)}
        monkeypatch.undo()
        sink.write(snapshot(2, window=4))
    assert len(rows_in(tmp_path / f"flows.{name}")) == len(table) + 2


def test_other_tables_go_on_and_windows_tell_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "mine.ingress.hits.csv").mkdir()
    told: list[Event] = []
    with Sink(
        str(tmp_path), "csv", [FLOWS, WINDOWS, EVENTS], metrics=True, report=told.append
    ) as sink:
        sink.write(metric(narrow(3)))
        sink.write(snapshot(2))
        sink.write(metric(narrow(1), name="more"))
        sink.write(metric(narrow(2), window=2))
    [event] = told
    assert event.text.startswith("mine.ingress.hits is not written, its rows are lost: ")
    assert event.text.endswith("mine.ingress.hits.csv: Is a directory")
    assert sink.lost == {"mine.ingress.hits": 5}
    table = [(row["metric"], row["rows"], row["export"]) for row in rows(tmp_path / "windows.csv")]
    assert table == [("hits", "3", "3"), ("", "2", "0"), ("more", "1", "0"), ("hits", "2", "2")]
    assert len(rows(tmp_path / "flows.csv")) == 2
    assert len(rows(tmp_path / "mine.ingress.more.csv")) == 1


def test_a_directory_that_is_removed_and_comes_back(tmp_path: Path) -> None:
    told: list[Event] = []
    directory = tmp_path / "out"
    with Sink(str(directory), "csv", [FLOWS], metrics=True, report=told.append) as sink:
        sink.write(snapshot(2))
        sink.write(metric(narrow(2)))
        shutil.rmtree(directory)
        for window in (2, 3):
            sink.write(snapshot(2, window=window))
            sink.write(metric(narrow(2), window=window))
        assert [event.text.rpartition(": ")[2] for event in told] == [
            "No such file or directory"
        ] * 2
        directory.mkdir()
        sink.write(snapshot(1, window=4))
        sink.write(metric(narrow(1), window=4))
    assert sink.lost == {"flows": 4, "mine.ingress.hits": 4}
    assert [event.severity for event in told] == ["error", "error", "info", "info"]
    assert [row["window"] for row in rows(directory / "flows.csv")] == ["4"]
    assert [row["window"] for row in rows(directory / "mine.ingress.hits.csv")] == ["4"]


def test_a_removed_file_is_begun_again(tmp_path: Path) -> None:
    with Sink(str(tmp_path), "csv", [FLOWS]) as sink:
        sink.write(snapshot(2))
        (tmp_path / "flows.csv").unlink()
        sink.write(snapshot(1, window=2))
    assert [row["window"] for row in rows(tmp_path / "flows.csv")] == ["2"]
    assert not sink.lost


def test_too_many_open_files_are_a_loss_until_there_are_fewer(tmp_path: Path) -> None:
    told: list[Event] = []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Sink(str(tmp_path), "csv", [FLOWS], metrics=True, report=told.append) as sink:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
        try:
            sink.write(metric(narrow(2)))
            sink.write(snapshot(2))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        sink.write(metric(narrow(1), window=2))
    assert [event.severity for event in told] == ["error", "info"]
    assert told[0].text.endswith("Too many open files")
    assert sink.lost == {"mine.ingress.hits": 2}
    assert len(rows(tmp_path / "mine.ingress.hits.csv")) == 1
    assert len(rows(tmp_path / "flows.csv")) == 2


@pytest.mark.parametrize("name", FORMATS)
def test_any_number_of_layouts_has_files_that_a_restart_finds_again(
    tmp_path: Path, name: str
) -> None:
    """Added, removed and added again: the generation is 1 each time."""
    for _ in range(2):
        with Sink(str(tmp_path), name, [], metrics=True) as sink:
            for number in range(5):
                sink.write(metric(layout(number)))
                sink.end_probe("mine")
        assert not sink.lost
    files = sorted(tmp_path.iterdir())
    assert len(files) == 5
    found = {path.name: [row["schema"] for row in records_in(path)] for path in files}
    assert {len(schemas) for schemas in found.values()} == {2}
    assert len({schema for schemas in found.values() for schema in schemas}) == 5
    assert {f"mine.ingress.hits.{name}", f"mine.ingress.hits.g1.{name}"} < {*found}


@pytest.mark.parametrize("name", FORMATS)
def test_standard_output_goes_on_where_a_full_disk_cut_it(tiny: Path, name: str) -> None:
    path, filler = tiny / "out", tiny / "filler"
    filler.write_bytes(bytes(40 << 10))
    told: list[Event] = []
    kept = os.dup(1)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 1)
    try:
        with Sink("-", name, [FLOWS], report=told.append) as sink:
            for window, count in ((1, 20), (2, 100), (3, 100)):
                sink.write(snapshot(count, window=window))
            filler.unlink()
            sink.write(snapshot(5, window=4))
    finally:
        os.dup2(kept, 1)
        os.close(kept)
    assert [event.severity for event in told] == ["error", "info"]
    if name == "json":
        count = len(json.loads(path.read_text()))
    elif name == "xml":
        count = len(ElementTree.fromstring(path.read_text()))
    else:
        path.rename(tiny / f"out.{name}")
        count = len(rows_in(tiny / f"out.{name}"))
    assert 30 < count < 220
    assert sink.lost == {"flows": 225 - count}


def test_events_wait_for_no_room() -> None:
    """The thread that makes room publishes events itself."""
    mailbox = Mailbox(max_bytes=1)
    mailbox.put(snapshot())
    event = Event.now("info", "a", "b")
    publishing = threading.Thread(target=mailbox.put, args=(event,), daemon=True)
    publishing.start()
    publishing.join(5)
    assert not publishing.is_alive()
    assert len([*mailbox.rest()]) == 2
