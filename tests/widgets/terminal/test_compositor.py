"""A terminal's screen after differential updates, against the full picture."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from textual.events import Resize
from textual.geometry import Size

from tests.support.console.emulator import Paint, painted
from tests.support.console.terminal import Terminal
from tests.widgets.demo import Flows
from tests.widgets.terminal.stage import WORDS, CaptureDriver, Dialog, Stage, Watch, step
from widgets.status import StatusItem
from widgets.table.table import VirtualTable
from widgets.terminal.compositor import DiffModalScreen, DiffScreen, TerminalCaps
from widgets.terminal.diff_writer import sgr_change
from widgets.tones import Tone

NOTHING: Paint = (frozenset(), "", "")


@pytest.fixture(autouse=True)
def _truecolor(monkeypatch: pytest.MonkeyPatch) -> None:
    # One for all tests: Rich and Textual keep the codes of a style for the whole process.
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("diff", "seed", "steps", "look"),
    [
        (True, 1, 40, TerminalCaps()),
        (True, 2, 40, TerminalCaps(erases=True)),
        (True, 4, 20, TerminalCaps("ascii", erases=True)),
        (False, 3, 12, TerminalCaps()),
    ],
)
async def test_the_terminal_shows_what_it_should(
    diff: bool, seed: int, steps: int, look: TerminalCaps
) -> None:
    dice = random.Random(seed)
    app = Stage(diff=diff, look=look)
    async with app.run_test(headless=False, size=(80, 24), notifications=True) as pilot:
        watch = Watch(pilot, (80, 24))
        done: list[str] = []
        for _ in range(steps):
            done.append(await step(watch, app, dice))
            assert await watch.matches(), f"after {done}:\n{watch.difference()}"


async def test_another_app_parses_no_sheet_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Stage().run_test(size=(80, 24)):
        pass
    monkeypatch.delattr("textual.css.stylesheet.parse")
    async with Stage().run_test(size=(80, 24)) as pilot:
        pilot.app.stylesheet.reparse()


async def test_a_changed_cell_costs_a_few_bytes() -> None:
    app = Stage()
    async with app.run_test(headless=False, size=(120, 40)) as pilot:
        watch = Watch(pilot, (120, 40))
        app.strip.show([StatusItem("41 ms", label="poll"), StatusItem("eth0")])
        assert await watch.matches()
        before = watch.bytes
        app.strip.show([StatusItem("42 ms", label="poll"), StatusItem("eth0")])
        assert await watch.matches()
        assert 0 < watch.bytes - before < 80
        app.table.refresh()
        app.strip.refresh()
        before = watch.bytes
        assert await watch.matches()
        assert watch.bytes - before < 40


async def test_a_spoilt_terminal_is_drawn_again_when_asked() -> None:
    app = Stage()
    async with app.run_test(headless=False, size=(80, 24)) as pilot:
        watch = Watch(pilot, (80, 24))
        assert await watch.matches()
        watch.emulator.feed("\x1b[5;5Hanother program wrote here")
        assert watch.emulator.seen != watch.expected()
        screen = app.screen
        assert isinstance(screen, DiffScreen)
        screen.refresh_terminal()
        assert await watch.matches()


async def test_a_terminal_that_changed_its_size_and_back_is_drawn_again() -> None:
    app = Stage()
    async with app.run_test(headless=False, size=(80, 24)) as pilot:
        watch = Watch(pilot, (80, 24))
        assert await watch.matches()
        app.post_message(Resize(Size(70, 24), Size(70, 24)))
        app.post_message(Resize(Size(80, 24), Size(80, 24)))
        watch.emulator.resize(80, 24)
        assert await watch.matches()


async def test_a_dialog_costs_no_more_than_itself() -> None:
    app = Stage()
    async with app.run_test(headless=False, size=(120, 40)) as pilot:
        watch = Watch(pilot, (120, 40))
        app.table.show(Flows(1, 300))
        assert await watch.matches()
        before = watch.bytes
        dialog = Dialog("hello")
        dialog.styles.background = "transparent"
        await app.push_screen(dialog)
        assert await watch.matches()
        await app.pop_screen()
        assert await watch.matches()
        assert watch.bytes - before < 7000


async def test_the_screenshot_is_the_whole_screen() -> None:
    app = Stage()
    async with app.run_test(headless=False, size=(80, 24)) as pilot:
        app.strip.show([StatusItem("hello")])
        await pilot.pause(0.05)
        assert "hello" in app.export_screenshot()


@pytest.mark.parametrize(
    ("before", "after", "sequence"),
    [
        ("1;31", "1;31", ""),
        ("1;31", "", "\x1b[m"),
        ("", "31", "\x1b[31m"),
        ("38;2;1;2;3;48;2;4;5;6", "38;2;9;2;3;48;2;4;5;6", "\x1b[38;2;9;2;3m"),
        ("31;48;5;7", "31;48;5;8", "\x1b[48;5;8m"),
        ("31;41", "31", "\x1b[49m"),
        ("31;41", "41", "\x1b[39m"),
        ("1;31", "31", "\x1b[22m"),
        ("91", "3;91", "\x1b[3m"),
    ],
)
def test_paint_changes_by_the_least(before: str, after: str, sequence: str) -> None:
    assert sgr_change(before, after) == sequence
    if sequence:
        shown = painted(painted(NOTHING, before or "0"), sequence[2:-1])
        assert shown == painted(NOTHING, after or "0")


def demo(*options: str) -> list[str]:
    return [sys.executable, "-I", "-m", "tests.widgets.demo", *options]


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_after_a_suspension_the_screen_is_drawn_again() -> None:
    with Terminal(demo("--period", "0"), columns=80, rows=24) as terminal:
        terminal.wait("ready")
        before = terminal.settle()
        terminal.signal(signal.SIGTSTP)
        terminal.wait(lambda text: not text.strip())
        terminal.emulator.feed("$ some shell output")
        while not stopped(terminal.pid):
            time.sleep(0.01)
        terminal.signal(signal.SIGCONT)
        terminal.wait(lambda text: text == before)


@pytest.mark.slow
def test_a_stalled_terminal_does_not_stop_the_program(tmp_path: Path) -> None:
    ticks = tmp_path / "ticks"
    options = ("--period", "0.05", "--rows", "200", "--ticks", str(ticks))
    with Terminal(demo(*options), columns=120, rows=40) as terminal:
        terminal.wait("ready")
        terminal.stall()
        time.sleep(1.5)
        start = ticks.stat().st_size
        time.sleep(1.0)
        assert ticks.stat().st_size - start >= 14
        terminal.resume()
        generation = int(ticks.stat().st_size)
        terminal.wait(lambda text: any(f"gen {generation + n} " in text for n in range(1, 200)))


async def test_a_large_frame_goes_out_in_parts_and_a_key_before_the_rest() -> None:
    app = Stage()
    async with app.run_test(headless=False, size=(80, 24)) as pilot:
        watch = Watch(pilot, (80, 24))
        assert await watch.matches()
        driver = app._driver
        assert isinstance(driver, CaptureDriver)
        allowed = 250
        with pytest.MonkeyPatch.context() as patch:
            left = property(lambda _: max(0, allowed - len(driver.written)))
            patch.setattr(Stage, "room", left)
            app.table.show(Flows(1, 300))
            app.input.focus()
            await asyncio.sleep(0.3)
            assert app.behind
            already, allowed = len(driver.written), allowed + 250
            await asyncio.sleep(0.05)
            assert len(driver.written) > already
            app.input.value = "hi"
            await asyncio.sleep(0.05)
            watch.emulator.feed(driver.written)
            assert "hi" not in watch.emulator.text
            already, allowed = len(driver.written), allowed + 250
            await asyncio.sleep(0.05)
            watch.emulator.feed(driver.written[already:])
            assert "hi" in watch.emulator.text
            assert app.behind
            already, allowed = len(driver.written), 1 << 20
            await asyncio.sleep(0.1)
            assert not app.behind
            watch.emulator.feed(driver.written[already:])
            driver.written = ""
            assert await watch.matches()


async def test_where_nothing_can_be_shown_it_says_what_it_takes() -> None:
    app = Stage()
    async with app.run_test(headless=False, size=(80, 24)) as pilot:
        watch = Watch(pilot, (80, 24))
        assert await watch.matches()
        for size in ((39, 24), (80, 7), (3, 1)):
            watch.emulator.resize(*size)
            await pilot.resize_terminal(*size)
            await pilot.pause()
            watch.replay()
            said = f"{size[0]}x{size[1]}: needs 40x8"
            assert watch.emulator.text.split() == said[: size[0]].split()
        watch.emulator.resize(40, 8)
        await pilot.resize_terminal(40, 8)
        assert await watch.matches()


async def test_many_sizes_in_a_row_end_in_the_last_one() -> None:
    app = Stage()
    async with app.run_test(headless=False, size=(80, 24)) as pilot:
        watch = Watch(pilot, (80, 24))
        assert await watch.matches()
        for number in range(300):
            size = Size(40 + number % 90, 8 + number % 40)
            app.post_message(Resize(size, size))
        app.post_message(Resize(Size(70, 20), Size(70, 20)))
        watch.emulator.resize(70, 20)
        await pilot.pause()
        watch.emulator.resize(70, 20)
        app.screen.query_one(VirtualTable)
        assert isinstance(app.screen, DiffScreen)
        app.screen.refresh_terminal()
        assert await watch.matches()


async def test_ascii_and_no_colours_go_out_as_asked() -> None:
    app = Stage(look=TerminalCaps("ascii", colors=False))
    async with app.run_test(headless=False, size=(80, 24)) as pilot:
        app.table.show(Flows(1, 300))
        app.strip.show([StatusItem(word, Tone.BAD) for word in WORDS])
        app.notify("→ 漢字", markup=False)
        await app.push_screen(Dialog("größe"))
        await pilot.pause()
        driver = app._driver
        assert isinstance(driver, CaptureDriver)
        assert driver.written.isascii()
        assert "Flow" in driver.written
        assert "gr??e" in driver.written
        sequences = re.findall(r"\x1b\[([\d;]*)m", driver.written)
        codes = {code for sequence in sequences for code in sequence.split(";") if code}
        assert codes <= {"1", "2", "3", "4", "7", "9"}


async def test_an_event_of_another_size_that_comes_late_is_of_no_account() -> None:
    app = Stage()
    async with app.run_test(headless=False, size=(80, 24)) as pilot:
        late = Size(50, 10)
        app.screen.post_message(Resize(late, late))
        await pilot.pause()
        assert app.screen._compositor.size == Size(80, 24)


async def test_a_screen_over_others_is_closed_once() -> None:
    app = Stage()
    async with app.run_test(size=(80, 24)) as pilot:
        first, second = DiffModalScreen[None](), DiffModalScreen[None]()
        await app.push_screen(first)
        await app.push_screen(second)
        second.dismiss()
        second.dismiss()
        await pilot.pause()
        assert app.screen is first
