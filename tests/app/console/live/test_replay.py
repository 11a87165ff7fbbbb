"""The console on a recording, and a live console that goes back beyond its memory."""

from __future__ import annotations

import time
import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from app.console.app import ConsoleApp
from app.console.live.recorded import RecordedFrames
from bpf.errors import UsageError
from probes.path.traced import Traced
from probes.snapshot import Item, Snapshot
from tests.app.console.fake import Desk, becomes
from tests.app.console.fake_plane import FakePlane
from tests.app.recording.made import Plane, event, record, recorder, windows
from tests.support.runs import deck_ends, deck_here

SCREENS = ("overview", "paths", "flows", "triggers", "programs", "events")


@asynccontextmanager
async def replayed(directory: Path, at: str = "", first: str = "flows") -> AsyncIterator[Desk]:
    frames = RecordedFrames(str(directory))

    def begin() -> None:
        app.call_from_thread(app.time.do_time_go, at or "0s")

    app = ConsoleApp(
        lambda: cast(Any, frames.plane), begin, str(directory), first=first, names=False,
        recording=lambda: frames, replays=True,
    )  # fmt: skip
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await app.ready.wait()
        console = Desk(app, cast(Any, frames.plane), pilot)
        await becomes(console, lambda: app.time.frame.last is not None)
        await console.still()
        yield console
    frames.close()


def _items() -> list[Item]:
    found: list[Item] = []
    for item in windows(40, 30):
        found.append(item)
        if item.window % 10 == 0:
            found.append(event(item.window, f"event {item.window}"))
    return found


@pytest.mark.slow
async def test_a_recording_is_stepped_through_on_every_screen(tmp_path: Path) -> None:
    record(tmp_path, _items())
    async with replayed(tmp_path, "00:00:20") as console:
        assert "REPLAY 00:00:20" in console.strip
        assert "READ ONLY" in console.strip
        await console.press("left_square_bracket")
        assert "REPLAY 00:00:19" in console.strip
        await console.app.action_command("time.forward 4")
        await console.still()
        assert "REPLAY 00:00:23" in console.strip
        for screen in SCREENS:
            await console.app.action_command(f"view.{screen}")
            await console.still()
            assert "REPLAY 00:00:23" in console.strip, screen
        assert "event 20" in console.text
        assert "event 30" not in console.text
        day = next(line for line in console.text.splitlines() if "┃" in line)
        assert day.startswith(" 24 h ")
        assert day.index("┃") > 80
        for key, second in (("(", 20), ("(", 10), (")", 20), (")", 30), (")", 40)):
            await console.press({"(": "left_parenthesis", ")": "right_parenthesis"}[key])
            assert f"REPLAY 00:00:{second}" in console.strip
        await console.press("right_parenthesis")
        assert "no other window in that direction" in console.complaints[-1]
        await console.type("b00:00:23")
        await console.press("enter")
        assert "REPLAY 00:00:23" in console.strip
        await console.press("escape", "escape")
        assert "REPLAY 00:00:23" in console.strip, "there is no present"
        await console.app.action_command("time.live")
        await console.still()
        assert "REPLAY 00:00:40" in console.strip
        assert "event 40" in console.text
        await console.press("right_square_bracket")
        assert "no other window in that direction; kept since 00:00:01" in console.complaints[-1]
        await console.app.action_command("time.go 00:00:07")
        await console.press("space")
        await becomes(console, lambda: "PLAYING 00:00:09" in console.strip)
        await console.press("space")
        assert "REPLAY 00:00:" in console.strip
        await console.app.action_command("time.go 2025-12-31T23:00")
        await console.still()
        assert "nothing is kept of 2025-12-31T23:00" in console.complaints[-1]


async def test_state_is_as_of_the_moment_and_nothing_changes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.recording.recorder.STATE_S", 0.0)
    plane = Plane()
    made = recorder(tmp_path, plane=plane)
    for item in windows(20, 5):
        if item.window == 11:
            plane.traces = (Traced("192.0.2.9", (), 3, (1,), (), 0, 0, 0),)
        made.deliver(item, 0)
        made.tick()
    made.close()
    async with replayed(tmp_path, "00:00:05", "paths") as console:
        assert console.app.plane.traced() == ()
        await console.app.action_command("time.go 00:00:15")
        await becomes(console, lambda: "192.0.2.9" in console.text)
        await console.app.action_command("path.trace 192.0.2.7")
        await console.still()
        assert any("it is a recording" in words for words in console.complaints)


async def test_a_live_console_goes_back_beyond_its_memory(tmp_path: Path) -> None:
    now = time.time_ns() // 10**9 * 10**9
    items = [
        replace(item, end_utc_ns=now - (30 - item.window) * 10**9)
        for item in windows(30, 4)
        if isinstance(item, Snapshot)
    ]
    record(tmp_path, items)
    controller = FakePlane()
    app = ConsoleApp(
        lambda: cast(Any, controller), lambda: None, "eth0", first="flows", names=False,
        recording=lambda: RecordedFrames(str(tmp_path)),
    )  # fmt: skip
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await app.ready.wait()
        console = Desk(app, controller, pilot)
        for item in items[-5:]:
            controller.publish(item)
            await console.still()
            app.refresh_view()
        assert len(app.time.timeline.frames) == 5
        assert "LIVE" in console.strip
        for number in range(1, 12):
            await console.press("left_square_bracket")
            assert app.time.frame.utc_ns == now - number * 10**9, "memory, and then the recording"
        for number in range(10, 4, -1):
            await console.press("right_square_bracket")
            assert app.time.frame.utc_ns == now - number * 10**9
        await console.app.action_command("time.go 25s")
        await console.still()
        assert app.time.frame.utc_ns == now - 25 * 10**9
        await console.press("escape")
        assert "LIVE" in console.strip


async def test_without_a_recording_yet_there_is_memory_alone(tmp_path: Path) -> None:
    def none() -> RecordedFrames:
        raise UsageError("no recording")

    app = ConsoleApp(
        lambda: cast(Any, FakePlane()), lambda: None, "eth0", first="flows", names=False,
        recording=none,
    )  # fmt: skip
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await app.ready.wait()
        console = Desk(app, cast(Any, None), pilot)
        await console.press("left_square_bracket")
        assert "there was no window yet" in console.complaints[-1]


def test_tapes_play_on_a_recording(tmp_path: Path) -> None:
    record(tmp_path, _items())
    asked = "replay", str(tmp_path), "--at", "00:00:20", "--headless"
    code, _, err = deck_here(*asked, "--junit", "x.xml")
    assert (code, err) == (2, "probedeck: --junit needs a tape; give --tape or --exec\n")
    played = *asked, "--junit", str(tmp_path / "x.xml"), "--exec", "time.forward 3"
    assert deck_ends(*played)[0] == 0
    ((case,),) = ET.parse(tmp_path / "x.xml").getroot()
    assert (case.attrib["name"], list(case)) == ("1: Action time.forward 3", [])
    code, _, err = deck_here("replay", str(tmp_path / "none"), "--headless", "--exec", "view.flows")
    words = f"{tmp_path / 'none'} has no recording that this version reads"
    assert (code, err) == (2, f"probedeck: {words}; give the DIR of --record\n")
    assert deck_here("replay", str(tmp_path))[0] == 2
