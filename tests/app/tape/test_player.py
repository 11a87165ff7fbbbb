"""Tapes played on a console over made-up windows, and recorded on it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import cast

import pytest

from app.config.model import Settings
from app.console.app import ConsoleApp
from app.tape import store
from app.tape.condition import known, states
from app.tape.load import of_text
from app.tape.model import StepError
from app.tape.options import Startup
from bpf.errors import UsageError
from probes.control_plane import ControlPlane
from tests.app.console.fake import Desk, desk, flow
from tests.app.console.fake_plane import FakePlane, config
from tests.app.console.fake_triggers import monitor, policy


async def play(console: Desk, text: str, *, allow_write: bool = False) -> str:
    """Play a tape; where it was stopped. Raises StepError."""
    app = console.app
    app.tapes.startup = Startup(None, allow_write)
    return await app.tapes._played(of_text(text, "x.tape"))


async def failure(console: Desk, text: str, *, allow_write: bool = False) -> str:
    with pytest.raises(StepError) as caught:
        await play(console, text, allow_write=allow_write)
    assert caught.value.exit_code == 3
    return str(caught.value)


async def played(console: Desk) -> None:
    """Wait until no tape plays."""
    tapes = [worker for worker in console.app.workers if worker.group == "tape"]
    await console.app.workers.wait_for_complete(tapes)
    await console.still()


async def test_a_tape_does_what_an_operator_would(tmp_path: Path) -> None:
    async with desk() as console:
        await console.feed(flow(1, 10), flow(2, 30), flow(3, 20, proto=17))
        await play(
            console,
            f"""\
            view.flows
            Expect view == "flows"
            Expect flow.total == 3
            Action flow.filter
            Expect prompt == "flow.filter"
            Type "proto:tcp"
            Expect prompt.text == "proto:tcp"
            Enter
            Expect prompt == ""
            Expect flow.count == 2
            Wait+Screen@1s /2 of 3 flows/
            flow.sort rate
            Key "S"
            Expect flow.order == "ascending"
            Wait+Line /10.0.0.1:40001/
            Expect flow.source == "10.0.0.1:40001"
            Down
            Expect flow.source =~ /^10\\.0\\.0\\.2:/
            Expect flow.rate > 29kbit/s
            Space
            Expect paused == true
            Screenshot "{tmp_path}/pictures/a.txt"
            Screenshot "{tmp_path}/a.svg"
            Export flows "{tmp_path}/tables/a.csv"
            Ctrl+P
            Type "quit"
            Escape
            """,
        )
        assert console.sources == [1, 2]
        assert "PAUSED" in console.strip
        assert "PLAYING" not in console.strip
    drawn = (tmp_path / "pictures/a.txt").read_text()
    assert "PLAYING x.tape 22/27" in drawn
    assert "filter proto:tcp" in drawn
    assert "<svg" in (tmp_path / "a.svg").read_text()
    assert len((tmp_path / "tables/a.csv").read_text().splitlines()) == 3


async def test_what_is_named_is_known_to_a_screen_that_was_not_turned_to_before() -> None:
    plane = FakePlane(config("flow"), config("hello"))
    plane.monitor_info = monitor(policy("flood: flows > 500 -> heavy_hitters"))
    async with desk(120, 40, plane) as console:
        text = 'program.edit hello\nExpect program.probe == "hello"\ntrigger.toggle flood\n'
        await play(console, f"{text}Action trigger.change flood", allow_write=True)
        assert ("activate_policy", "flood") in plane.asked


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('Expect view == "paths"', 'Expect view == "paths": it is "flows"'),
        ("Expect flow.count > 4", "Expect flow.count > 4: it is 2"),
        ('Expect path.destination == "::1"', "it is not known"),
        ("Wait@50ms paused == true", "Wait@50ms paused == true: it is false after 0.05 s"),
        ("Wait+Screen@50ms /no such/", "/no such/: not on the screen within 0.05 s"),
        ("Expect+Screen /no such/", "/no such/: not on the screen within 0.1 s"),
        ("Expect+Line /Proto/", "/Proto/: not in the line of the cursor within 0.1 s"),
        ("Wait+Line@50ms /Proto/", "not in the line of the cursor within 0.05 s"),
        ("view.columns hop", "view.columns hop: flows have no column 'hop'"),
        ("Wait+Screen /( *)+\\n!/", "the search took more than 0.05 s"),
        ('Action flow.filter\nType "proto:"\nEnter', "x.tape:4: Enter: "),
        ("probe.remove nothing", "there is no probe 'nothing'"),
        ("Key C", "changes what runs; --allow-write lets a tape do that"),
        ('Export flows "/proc/x/y.csv"', "cannot be written: No such file"),
    ],
)
async def test_what_does_not_come_out_as_the_tape_says_ends_it(
    line: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.tape.steps.PATIENCE", 0.1)
    monkeypatch.setattr("app.tape.condition.LONGEST", 0.05)
    async with desk(controller=FakePlane(config())) as console:
        await console.feed(flow(1, 10), flow(2, 30))
        await console.press("3")
        told = await failure(console, f"# x\n{line}", allow_write=line.startswith("probe"))
        assert told.startswith("x.tape:")
        assert said in told
        assert console.app.tapes.playing == ""


@pytest.mark.parametrize(
    ("text", "shown", "code"),
    [
        ("view.events", True, None),
        ("view.events", False, 0),
        ("view.events\napp.quit", True, 0),
        ('view.events\nExpect view == "flows"', False, 3),
        ("view.events\napp.quit\nEnter", True, 3),
    ],
)
async def test_what_is_played_first_ends_the_console_or_hands_over(
    text: str, shown: bool, code: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.console.tapes.control._FIRST", 0)
    monkeypatch.setattr("app.tape.steps.PATIENCE", 0)
    plane = cast("ControlPlane", FakePlane())
    app = ConsoleApp(lambda: plane, lambda: None, "eth0", names=False)
    app.tapes.begin_with(Startup(of_text(text, "x.tape"), shown=shown))
    async with app.run_test() as pilot:
        await app.ready.wait()
        await pilot.pause()
        assert app.current_mode == "events"
        assert app.return_value == code
        if code == 3:
            assert str(app.failure).startswith("x.tape:")
    assert app.tapes.unplayed() is None or code == 3
    count = text.count("\n") + 1
    outcomes = {
        None: ["passed"] * count, 0: ["passed"] * count, 3: ["passed"] * (count - 1) + ["failed"],
    }  # fmt: skip
    cases = app.tapes.suite("why" if code == 3 else "").cases
    assert [(each.failure and "failed") or "passed" for each in cases] == outcomes[code]


async def test_steps_behind_a_failure_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.console.tapes.control._FIRST", 0)
    monkeypatch.setattr("app.tape.steps.PATIENCE", 0)
    plane = cast("ControlPlane", FakePlane())
    app = ConsoleApp(lambda: plane, lambda: None, "eth0", names=False)
    text = '# x\nview.events\nExpect view == "flows"\nEnter\nEnter'
    app.tapes.begin_with(Startup(of_text(text, "x.tape"), shown=False))
    assert [each.skipped for each in app.tapes.suite("no probe").cases] == [False, *[True] * 3]
    async with app.run_test():
        await app.ready.wait()
        async with asyncio.timeout(10):
            while app.failure is None:
                await asyncio.sleep(0.01)
    name, cases, _, _ = app.tapes.suite("why")
    assert name == "x.tape"
    assert cases == [
        ("2: view.events", "", False), ('3: Expect view == "flows"', "why", False),
        ("4: Enter", "", True), ("5: Enter", "", True),
    ]  # fmt: skip


async def test_a_tape_played_before_the_first_one_is_over_comes_after_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The probes have not started yet: both wait, and neither is dropped."""
    monkeypatch.setattr("app.console.tapes.control._FIRST", 0)
    started = threading.Event()
    plane = cast("ControlPlane", FakePlane())
    app = ConsoleApp(lambda: plane, lambda: started.wait(10), "eth0", names=False)
    app.tapes.begin_with(Startup(of_text("view.events", "x.tape")))
    (tmp_path / "early.tape").write_text('Expect view == "events"\nview.paths\n')
    async with app.run_test() as pilot:
        await app.ready.wait()
        app.tapes.play(str(tmp_path / "early.tape"))
        await pilot.pause()
        assert app.current_mode == "overview"
        started.set()
        async with asyncio.timeout(10):
            while app.current_mode != "paths":
                await pilot.pause(0.01)
    assert app.tapes.unplayed() is None
    assert app.failure is None


