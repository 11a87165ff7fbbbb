"""Tables as files: their heads, foreign files, and rows that are always whole."""

from __future__ import annotations

import csv
import json
import os
import resource
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.outputs.formats import FORMATS
from app.outputs.sink import Sink
from app.outputs.views import VIEWS
from bpf.errors import UsageError
from probes.flow.interfaces import totals
from probes.flow.kinds import INTERFACES, REPEATED
from probes.flow.records import FLOW
from probes.monitor.state import PolicyState
from probes.path.records import PathRowKind, ProbeOutcome
from probes.snapshot import Event, HookStatus, Loss, LossReason, Snapshot
from tests.app.outputs.disks import LIBC, small_disk
from tests.app.outputs.test_owner_tables import answers
from tests.support import monitors, paths
from tests.support.runs import rows
from tests.support.tables import rows_in

ALL = list(VIEWS.values())
MS_RDONLY, MS_REMOUNT = 1, 32


def snapshot(flows: int = 3, interface: str = "eth0", window: int = 1) -> Snapshot:
    table = np.zeros(flows, FLOW)
    table["interface"] = interface.encode(errors="replace")
    random = np.random.default_rng(window)
    table["version"] = np.where(np.arange(flows) % 2, 6, 4)
    table["source"] = random.integers(0, 256, (flows, 16))
    table["destination"] = random.integers(0, 256, (flows, 16))
    table["source_port"] = random.integers(0, 65536, flows)
    table["protocol"] = 17
    table["packets"] = random.integers(1, 1000, flows)
    table["bytes"] = 1000
    end = 10**12
    table["first_ns"] = end - random.integers(0, 250, flows) * 4_000_000
    table["last_ns"] = end
    losses = {LossReason.NOT_IP: Loss(7, 420), LossReason.TABLE_FULL: Loss(1, 60)}
    return Snapshot(
        "flow", interface, window, 2, end - 10**9, end, 1_767_225_600_123_456_789, table, losses,
        0.25, 50_000, 1_000_000,
    )  # fmt: skip


def one_row() -> Snapshot:
    taken = snapshot(1)
    table = taken.rows.copy()
    table["source"][0, :4] = 192, 0, 2, 1
    table["destination"][0, :4] = 198, 51, 100, 2
    table["source_port"], table["destination_port"] = 1024, 53
    table["direction"], table["packets"], table["bytes"] = 1, 5, 300
    table["first_ns"] = taken.end_ns - 500_000_000
    table["vlan"], table["tunnel"], table["tunnel_id"], table["tos"] = 7, 3, 99, 184
    return Snapshot(
        "flow", "eth0", 1, 2, taken.start_ns, taken.end_ns, taken.end_utc_ns, table, taken.losses,
        0.25, 50_000, 1_000_000,
        hooks=(
            HookStatus("eth0", "tc ingress", "tcx", "veth", ("XDP program 'a' id 7",)),
            HookStatus("eth0", "tc egress", "tcx"),
        ),
    )  # fmt: skip


FLOW_ROW = (
    "flows/3,1,2025-12-31T23:59:59.123456789Z,2026-01-01T00:00:00.123456789Z,eth0,out,4,17,"
    "192.0.2.1,1024,198.51.100.2,53,5,300,0,"
    "2025-12-31T23:59:59.623456789Z,2026-01-01T00:00:00.123456789Z,7,vxlan,99,184,,,,,,,,"
)
WINDOW_ROW = (
    "windows/7,1,2025-12-31T23:59:59.123456789Z,2026-01-01T00:00:00.123456789Z,"
    "999000000000,1000000000000,eth0,flow,,,2,1,5,300,7,0,0,1,0,0,0,0.25,50,1000,"
    "tc ingress tcx; tc egress tcx,veth,XDP program 'a' id 7,,,"
)


