"""Long tasks show their progress; harmless ones can be cancelled."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, cast

import pytest
from textual import events
from textual.pilot import Pilot

from app.console import tasks as progress
from app.console.app import ConsoleApp
from app.console.screen import front_screen
from app.console.screens import SCREENS
from app.console.tasks import Task
from bpf.errors import current
from probes.config.model import ProbeConfig
from probes.reports import Check, Replacement
from tests.app.console.fake import Desk, becomes, desk
from tests.app.console.fake_plane import SOURCE, FakePlane, config

if TYPE_CHECKING:
    from probes.control_plane import ControlPlane


class SlowPlane(FakePlane):
    """A plane whose checks and replacements last until `gate` is set; checks can be cancelled."""

    def check(self, config: ProbeConfig) -> Check:
        with current().on_cancel(self.gate.set):
            self.gate.wait(60)
            current().check()
            return super().check(config)

    def replace(self, config: ProbeConfig, *, force: bool = False) -> Replacement:
        self.gate.wait(60)
        return super().replace(config, force=force)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SAID_AFTER", 0.05)


def test_its_words_change_at_most_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("app.console.tasks.time.monotonic", lambda: now)
    work = Task("writing x.csv", started=now)
    said = []
    for now in (100.4, 100.9, 101.2, 101.8, 102.1, 175.0):
        work.progress((now - 100) / 100)
        said.append(work.words)
    assert said == [
        "writing x.csv, 0.4 %",
        "writing x.csv, 0.4 %",
        "writing x.csv 1 s, 1.2 %",
        "writing x.csv 1 s, 1.2 %",
        "writing x.csv 2 s, 2.1 %",
        "writing x.csv 1m, 75.0 %",
    ]
    with work.cancel.on_cancel():
        assert work.words == "writing x.csv 1m, 75.0 %; esc cancels"


@asynccontextmanager
async def editing() -> AsyncIterator[tuple[Desk, SlowPlane]]:
    """Screen 5 with an edit, and a plane that takes its time."""
    plane = SlowPlane(config("hello"))
    async with desk(120, 30, plane) as console:
        await console.feed()
        await console.press("5", "enter")
        plane.gate.clear()
        try:
            yield console, plane
        finally:
            plane.gate.set()


async def edit(console: Desk) -> None:
    editor = console.app.screen.editor  # type: ignore[attr-defined]
    editor.put(SOURCE.replace("u64 one = 1", "u64 one = 2"))
    await console.still()


async def until(console: Desk, word: str, *, gone: bool = False) -> None:
    await becomes(console, lambda: (word in console.strip) is not gone)


async def test_a_check_is_told_of_and_cancelled_by_escape_from_within_the_editor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "SAID_AFTER", 60.0)
    async with editing() as (console, plane):
        await edit(console)
        await console.press("f5")
        # What is quick is not told of.
        console.app.show_status()
        await console.still()
        assert "checking hello" not in console.strip
        monkeypatch.setattr(progress, "SAID_AFTER", 0.05)
        console.app.show_status()
        await until(console, "checking hello; esc cancels")
        await console.press("escape")
        await until(console, "checking hello", gone=True)
        assert console.complaints[-1] == "checking hello is cancelled"
        assert "checking" not in console.text.replace(console.complaints[-1], "")
        assert console.app.screen.editor.has_focus  # type: ignore[attr-defined]
        # The next one is another.
        plane.gate.set()
        await console.press("f5")
        await console.app.workers.wait_for_complete()
        await console.still()
        assert "verified" in console.text
        await console.press("escape")
        assert not console.app.screen.editor.has_focus  # type: ignore[attr-defined]


@pytest.mark.slow
async def test_what_is_done_by_itself_is_told_of_once_it_is_asked_for() -> None:
    """And a swap cannot be cancelled when the program is verified."""
    async with editing() as (console, plane):
        await console.app.action_command("work.cancel")
        await console.still()
        assert "nothing is being done" in console.complaints[-1]
        await edit(console)
        console.app.screen.check()  # type: ignore[attr-defined]
        await console.pilot.pause(0.1)
        console.app.show_status()
        await console.still()
        assert "checking hello" not in console.strip
        await console.press("f5")
        console.app.show_status()
        await until(console, "checking hello; esc cancels")
        await console.app.action_command("work.cancel")
        await until(console, "checking hello", gone=True)
        assert plane.asked == []
        plane.gate.set()
        await console.press("f5")
        await console.app.workers.wait_for_complete()
        plane.gate.clear()
        await console.press("f8")
        await until(console, "swapping hello")
        assert "esc cancels" not in console.strip
        await console.app.action_command("work.cancel")
        await console.still()
        assert "swapping hello cannot be cancelled now" in console.complaints[-1]
        plane.gate.set()
        await until(console, "swapping hello", gone=True)
        assert ("replace", "hello") in plane.asked


@pytest.mark.parametrize("screen", [name for name in SCREENS if name != "hosts"])
async def test_escape_cancels_on_every_screen_before_it_does_anything_else(screen: str) -> None:
    gate = threading.Event()

    def work() -> None:
        with current().on_cancel(gate.set):
            gate.wait(60)
            current().check()

    async with desk(120, 30, first=screen) as console:
        await console.feed()
        front = front_screen(console.app)
        front.run_in_worker(work, lambda _: None, console.app.complain, task=Task("counting sheep"))
        await until(console, "counting sheep")
        console.app.show_status()
        await until(console, "esc cancels")
        await console.press("escape")
        await until(console, "counting sheep", gone=True)
        assert console.complaints[-1] == "counting sheep is cancelled"
        assert gate.is_set()


@pytest.mark.parametrize("heeds", [True, False], ids=["cancellable", "deaf"])
def test_quitting_waits_for_no_work(heeds: bool) -> None:
    """Neither for work that can be cancelled, nor for a controller that does not answer."""
    gate, began = threading.Event(), threading.Event()

    def work() -> None:
        with current().on_cancel(gate.set) if heeds else nullcontext():
            began.set()
            gate.wait(20)

    def ask() -> None:
        gate.wait(20)

    async def press(pilot: Pilot[Any]) -> None:
        await app.ready.wait()
        front = front_screen(app)
        for number in range(8):  # more than asyncio has threads
            front.run_in_worker(ask, lambda _: None, app.complain, task=Task(f"asking {number}"))
        front.run_in_worker(work, lambda _: None, app.complain, task=Task("checking"))
        while not began.is_set():
            await pilot.pause(0.01)
        ending.append(time.monotonic())
        app.post_message(events.Key("q", "q"))

    ending: list[float] = []
    plane = cast("ControlPlane", FakePlane())
    app = ConsoleApp(lambda: plane, lambda: None, "eth0", names=False)
    try:
        assert app.run(headless=True, auto_pilot=press) == 0
        assert time.monotonic() - ending[0] < 10, "the work takes 20 s"
        assert gate.is_set() == heeds
    finally:
        gate.set()


async def test_what_a_thread_tells_is_not_shown_by_a_console_that_ends() -> None:
    shown: list[str] = []
    async with desk() as console:
        screen, tasks, task = front_screen(console.app), console.app.tasks, Task("")
        tasks._tasks += [task, task]
        tasks.follow_up(screen, task, lambda: shown.append("before"), of_command=False)
        console.app.exit()
        tasks.follow_up(screen, task, lambda: shown.append("after"), of_command=False)
    assert shown == ["before"]
