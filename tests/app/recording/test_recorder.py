"""Recordings have everything that a run publishes, and survive its end and full disks."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

from app.exporters.backlog import Backlog
from app.exporters.delivery import Delivery
from app.exporters.exporter import DeliveryError
from app.exporters.ledger import Ledger
from app.exporters.record_options import kept
from app.outputs.view import OwnedFlows
from app.recording import writer
from app.recording.frames import FrameKind
from app.recording.reader import Recording
from app.recording.segment import RecordedState
from app.recording.writer import DATA, INDEX
from bpf.errors import UsageError
from probes.reports import OutputState
from probes.snapshot import Event, Item, Loss, LossReason, Snapshot
from probes.tables.conversion import TableKind, TableSchema
from tests.app.exporters.files.made import everything
from tests.app.exporters.receiver import until
from tests.app.outputs.disks import remount, small_disk
from tests.app.recording.made import BEGIN_NS, event, read, record, recorder, same, windows

ROOT = Path(__file__).parents[3]


def test_every_table_comes_back_to_the_byte(tmp_path: Path) -> None:
    items = [*everything()]
    record(tmp_path, items)
    found = read(tmp_path)
    assert len(found) == len(items)
    assert all(same(one, other) for one, other in zip(items, found, strict=True))


def test_the_state_is_recorded_before_the_first_metric_of_a_probe(tmp_path: Path) -> None:
    # An export asks it for the formats of the probe's metrics.
    first, second, third = windows(3)
    metric = replace(third, schema=TableSchema(TableKind.HASH), probe="mine", metric="counts")
    record(tmp_path, [first, second, metric, metric])
    with Recording(str(tmp_path)) as recording:
        kinds = [(of, len([*items])) for of, items in groupby(map(type, recording.items()))]
    assert [kind for kind, _ in kinds] == 2 * [RecordedState, Snapshot] + [RecordedState]
    assert [count for kind, count in kinds if kind is Snapshot] == [2, 2]


def test_rows_keep_their_order_and_flows_refer_to_the_window_before(tmp_path: Path) -> None:
    items = windows(40)
    record(tmp_path, items)
    assert all(same(one, other) for one, other in zip(items, read(tmp_path), strict=True))
    with Recording(str(tmp_path)) as recording:
        (segment,) = recording.segments()
        entries = segment.entries()
        referring = int((entries["flags"][entries["kind"] == FrameKind.WINDOW] != 0).sum())
        assert referring == 40 - 3, "each 16th stands alone"
        # Any window can be read first.
        only = [*recording.items(items[20].end_utc_ns - 1, items[20].end_utc_ns)]
    (found,) = (item for item in only if not isinstance(item, RecordedState))
    assert isinstance(found, Snapshot)
    assert same(found, items[20])


def test_the_other_direction_of_a_flow_costs_little(tmp_path: Path) -> None:
    # Of half of the flows each: some stand before their other direction, some behind it.
    items = []
    for item in windows(20, 60):
        turned = item.rows.copy()
        for one, other in (("source", "destination"), ("source_port", "destination_port")):
            turned[one], turned[other] = item.rows[other], item.rows[one]
        turned["direction"] ^= 1
        rows = np.concatenate([turned[:10], item.rows, turned[10:], turned[:3]])
        items.append(replace(item, rows=rows))
    sizes = []
    for name, which in (("both", slice(None)), ("one", slice(10, 70))):
        record(tmp_path / name, [replace(item, rows=item.rows[which].copy()) for item in items])
        with Recording(str(tmp_path / name)) as recording:
            entries = recording.segments()[0].entries()
        sizes.append(int(entries["size"][entries["kind"] == FrameKind.WINDOW][0]))
    found = read(tmp_path / "both")
    assert all(same(one, other) for one, other in zip(items, found, strict=True))
    assert sizes[0] < 1.8 * sizes[1], sizes


def test_state_costs_what_has_changed(tmp_path: Path) -> None:
    made = recorder(tmp_path)
    text = bytes(random.Random(1).choices(range(32, 127), k=20_000))
    texts = [text[:place] + b"%d" % place + text[place:] for place in range(0, 20_000, 500)]
    for number, each in enumerate(texts):
        made._full.add(FrameKind.STATE, BEGIN_NS + number, each, 9)
    made.close()
    with Recording(str(tmp_path)) as recording:
        found = [item for item in recording.items() if isinstance(item, RecordedState)]
        entries = recording.segments()[0].entries()
    assert [item.text for item in found if item.part == 9] == texts
    mine = entries[(entries["kind"] == FrameKind.STATE) & (entries["table"] == 9)]
    assert np.flatnonzero(mine["flags"] == 0).tolist() == [0, 16, 32], "chains are bounded"
    assert mine["size"][mine["flags"] != 0].max() < 200


def test_flows_have_their_owners_again(tmp_path: Path) -> None:
    owned, *others = everything()
    assert isinstance(owned, OwnedFlows)
    tables, rest = others[:3], others[3:]
    # A run publishes the flows after their owners.
    record(tmp_path, [*tables, owned, *rest])
    found = next(item for item in read(tmp_path) if isinstance(item, OwnedFlows))
    assert {*found.tables} == {*owned.tables}


def test_a_segment_opens_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "SEGMENT_BYTES", 20_000)
    items = windows(60)
    record(tmp_path, items)
    paths = sorted(tmp_path.glob(f"*.full{DATA}"))
    assert len(paths) > 3
    for path in paths:
        if path != paths[2]:
            path.unlink()
            path.with_suffix(INDEX).unlink()
    with Recording(str(tmp_path)) as recording:
        found = [*recording.items()]
        assert not [*recording.faults()]
    states = {item.part for item in found if isinstance(item, RecordedState)}
    assert states == {0, 1, 2, 3, 4, 5}, "the whole state stands at its begin"
    numbers = [item.window for item in found if isinstance(item, Snapshot)]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert all(same(item, items[item.window - 1]) for item in found if isinstance(item, Snapshot))


def test_sums_of_ten_seconds_and_of_a_minute_are_exact(tmp_path: Path) -> None:
    lost = {LossReason.TABLE_FULL: Loss(3, 300)}
    items = [replace(item, losses=lost, cut=item.window == 13) for item in windows(125, 300)]
    record(tmp_path, items)
    for stream, seconds in (("10s", 10), ("1m", 60)):
        sums = [item for item in read(tmp_path, stream) if isinstance(item, Snapshot)]
        assert len(sums) == -(-125 // seconds), "also what was left at the end"
        for number, found in enumerate(sums):
            of = items[number * seconds : (number + 1) * seconds]
            assert (found.start_ns, found.end_ns) == (of[0].start_ns, of[-1].end_ns)
            assert found.losses[LossReason.TABLE_FULL].packets == 3 * len(of)
            assert found.cut == any(item.cut for item in of)
            packets = sum(int(item.rows["packets"].sum()) for item in of)
            assert int(found.rows["packets"].sum()) + sum(r.packets for r in found.rest) == packets
            assert len(found.rows) == 256


def test_the_oldest_segments_go_by_size_and_by_age(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "SEGMENT_BYTES", 20_000)
    record(tmp_path, windows(80))
    paths = sorted(tmp_path.glob(f"*.full{DATA}"))
    sizes = [path.stat().st_size + path.with_suffix(INDEX).stat().st_size for path in paths]
    whole = sum(path.stat().st_size for path in tmp_path.iterdir())
    writer.remove_old(tmp_path, 1e9, whole - sizes[0] - 1)
    assert sorted(tmp_path.glob(f"*.full{DATA}")) == paths[2:]
    old = time.time() - 3600
    os.utime(paths[2], (old, old))
    writer.remove_old(tmp_path, 1800, 1e12)
    assert sorted(tmp_path.glob(f"*.full{DATA}")) == paths[3:]
    captures = [tmp_path / f"{name}.pcapng" for name in ("capture-a", "capture-b", "mine")]
    for capture in captures:
        capture.touch()
    os.utime(captures[0], (old, old))
    writer.remove_old(tmp_path, 1800, 1e12)
    assert [each.exists() for each in captures] == [False, True, True]
    writer.remove_old(tmp_path, 1e9, 0)
    assert [each.exists() for each in captures] == [False, False, True]
    assert sorted(tmp_path.glob(f"*.full{DATA}")) == paths[-1:], "the newest stays"
    assert len([*tmp_path.glob(f"*{INDEX}")]) == 3


@pytest.mark.parametrize(
    ("text", "seconds", "size"),
    [("24h,5GB", 86400, 5e9), ("90m", 5400, None), ("64MiB", None, 1 << 26)],
)
def test_what_is_kept(text: str, seconds: float | None, size: float | None) -> None:
    assert kept(text) == (seconds or float("inf"), size or float("inf"))


@pytest.mark.parametrize("text", ["", "5", "5M,", "24h 5GB", "yes"])
def test_what_can_not_be_kept(text: str) -> None:
    with pytest.raises(UsageError):
        kept(text)


def _delivery(directory: Path, events: list[Event], queue: int = 1 << 24) -> Delivery:
    made = Delivery("record", f"record:{directory}", Backlog(queue), events.append)
    made.start(recorder(directory))
    return made


def test_a_full_disk_is_one_event_and_the_recording_goes_on(tmp_path: Path) -> None:
    events: list[Event] = []
    items = windows(12, 400)
    with small_disk(tmp_path / "disk", "512k") as disk:
        delivery = _delivery(disk, events)
        delivery.offer(items[0])
        assert until(lambda: delivery.status().delivered == 400)
        filler = disk / "filler"
        with suppress(OSError), filler.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        for item in items[1:6]:
            delivery.offer(item)
        assert until(lambda: delivery.status().state is OutputState.FAILING)
        filler.unlink()
        assert until(lambda: delivery.status().delivered == 6 * 400, 20)
        for item in items[6:]:
            delivery.offer(item)
        assert until(lambda: delivery.status().delivered == 12 * 400)
        delivery.stop()
        delivery.join(time.monotonic() + 5)
        assert [item.window for item in read(disk) if isinstance(item, Snapshot)] == [*range(1, 13)]
    assert [one.phase for one in events] == ["begin", "end"]
    assert "No space left on device" in events[0].text


def test_a_disk_that_may_only_be_read_is_one_event_and_the_recording_begins_later(
    tmp_path: Path,
) -> None:
    events: list[Event] = []
    with small_disk(tmp_path / "disk", "1m") as disk:
        remount(disk, read_only=True)
        made = recorder(disk, is_open=False)
        delivery = Delivery("record", f"record:{disk}", Backlog(1 << 24), events.append)
        delivery.start(made)
        for item in windows(3):
            delivery.offer(item)
        assert until(lambda: delivery.status().state is OutputState.FAILING)
        remount(disk, read_only=False)
        assert until(lambda: delivery.status().delivered == 300)
        delivery.stop()
        delivery.join(time.monotonic() + 5)
        assert [item.window for item in read(disk) if isinstance(item, Snapshot)] == [1, 2, 3]
    assert [one.phase for one in events] == ["begin", "end"]
    assert "Read-only file system" in events[0].text


def test_a_disk_that_is_mounted_anew_has_the_rest(tmp_path: Path) -> None:
    events: list[Event] = []
    with small_disk(tmp_path / "disk", "32k") as disk:
        delivery, items = _delivery(disk, events), windows(12, 400)
        for item in items:
            delivery.offer(item)
        assert until(lambda: delivery.status().state is OutputState.FAILING)
        kept = [item.window for item in read(disk) if isinstance(item, Snapshot)]
        with small_disk(disk, "1m"):
            assert until(lambda: delivery.status().delivered == 12 * 400, 20)
            delivery.stop()
            delivery.join(time.monotonic() + 5)
            rest = [item.window for item in read(disk) if isinstance(item, Snapshot)]
    assert kept + rest == [*range(1, 13)]
    assert [one.phase for one in events] == ["begin", "end"]


def test_a_removed_directory_is_one_event_and_comes_back(tmp_path: Path) -> None:
    events: list[Event] = []
    directory = tmp_path / "record"
    delivery, items = _delivery(directory, events), windows(4)
    delivery.offer(items[0])
    assert until(lambda: delivery.status().delivered == 100)
    shutil.rmtree(directory)
    for item in items[1:]:
        delivery.offer(item)
    assert until(lambda: delivery.status().delivered == 400)
    delivery.stop()
    delivery.join(time.monotonic() + 5)
    assert [item.window for item in read(directory) if isinstance(item, Snapshot)] == [2, 3, 4]
    assert [one.phase for one in events] == ["begin", "end"]


def test_a_directory_has_one_run(tmp_path: Path) -> None:
    first = recorder(tmp_path)
    with pytest.raises(DeliveryError, match="another run writes to"):
        recorder(tmp_path)
    first.close()
    recorder(tmp_path).close()


def test_a_late_recorder_drops_whole_windows_which_verify_names(tmp_path: Path) -> None:
    events: list[Event] = []
    items, ledger = windows(20, 1000), Ledger()
    others = [
        replace(item, probe="monitor", metric="metrics", rows=item.rows[:1]) for item in items
    ]
    backlog = Backlog(3 * items[0].rows.nbytes, partial(ledger.not_sent, "late"))
    late = Delivery("late", "record:", backlog, events.append)
    made = recorder(tmp_path, ledger=ledger)
    entered, gate = threading.Event(), threading.Event()
    deliver = made.deliver

    def slow(item: Item, skip: int) -> None:
        entered.set()
        gate.wait()
        deliver(item, skip)

    made.deliver = slow  # type: ignore[method-assign]
    late.start(made)
    late.offer(items[0])
    assert entered.wait(5)
    for item, other in zip(items[1:], others[1:], strict=True):
        late.offer(other)
        late.offer(event(item.window))
        late.offer(item)
    gate.set()
    assert until(lambda: not late.status().queued)
    late.stop()
    late.join(time.monotonic() + 5)
    status = late.status()
    assert status.delivered + status.undelivered["queue full"] == 20 * 1000 + 19 * 2
    with Recording(str(tmp_path)) as recording:
        found = [*recording.items()]
        faults = sorted(recording.faults())
    tables = [item.probe for item in found if isinstance(item, Snapshot)]
    lost_flows, lost_metrics = 20 - tables.count("flow"), 19 - tables.count("monitor")
    lost_events = 19 - sum(isinstance(item, Event) for item in found)
    assert lost_flows > 10
    assert faults == [
        f"{what} from 00:00:0{first} to 00:00:{1 + lost:02} UTC not recorded"
        for what, first, lost in (
            (f"events: {lost_events} events", 2, lost_events),
            (f"flow: {lost_flows} windows", 1, lost_flows),
            (f"monitor metrics: {lost_metrics} windows", 1, lost_metrics),
        )
    ]


_WRITER = """
import sys
from pathlib import Path
from app.recording import writer
from dataclasses import replace
from tests.app.recording.made import BEGIN_NS, recorder, windows
writer.SEGMENT_BYTES = 200_000
made, items, number = recorder(Path(sys.argv[1])), windows(50, 200), 0
while True:
    for item in items:
        number += 1
        end_ns = number * 10**9
        times = dict(start_ns=end_ns - 10**9, end_ns=end_ns, end_utc_ns=BEGIN_NS + end_ns)
        made.deliver(replace(item, window=number, **times), 0)
        print(number, flush=True)
"""


@pytest.mark.slow
def test_killed_at_any_moment_it_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    kills = int(os.environ.get("KILLS", "12"))
    for number in range(kills):
        directory = tmp_path / str(number)
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r}){_WRITER}"
        command = [sys.executable, "-I", "-c", code, str(directory)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline()
            time.sleep(random.uniform(0, 0.5))
            process.send_signal(signal.SIGKILL)
            acknowledged = 1 + len(process.stdout.readlines())
        with Recording(str(directory)) as recording:
            faults = [*recording.faults()]
            found = sum(isinstance(item, Snapshot) for item in recording.items())
        assert found in (acknowledged, acknowledged + 1)
        assert all("bytes at the end" in fault for fault in faults), faults
        assert len(faults) <= 1
        # The next run begins a new segment.
        made = recorder(directory)
        made.deliver(event(1), 0)
        made.close()
        with Recording(str(directory)) as recording:
            assert sum(isinstance(item, Event) for item in recording.items()) == 1
        shutil.rmtree(directory)