def test_the_columns_of_csv(tmp_path: Path) -> None:
    with Sink(str(tmp_path), "csv", ALL) as sink:
        sink.write(one_row())
        sink.write(Event(1_767_225_600_000_000_000, "warning", "eth0", 'says "no", twice'))
    assert (tmp_path / "flows.csv").read_text().splitlines() == [
        "schema,window,start,end,interface,direction,ip_version,protocol,source,source_port,"
        "destination,destination_port,packets,bytes,tcp_flags,first,last,vlan,tunnel,tunnel_id,tos,"
        "process,pid,user,unit,container,pod,owner_by,limit",
        FLOW_ROW,
    ]
    assert (tmp_path / "windows.csv").read_text().splitlines() == [
        "schema,window,start,end,start_monotonic_ns,end_monotonic_ns,interface,probe,side,metric,"
        "generation,rows,packets,bytes,not_ip,malformed,filtered,table_full,overrun,budget,export,"
        "occupancy,swap_us,drain_us,"
        "hooks,hook_reason,runs_before,owned,peak_in_bps,peak_out_bps",
        WINDOW_ROW,
    ]
    assert (tmp_path / "events.csv").read_text().splitlines() == [
        "schema,time,severity,source,text,subject,phase,value,unit",
        'events/2,2026-01-01T00:00:00.000000000Z,warning,eth0,"says ""no"", twice",,,,',
    ]


def test_every_format_says_the_same(tmp_path: Path) -> None:
    event = Event.now("info", "eth0", 'a line\nand <another>, "twice" & more')
    for name in FORMATS:
        with Sink(str(tmp_path), name, ALL) as sink:
            sink.write(snapshot(50))
            sink.write(replace(snapshot(50), metric=REPEATED))
            totals_of = totals(snapshot(50).rows, snapshot(0).rows)
            sink.write(replace(snapshot(), metric=INTERFACES, rows=totals_of))
            sink.write(paths.probes(*ProbeOutcome, losses=paths.OVERRUN))
            sink.write(paths.told(*PathRowKind))
            sink.write(paths.traces("192.0.2.2"))
            sink.write(monitors.metrics())
            sink.write(monitors.policies(*PolicyState))
            sink.write(monitors.triggers(*PolicyState))
            for table in answers(1):
                sink.write(table)
            sink.write(event)
    for view in ALL:
        truth = rows_in(tmp_path / f"{view.name}.csv")
        assert truth
        for name in FORMATS:
            assert rows_in(tmp_path / f"{view.name}.{name}") == truth
    values = json.loads((tmp_path / "windows.jsonl").read_text().splitlines()[0])
    assert values["table_full"] == 1  # a number is one


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_is_whole_after_every_window(tmp_path: Path, name: str) -> None:
    """A JSON or XML file is a document that any parser takes, also while it grows."""
    with Sink(str(tmp_path), name, [VIEWS["flows"]]) as sink:
        for window in range(1, 5):
            sink.write(snapshot(window % 3, window=window))
            written = rows_in(tmp_path / f"flows.{name}")
            assert len(written) == sum(w % 3 for w in range(1, window + 1))


def test_every_column_is_explained_and_every_loss_has_one() -> None:
    for view in ALL:
        assert len(set(view.header)) == len(view.header)
        assert all(column.meaning for column in view.columns)
    assert {reason.name.lower() for reason in LossReason} <= set(VIEWS["windows"].header)


@pytest.mark.parametrize("name", FORMATS)
def test_an_interface_may_have_any_name(tmp_path: Path, name: str) -> None:
    names = ['a,"b"', "<&>]]>", "\x01\udc80"]
    with Sink(str(tmp_path), name, ALL) as sink:
        for interface in names:
            sink.write(snapshot(1, interface=interface))
    found = [row["interface"] for row in rows_in(tmp_path / f"windows.{name}")]
    assert found[:2] == names[:2]
    # Neither XML nor UTF-8 has characters for the last one.
    shown = {"csv": "\x01\\udc80", "xml": "\\x01\\udc80"}
    assert found[2] == shown.get(name, names[2])


@pytest.mark.parametrize("name", FORMATS)
def test_a_table_is_gone_on_with(tmp_path: Path, name: str) -> None:
    for window in (1, 2):
        with Sink(str(tmp_path), name, ALL) as sink:
            sink.write(snapshot(2, window=window))
    assert [row["window"] for row in rows_in(tmp_path / f"flows.{name}")] == ["1", "1", "2", "2"]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("size", range(0, 400, 7))