async def test_a_console_that_ends_before_its_tape_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.console.tapes.control._FIRST", 0)
    plane = cast("ControlPlane", FakePlane())
    app = ConsoleApp(lambda: plane, lambda: None, "eth0", names=False)
    app.tapes.begin_with(Startup(of_text("view.events\nSleep 60s\nEnter", "x.tape")))
    async with app.run_test() as pilot:
        await app.ready.wait()
        await pilot.pause()
        app.exit(0)
    said = "x.tape:2: Sleep 60s: the console ended before this was done"
    assert str(app.tapes.unplayed()) == said


async def test_a_step_waits_for_what_the_one_before_began(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.tape.steps.PATIENCE", 0)
    plane = FakePlane(config())
    plane.gate.clear()
    async with desk(controller=plane) as console:
        playing = asyncio.create_task(
            play(
                console,
                """\
                view.programs
                Wait program.state == "running"
                program.edit
                Type "/"
                program.compile
                Expect program.state == "ready"
                program.swap
                Expect program.generation == 2
                Expect program.state == "running"
                """,
                allow_write=True,
            )
        )
        while ("check", "hello") not in plane.asked:
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.1)
        assert not playing.done()
        assert console.app.tapes.state_of("program.state") == "checking"
        plane.gate.set()
        await asyncio.wait_for(playing, 10)
        assert ("replace", "hello") in plane.asked


