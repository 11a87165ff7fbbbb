"""The last day of a recording on a line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.console.live.day import DAY_NS, MINUTE, Day, RecordedDay, day_pieces
from app.recording.reader import Recording
from tests.app.recording.made import BEGIN_NS, event, record, recorder, windows

HOUR_NS = 3600 * 10**9


def _line(day: Day, moment_ns: int, cells: int = 24) -> str:
    return "".join(text for text, _ in day_pieces(day, moment_ns, cells))


def test_cells_have_traffic_events_and_the_moment() -> None:
    end_ns = BEGIN_NS + DAY_NS
    # The minutes that end with the hours 6, 12 and 18.
    minutes = np.array([(BEGIN_NS + hour * HOUR_NS, hour * 1e6) for hour in (6, 12, 18)], MINUTE)
    day = Day(end_ns, minutes, np.array([BEGIN_NS + int(9.5 * HOUR_NS)]))
    line = _line(day, BEGIN_NS + 20 * HOUR_NS)
    assert line == " 24 h      ▃   ◆ ▅     █ ┃     00:00:00  20.0 Mbit/s"
    assert "┃◆" not in _line(day, end_ns)
    assert len(_line(Day(end_ns, minutes[:0], np.empty(0, "i8")), end_ns)) > 24


def test_a_day_follows_its_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.console.live.day._AGAIN_S", 0.0)
    items = [replace(item, end_utc_ns=BEGIN_NS + item.window * 60 * 10**9) for item in windows(30)]
    record(tmp_path, [*items[:10], event(300), replace(event(360), severity="info")])
    with Recording(str(tmp_path)) as recording:
        day = RecordedDay(recording)
        before = day.read()
        assert len(before.minutes) == 10
        assert before.events_ns.tolist() == [BEGIN_NS + 300 * 10**9]
        made = recorder(tmp_path)
        for item in items[10:]:
            made.deliver(item, 0)
        made.deliver(event(1500), 0)
        made.close()
        after = day.read()
        assert (after.minutes["end_ns"] == BEGIN_NS + np.arange(1, 31) * 60 * 10**9).all()
        total = [int(item.rows["bytes"].sum()) * 8 for item in items]
        assert (after.minutes["bit_rate"] == total).all(), "windows of a second"
        assert len(after.events_ns) == 2
        day.close()