def test_wherever_a_run_was_killed_the_next_one_goes_on(
    tmp_path: Path, name: str, size: int
) -> None:
    path = tmp_path / f"events.{name}"
    with Sink(str(tmp_path), name, [VIEWS["events"]]) as sink:
        sink.write(Event(0, "info", "eth0", "first"))
        sink.write(Event(0, "info", "eth0", "second"))
    os.truncate(path, min(size, path.stat().st_size))
    try:
        with Sink(str(tmp_path), name, [VIEWS["events"]]) as sink:
            sink.write(Event(0, "info", "eth0", "third"))
    except UsageError:
        # The rest of the first row is too short to name its table.
        assert b"events/2" not in path.read_bytes()
        return
    texts = [row["text"] for row in rows_in(path)]
    assert texts == [*["first", "second"][: len(texts) - 1], "third"]


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_that_is_emptied_under_way_begins_again(tmp_path: Path, name: str) -> None:
    """As logrotate's copytruncate does."""
    path = tmp_path / f"flows.{name}"
    with Sink(str(tmp_path), name, [VIEWS["flows"]]) as sink:
        sink.write(snapshot(2))
        os.truncate(path, 0)
        sink.write(snapshot(1, window=2))
    assert [row["window"] for row in rows_in(path)] == ["2"]


@pytest.mark.parametrize("name", FORMATS)
def test_a_row_that_is_longer_than_most(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"events.{name}"
    for text in ("x" * 300_000, "short"):
        with Sink(str(tmp_path), name, [VIEWS["events"]]) as sink:
            sink.write(Event(0, "info", "eth0", text))
    csv.field_size_limit(1 << 20)
    assert [len(row["text"]) for row in rows_in(path)] == [300_000, 5]


@pytest.mark.parametrize("name", FORMATS)
def test_another_table_is_left_alone(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"windows.{name}"
    path.write_text('{"schema": "windows/0"}\nwhatever follows')
    with pytest.raises(UsageError, match=r"is not a windows/7 table and is left alone; choose"):
        Sink(str(tmp_path), name, ALL)
    assert path.read_text() == '{"schema": "windows/0"}\nwhatever follows'


def test_a_run_that_cannot_begin_leaves_no_header(tmp_path: Path) -> None:
    with Sink(str(tmp_path), "csv", ALL):
        pass
    assert {path.stat().st_size for path in tmp_path.iterdir()} == {0}


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(UsageError, match=r"file: it is not a directory$"):
        Sink(str(file), "csv", ALL)
    with pytest.raises(UsageError, match=r"cannot write to .*below: Not a directory"):
        Sink(str(file / "below"), "csv", ALL)
    assert file.read_text() == "mine"


def test_directories_are_made(tmp_path: Path) -> None:
    with Sink(str(tmp_path / "a" / "b"), "csv", ALL) as sink:
        sink.write(snapshot())
    assert len(rows(tmp_path / "a" / "b" / "flows.csv")) == 3


def test_standard_output_takes_one_view() -> None:
    with pytest.raises(UsageError, match="one view, not 18; choose with --views"):
        Sink("-", "csv", ALL)


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    with small_disk(tmp_path / "tiny", "64k") as place:
        yield place


def test_a_disk_that_is_full_from_the_start(tiny: Path) -> None:
    (tiny / "other").write_bytes(bytes(64 << 10))
    with Sink(str(tiny), "csv", [VIEWS["flows"]]) as sink:
        sink.write(snapshot())
    assert sink.lost == {"flows": 3}
    assert (tiny / "flows.csv").stat().st_size == 0


def test_a_disk_that_is_read_only(tiny: Path) -> None:
    assert LIBC.mount(b"tmpfs", bytes(tiny), b"tmpfs", MS_REMOUNT | MS_RDONLY, None) == 0
    with pytest.raises(UsageError, match=r"cannot write to .*: Read-only file system"):
        Sink(str(tiny / "new"), "csv", ALL)


@pytest.mark.slow
@pytest.mark.timing
def test_two_hundred_thousand_flows_take_little_time_and_memory(tmp_path: Path) -> None:
    window = snapshot(200_000)
    with Sink(str(tmp_path), "csv", [VIEWS["flows"]]) as sink:
        sink.write(snapshot(1))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started = time.process_time()
        sink.write(window)
        seconds = time.process_time() - started
    assert seconds < 4.5  # 1.05 on an idle machine
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB
    with (tmp_path / "flows.csv").open() as file:
        assert sum(1 for _ in file) == 200_002