async def test_what_takes_too_long_fails() -> None:
    plane = FakePlane(config())
    plane.gate.clear()
    async with desk(controller=plane) as console:
        told = await failure(console, "view.programs\nSet WaitTimeout 100ms\nprogram.compile")
        assert told == "x.tape:3: program.compile: not done within 0.1 s"
        plane.gate.set()


async def test_escape_stops_a_tape_and_other_keys_do_not_get_between(tmp_path: Path) -> None:
    tape = tmp_path / "slow.tape"
    tape.write_text("view.flows\nSleep 20s\nview.events\n")
    async with desk(settings=Settings(macros={"mine": str(tape)})) as console:
        console.app.tapes.play("mine")
        while "PLAYING slow 2/3" not in console.strip:
            await asyncio.sleep(0.02)
        assert console.app.tapes.state_of("macro.playing") == "slow"
        await console.press("6")
        assert console.app.current_mode == "flows"
        with pytest.raises(UsageError, match="slow is playing"):
            console.app.tapes.play("triage")
        await console.press("escape")
        while not console.complaints:
            await asyncio.sleep(0.02)
        assert "slow was stopped in line 2" in console.complaints[-1]
        await console.press("6")
        assert console.app.current_mode == "events"


async def test_a_tape_that_fails_is_complained_of_and_the_console_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("app.tape.steps.PATIENCE", 0.1)
    (tmp_path / "bad.tape").write_text('Expect view == "events"\n')
    (tmp_path / "wrong.tape").write_text("Enterr\n")
    (tmp_path / "writes.tape").write_text("flow.capture tcp\n")
    async with desk() as console:
        for name, said in (
            ("bad.tape", ':1: Expect view == "events": it is "'),
            ("wrong.tape", ":1:1: there is no verb"),
            ("writes.tape", "--allow-write"),
            ("nothing", "there is no tape 'nothing'"),
        ):
            await console.app.action_command(f"macro.play {name}")
            await played(console)
            assert said in console.complaints[-1]
        assert console.app.return_value is None


