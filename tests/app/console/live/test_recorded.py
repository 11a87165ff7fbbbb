"""Frames of a recording are those that the console showed then."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.console.live.frames import Frame
from app.console.live.recorded import RecordedFrames
from app.console.live.state import LiveState
from app.recording.reader import Recording
from bpf.errors import UsageError
from probes.snapshot import Item, Loss, LossReason, Snapshot
from tests.app.outputs.test_owner_tables import answers
from tests.app.recording.made import BEGIN_NS, event, record, recorder, windows
from tests.support import monitors


def run_of(seconds: int, flows: int = 60) -> list[Item]:
    """Items of a run, in the order of their publication."""
    found: list[Item] = []
    for item in windows(seconds, flows):
        number = item.window
        if number % 9 == 0:
            item = replace(item, losses={LossReason.TABLE_FULL: Loss(number, 100)})
        tables = [*answers(number), monitors.metrics(window=number)]
        found += [
            replace(
                each, window=number, start_ns=item.start_ns, end_ns=item.end_ns,
                end_utc_ns=item.end_utc_ns,
            )
            for each in tables
        ]  # fmt: skip
        found.append(item)
        if number % 5 == 0:
            found.append(event(number, f"event {number}"))
    return found


def check_same(one: Any, other: Any, path: str = "frame") -> None:
    """Check that two parts of frames are equal, but for their arrival."""
    if isinstance(one, np.ndarray):
        assert one.dtype == other.dtype, path
        assert one.tobytes() == other.tobytes(), path
    elif is_dataclass(one):
        for field in fields(one):
            if field.name not in ("at", "came_at"):
                name = f"{path}.{field.name}"
                check_same(getattr(one, field.name), getattr(other, field.name), name)
    elif isinstance(one, tuple):
        assert len(one) == len(other), path
        for number, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            check_same(mine, theirs, f"{path}[{number}]")
    elif hasattr(one, "items"):
        assert one.keys() == other.keys(), path
        for name in one:
            check_same(one[name], other[name], f"{path}[{name}]")
    else:
        assert one == other, path


def _shown(items: Sequence[Item], second: int) -> Frame:
    """The frame of a live console at the end of a window."""
    state = LiveState()
    for item in items:
        at = item.end_utc_ns if isinstance(item, Snapshot) else item.utc_ns
        if at <= BEGIN_NS + second * 10**9:
            state.take(item)
    return state.frame()


@pytest.mark.slow
def test_frames_are_those_of_the_run(tmp_path: Path) -> None:
    items = run_of(60)
    record(tmp_path, items)
    frames = RecordedFrames(str(tmp_path))
    for second in (60, 3, 4, 17, 18, 59, 1, 30, 31, 47, 46, 2, 5, 8, 13, 21, 34, 55, 9, 27):
        found = frames.at(BEGIN_NS + second * 10**9)
        assert found is not None
        check_same(found, _shown(items, second))
        assert found.utc_ns == BEGIN_NS + second * 10**9
    frames.close()


def test_steps_and_ends(tmp_path: Path) -> None:
    record(tmp_path, windows(30))
    frames = RecordedFrames(str(tmp_path))

    def second(frame: Frame | None) -> int | None:
        return None if frame is None else (frame.utc_ns - BEGIN_NS) // 10**9

    tenth = frames.at(BEGIN_NS + 10 * 10**9 + 5)
    assert tenth is not None
    assert second(tenth) == 10
    assert [second(frames.step(tenth, by)) for by in (1, -1, 5, -5, 100, -100)] == [
        11, 9, 15, 5, 30, 1,
    ]  # fmt: skip
    assert [second(frames.move(tenth, by)) for by in (7.0, -7.0, 90.0, -90.0)] == [17, 3, 30, 1]
    first, last = frames.at(frames.first_ns), frames.at(frames.last_ns)
    assert first is not None
    assert last is not None
    assert (frames.step(first, -1), frames.step(last, 1)) == (None, None)
    assert frames.at(BEGIN_NS) is None
    assert frames.since(BEGIN_NS + 31 * 10**9) is None
    assert second(frames.since(BEGIN_NS + 3 * 10**9)) == 3
    assert tenth.at == pytest.approx(time.monotonic() - time.time() + tenth.utc_ns / 1e9, abs=1)
    frames.close()


def test_a_frame_in_the_middle_of_a_long_run_marks_totals_that_began_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.console.live.recorded._MOST_NS", 80 * 10**9)
    monkeypatch.setattr("app.recording.recorder.STATE_S", 0.0)
    items = [replace(item, losses={LossReason.TABLE_FULL: Loss(1, 60)}) for item in windows(200)]
    made = recorder(tmp_path)
    for item in items:
        made.deliver(item, 0)
        made.tick()
    made.close()
    frames = RecordedFrames(str(tmp_path))
    found = frames.at(BEGIN_NS + 190 * 10**9)
    assert found is not None
    whole = _shown(items, 190)
    assert found.lost == whole.lost == 190
    rows, of = found.flows.rows, whole.flows.rows
    assert (rows["id"] == of["id"]).all()
    older = of["packets"] > rows["packets"]
    assert older.any()
    assert rows["at_least"][older].all(), "a total that lacks packets says so"
    assert rows["history"].tobytes() == of["history"].tobytes()
    frames.close()


def test_each_run_has_frames_of_its_own(tmp_path: Path) -> None:
    record(tmp_path, windows(5))
    second = [
        replace(item, end_utc_ns=item.end_utc_ns + 10 * 10**9, window=item.window)
        for item in windows(5, 20)
    ]
    record(tmp_path, second)
    frames = RecordedFrames(str(tmp_path))
    before = frames.at(BEGIN_NS + 5 * 10**9)
    assert before is not None
    found = frames.step(before, 1)
    assert found is not None
    check_same(found, _shown(second, 11))
    frames.close()
    with pytest.raises(UsageError, match="no recording"):
        RecordedFrames(str(tmp_path / "none"))


def test_runs_of_the_same_time_have_frames_of_their_own(tmp_path: Path) -> None:
    # The clock was set back between the runs.
    first, second = windows(30), windows(20, 20)
    record(tmp_path, first)
    second = [replace(item, end_utc_ns=item.end_utc_ns + 5 * 10**9) for item in second]
    record(tmp_path, second)
    with Recording(str(tmp_path)) as recording:
        one, other = (run[0].run for run in recording.runs())
    for run, shown, at, after in (("", second, 10, 6), ("", first, 4, 5), (one, first, 10, 9)):
        frames = RecordedFrames(str(tmp_path), run)
        found = frames.at(BEGIN_NS + at * 10**9)
        assert found is not None
        check_same(found, _shown(shown, at))
        assert frames.note(found) == (f"run {other}, not {one}" if shown is second else "")
        for step in range(1, 4):
            frame = frames.step(frames.at(BEGIN_NS + after * 10**9) or found, step)
            assert frame is not None
            of = first if run or after + step < 6 else second
            check_same(frame, _shown(of, after + step))
        frames.close()
