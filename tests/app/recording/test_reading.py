"""Exports have the bytes that the run writes; damage is one line, and the rest is read."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from app.outputs.owners.owner_join import ItemSource, ItemStream
from app.outputs.view import OwnedFlows, is_table
from app.outputs.views import VIEWS
from app.recording import writer
from app.recording.export import tables_of
from app.recording.frames import OLD_MAGIC
from app.recording.reader import Recording
from app.recording.writer import DATA, INDEX
from app.run.options import OutputSpec
from app.run.table_writer import TableWriter
from bpf.errors import UsageError
from bpf.quantities import clock, moment
from probes.snapshot import Item, Snapshot
from tests.app.exporters.files.made import everything
from tests.app.outputs.test_owner_tables import answers, flows
from tests.app.recording.made import BEGIN_NS, Plane, event, read, record, windows
from tests.support.runs import deck_ends, deck_here


def _written(directory: Path, items: Sequence[Item], form: str, views: Sequence[str]) -> None:
    output = OutputSpec(str(directory), None if form == "csv" else form, tuple(views), metrics=True)
    tables = TableWriter(output, (), Plane())
    with tables.sink:
        for item in items:
            tables.write(item)


def _items() -> list[Item]:
    owned, *others = everything()
    first = [*others[:3], owned, *others[3:], *windows(40, first=2)]
    return [*map(_as_probes, first), event(50, "=1+1")]


def _as_probes(item: Item) -> Item:
    """Return an item as every probe has it."""
    return replace(item, occupancy=float(item.occupancy)) if isinstance(item, Snapshot) else item


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_an_export_has_the_bytes_that_the_run_writes(tmp_path: Path, form: str) -> None:
    items = _items()
    record(tmp_path / "record", items)
    with Recording(str(tmp_path / "record")) as recording:
        views = tables_of(recording)
    assert views == tuple(name for name, view in VIEWS.items() if view.make is None)
    _written(tmp_path / "run", items, form, views)
    here = str(tmp_path / "export")
    code, out, err = deck_here(
        "record", "export", str(tmp_path / "record"), "--format", form, "-o", here
    )
    assert (code, out, err) == (0, "", "")
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "export").iterdir())
    for name in names:
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "export" / name).read_bytes()


def test_an_export_has_the_owners_that_the_run_writes(tmp_path: Path) -> None:
    plane, items = Plane(), list[Item]()
    stream = ItemStream(cast(ItemSource, SimpleNamespace(
        listen=plane.listen, looks_for_owners=lambda: True,
    )))  # fmt: skip
    stream.follow(items.append)
    # Window 2 gets no owners, window 4 gets its own too late.
    for item in (flows(1), *answers(1), flows(2), flows(3), *answers(3), flows(4), flows(5)):
        plane.publish(_as_probes(item))
    stream.finish()
    record(tmp_path / "record", items)
    _written(tmp_path / "run", items, "csv", ("flows", "windows"))
    here = str(tmp_path / "export")
    asked = "record", "export", str(tmp_path / "record"), "--views", "flows,windows", "-o", here
    assert deck_here(*asked) == (0, "", "")
    for name in ("flows.csv", "windows.csv"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "export" / name).read_bytes()
    assert [isinstance(item, OwnedFlows) for item in items if is_table(item, "flow", "")] == [
        True, False, True, False, False,
    ]  # fmt: skip


def test_a_part_of_the_time_goes_to_standard_output(tmp_path: Path) -> None:
    record(tmp_path, windows(40, 3))
    asked = "record", "export", str(tmp_path), "--views", "windows"
    code, out, _ = deck_ends(*asked, "--from", "00:00:05", "--to", "2026-01-01T00:00:07")
    assert code == 0
    assert [line.split(",")[1] for line in out.splitlines()[1:]] == ["6", "7"]
    code, out, _ = deck_ends(*asked, "--from", "2s")
    assert [line.split(",")[1] for line in out.splitlines()[1:]] == ["39", "40"]


def test_parquet_files_have_every_row(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    record(tmp_path / "record", windows(3, 50))
    here = str(tmp_path / "tables")
    asked = "record", "export", str(tmp_path / "record"), "--format", "parquet"
    assert deck_here(*asked, "-o", here)[0] == 0
    rows = duckdb.sql(f"select count(*) from read_parquet('{here}/flows/**/*.parquet')").fetchall()
    assert rows == [(150,)]
    code, _, err = deck_here(*asked)
    assert (code, err.splitlines()[0]) == (
        2,
        "probedeck: Parquet files need a directory; -o DIR names one",
    )


def test_list_and_verify(tmp_path: Path) -> None:
    items = windows(30)
    record(tmp_path, [*items[:10], *items[12:]])
    code, out, _ = deck_here("record", "list", str(tmp_path))
    head, line = out.splitlines()
    assert (code, head.split()[:2]) == (0, ["SEGMENT", "FROM"])
    assert line.split()[:3] == ["20260101T000001.000000Z.full.seg", "00:00:01", "00:00:30"]
    code, out, err = deck_here("record", "verify", str(tmp_path))
    assert (code, out) == (
        1, "flow: 2 windows from 00:00:10 to 00:00:12 UTC not recorded\n"
    )  # fmt: skip
    assert err == "1 segment, 2800 rows: 1 fault\n"


def _runs(directory: Path, *begins_s: int) -> list[str]:
    """Record runs of 30 windows that begin at these seconds; return their ids."""
    ids: list[str] = []
    for number, begin_s in enumerate(begins_s, 1):
        record(directory, [
            *(replace(item, end_utc_ns=item.end_utc_ns + begin_s * 10**9)
              for item in windows(30, 10 * number)),
            event(begin_s + 30, f"run {number}"),
        ])  # fmt: skip
        with Recording(str(directory)) as recording:
            every = [run[0].run for run in recording.runs()]
        ids += [each for each in every if each not in ids]
    return ids


def test_runs_whose_clocks_overlap_are_apart(tmp_path: Path) -> None:
    # The clock was set back twice: into the first run, and before it.
    first, second, third = _runs(tmp_path, 100, 110, 95)

    def rows(begin_s: int, end_s: int, run: str = "") -> list[int]:
        with Recording(str(tmp_path), run=run) as recording:
            found = recording.items(BEGIN_NS + begin_s * 10**9, BEGIN_NS + end_s * 10**9)
            return [item.window for item in found if isinstance(item, Snapshot)]

    assert rows(110, 113) == [16, 17, 18, 11, 12, 13, 1, 2, 3], "one run after the other"
    assert rows(110, 113, first) == [11, 12, 13]
    assert rows(110, 113, second[:5]) == [1, 2, 3]
    assert rows(0, 999, third) == [*range(1, 31)]
    asked = "record", "export", str(tmp_path), "--views", "windows", "--run", second
    code, out, _ = deck_ends(*asked, "--to", "00:01:52")
    assert (code, [line.split(",")[1] for line in out.splitlines()[1:]]) == (0, ["1", "2"])
    _, out, _ = deck_here("record", "list", str(tmp_path))
    assert [line.split()[-2] for line in out.splitlines()[1:]] == [third, first, second]
    with pytest.raises(UsageError, match="has no run nine"):
        Recording(str(tmp_path), run="nine")
    with Recording(str(tmp_path)) as recording:
        assert not [*recording.faults()]
        moments = ((recording.moments() - BEGIN_NS) // 10**9).tolist()
        assert moments == [*range(96, 141)]
        for at, run in ((97, third), (100, third), (102, first), (109, first), (125, second)):
            assert recording.runs_at(BEGIN_NS + at * 10**9)[-1][0].run == run
        runs = recording.runs_at(BEGIN_NS + 120 * 10**9)
        assert [run[0].run for run in runs] == [third, first, second]
        # Events of times that another run has taken are no steps.
        assert ((recording.event_times() - BEGIN_NS) // 10**9).tolist() == [140]


def test_a_removed_segment_is_missing_with_its_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "SEGMENT_BYTES", 20_000)
    record(tmp_path, windows(80))
    paths = sorted(tmp_path.glob(f"*.full{DATA}"))
    with Recording(str(tmp_path)) as recording:
        _, before, gone, _, after, *_ = recording.segments()
        begin, end, run = clock(before.end_ns), clock(after.begin_ns), gone.run
    for path in paths[2:4]:
        path.unlink()
    with Recording(str(tmp_path)) as recording:
        faults = [*recording.faults()]
    assert faults[0] == f"2 segments of run {run} from {begin} to {end} UTC not recorded"
    assert faults[1].startswith("flow: ")
    assert len(faults) == 2
    # Old segments go: that is no fault.
    paths[0].unlink()
    with Recording(str(tmp_path)) as recording:
        assert len([*recording.faults()]) == 2


def test_a_damaged_window_is_left_out_with_those_that_refer_to_it(tmp_path: Path) -> None:
    record(tmp_path, windows(40))
    (path,) = tmp_path.glob(f"*.full{DATA}")
    with Recording(str(tmp_path)) as recording:
        (segment,) = recording.segments()
        places = [each for each in segment.entries() if each["kind"] == 3]
    at = int(places[20]["offset"]) + 40
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with Recording(str(tmp_path)) as recording:
        numbers = [item.window for item in recording.items() if isinstance(item, Snapshot)]
        damage = [*recording.damage()]
    # Window 33 stands alone.
    assert numbers == [*range(1, 21), *range(33, 41)]
    assert len(damage) == 12
    assert damage[0].endswith("a frame has a wrong checksum: flow until 00:00:21 UTC")
    code, out, err = deck_ends("record", "export", str(tmp_path), "--views", "windows")
    assert (code, len(out.splitlines())) == (1, 29)
    assert err.splitlines()[-1] == "probedeck: the recording is damaged: rows are missing"


def test_without_its_index_a_segment_is_whole(tmp_path: Path) -> None:
    record(tmp_path, windows(40))
    for path in tmp_path.glob(f"*{INDEX}"):
        path.unlink()
    with Recording(str(tmp_path)) as recording:
        assert not [*recording.faults()]
        assert sum(isinstance(item, Snapshot) for item in recording.items()) == 40


def test_a_recording_of_an_older_version_is_refused(tmp_path: Path) -> None:
    record(tmp_path, windows(3))
    (path,) = tmp_path.glob(f"*.full{DATA}")
    path.write_bytes(OLD_MAGIC + path.read_bytes()[len(OLD_MAGIC) :])
    code, _, err = deck_here("record", "list", str(tmp_path))
    words = f"{tmp_path} has no recording that this version reads; give the DIR of --record"
    assert (code, err.splitlines()[0]) == (2, f"probedeck: {words}")
    # A newer run is read alone.
    record(tmp_path, windows(4))
    assert len(read(tmp_path)) == 4
    with Recording(str(tmp_path)):
        open_files = {os.path.realpath(fd) for fd in Path("/proc/self/fd").iterdir()}
    assert str(path) not in open_files


def test_a_directory_is_listed_again_if_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path, windows(3))
    with Recording(str(tmp_path)) as recording:
        now_ns = time.time_ns()
        os.utime(tmp_path, ns=(now_ns, now_ns))
        assert len(recording.runs()) == 1
        record(tmp_path, windows(3, first=9))
        os.utime(tmp_path, ns=(now_ns, now_ns))
        assert len(recording.runs()) == 2, "within a tick of the file system's clock"
        os.utime(tmp_path, (1, 1))
        assert len(recording.runs()) == 2
        with monkeypatch.context() as patch:
            patch.delattr(Path, "glob")
            assert len(recording.runs()) == 2, "it is not listed again"
        record(tmp_path, windows(3, first=20))
        assert len(recording.runs()) == 3
        assert len(recording.moments()) == 9


def test_what_is_no_recording(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no recording"):
        Recording(str(tmp_path))
    (tmp_path / f"yesterday.full{DATA}").write_bytes(b"x")
    with pytest.raises(UsageError, match="has no recording"):
        Recording(str(tmp_path))
    os.mkfifo(tmp_path / f"20260101T000001.000000Z.full{DATA}")
    with Recording(str(tmp_path)) as recording:
        assert not [*recording.items()]
        assert [*recording.faults()] == [
            "20260101T000001.000000Z.full.seg: at byte 0: it is no file"
        ]


def _mutated(data: bytes, chance: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 8))):
        at = chance.randrange(len(found) + 1)
        match chance.randrange(6):
            case 0:
                found[at:] = b""
            case 1:
                found[at : at + chance.randrange(1, 200)] = b""
            case 2:
                found[at:at] = chance.randbytes(chance.randrange(1, 64))
            case 3:
                found[at : at + 32] = bytes(32)
            case 4:
                begin = chance.randrange(len(found) + 1)
                found[at : at + 64] = found[begin : begin + 64]
            case _:
                for place in range(at, min(len(found), at + chance.randrange(1, 4))):
                    found[place] ^= 1 << chance.randrange(8)
    return bytes(found)


@pytest.mark.slow
def test_mutated_recordings_are_read_as_far_as_they_are_whole(tmp_path: Path) -> None:
    lost = [replace(item, end_utc_ns=BEGIN_NS + n * 10**9) for n, item in enumerate(everything())
            if isinstance(item, Snapshot)]  # fmt: skip
    record(tmp_path, [*windows(20, 70), *lost, event(3)])
    paths = sorted(tmp_path.glob("*.full.*"))
    whole = {path: path.read_bytes() for path in paths}
    chance = random.Random(7)
    slowest, found = 0.0, 0
    for _ in range(int(os.environ.get("MUTATIONS", "300"))):
        for path, data in whole.items():
            hit = chance.random() < 0.7
            path.write_bytes(_mutated(data, chance) if hit else data)
        begun = time.process_time()
        try:
            with Recording(str(tmp_path)) as recording:
                faults = [*recording.faults()]
                found += sum(1 for _ in recording.items())
                [(each.rows, each.end_ns, each.run) for each in recording.segments()]
                assert all("\n" not in fault and len(fault) < 300 for fault in faults)
        except UsageError:
            continue
        slowest = max(slowest, time.process_time() - begun)
    assert found, "much of them is whole"
    assert slowest < 2


def test_a_time_may_have_a_date() -> None:
    now = BEGIN_NS + 12 * 3600 * 10**9
    assert moment("2026-01-01T00:00:05", now) == BEGIN_NS + 6 * 10**9 - 1
    assert moment("2025-12-31 23:00:00.5", now, 3600 * 10**9) == BEGIN_NS - 7200 * 10**9 + 5 * 10**8
    with pytest.raises(UsageError, match="is no time"):
        moment("2026-02-30T00:00", now)