@pytest.mark.slow
async def test_what_is_recorded_comes_to_the_same_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("app.console.tapes.recorder._IDLE", 60)

    async def feed(console: Desk) -> None:
        await console.feed(flow(1, 10), flow(2, 30), flow(3, 20, proto=17), flow(4, 5))

    def end(console: Desk) -> list[object]:
        return [console.app.tapes.state_of(n) for n in states() if n not in ("message", "windows")]

    async with desk() as console:
        await feed(console)
        await console.press("3", "Q")
        assert "REC q" in console.strip
        await console.press("slash")
        await console.type("tpc")
        # It is refused; the cursor goes to where it is wrong.
        await console.press("enter", "delete", "delete", "right")
        await console.type("cp")
        await console.press("home", "delete", "t", "enter")
        await console.press("S", "j", "j", "d")
        await console.press("colon")
        await console.type("flow.sort bytes")
        await console.press("enter")
        await console.press("ctrl+p")
        await console.type("revers")
        await console.still()
        await console.press("enter")
        await console.still()
        await console.press("space", "f8", "Q")
        assert "REC" not in console.strip
        recorded = end(console)
    text = store.register("q").read_text()
    assert text.splitlines() == [
        "Action view.flows",
        "Action flow.filter",
        "Ctrl+U",
        'Type "tpc"',
        "Left 3",
        "Delete 2",
        "Right",
        'Type "cp"',
        "Home",
        "Delete",
        'Type "t"',
        "Enter",
        "Action flow.reverse",
        "Action table.down",
        "Action table.down",
        "Action flow.detail",
        "Action flow.sort bytes",
        "Action flow.reverse",
        "Action view.pause",
        "F8",
    ]
    async with desk() as console:
        await feed(console)
        await console.press("at")
        assert console.app.tapes.asking == ("macro.play", "q")
        # A letter that is typed is meant instead, not after it.
        await console.press("q")
        assert console.app.tapes.asking == ("macro.play", "q")
        await console.press("enter")
        await played(console)
        assert end(console) == recorded


async def test_what_the_mouse_does_is_recorded_where_it_presses_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    async with desk() as console:
        await console.feed(flow(1, 10), flow(2, 30))
        await console.press("3", "Q")
        pilot = console.pilot
        await pilot.click("KeyBar", offset=(1, 0))
        await console.still()
        assert "not recorded" not in str(console.app.tapes.state_of("message"))
        await pilot.click("#flows", offset=(10, 2))
        await console.still()
        assert "the mouse does is not recorded" in str(console.app.tapes.state_of("message"))
        await console.press("Q")
    assert store.register("q").read_text() == "Action view.flows\nAction flow.filter\n"


async def test_every_name_of_state_stands_for_what_it_says() -> None:
    async with desk(controller=FakePlane(config())) as console:
        await console.feed(flow(1, 10))
        for mode in ("paths", "flows", "triggers", "programs", "events"):
            await console.app.switch_mode(mode)
            await console.still()
        for name, named in states().items():
            value = console.app.tapes.state_of(name)
            if value is None:
                continue
            kind = {"text": str, "true or false": bool}.get(named.kind.value, (int, float))
            assert isinstance(value, kind), name
            assert not named.choices or value in named.choices, name
        assert known("trigger.state.") is None


async def test_a_console_that_cannot_begin_ends_with_the_reason() -> None:
    def none() -> ControlPlane:
        raise UsageError("flows.csv is left alone")

    app = ConsoleApp(none, lambda: None, "eth0", names=False)
    app.tapes.begin_with(Startup(of_text("view.events", "x.tape"), shown=False))
    async with app.run_test():
        async with asyncio.timeout(10):
            while app.return_value is None:
                await asyncio.sleep(0.01)
    assert (app.return_value, str(app.failure)) == (2, "flows.csv is left alone")
