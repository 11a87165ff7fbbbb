"""Typing commands: completions, history, and correction of a mistake."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from app.commands.line import Invocation, parse
from app.config.paths import state_dir
from app.console.commands import dispatcher
from app.console.prompt.prompt import MARK, Prompt
from app.console.screen import front_screen
from bpf.errors import ProbedeckError, UsageError
from tests.app.console.fake import Desk, desk, flow


@pytest.fixture(autouse=True)
def _nothing_typed_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def prompt(console: Desk) -> Prompt:
    return front_screen(console.app).prompt


@pytest.mark.slow
async def test_a_line_is_completed_done_and_remembered() -> None:
    async with desk(80, 24) as console:
        await console.feed(flow(1, 10), flow(2, 30))
        await console.press("2", "colon")
        await console.type("flow.rev")
        assert " : flow.reverse " in console.lines[-2]  # what was not typed is suggested
        await console.press("tab", "enter")
        assert console.app.current_mode == "flows"
        assert console.sources == [1, 2]
        await console.press("2")
        assert not prompt(console).is_open
        await console.press("colon")
        await console.type("flow.so")
        await console.press("tab")
        assert prompt(console).text == "flow.sort "
        await console.press("tab", "tab")
        offered = console.lines[-3]
        first = prompt(console).text.removeprefix("flow.sort ")
        assert first in offered
        await console.press("tab", "shift+tab")
        assert prompt(console).text == f"flow.sort {first}"
        await console.press("shift+tab")
        last = prompt(console).text.removeprefix("flow.sort ")
        assert last != first
        assert last in console.lines[-3]
        await console.press("escape", "colon", "up")
        assert prompt(console).text == "flow.reverse"
    assert state_dir().joinpath("history").read_text() == "flow.reverse\n"
    async with desk(80, 24) as console:
        await console.press("colon")
        await console.still()
        await console.type("flow.re")
        await console.press("up", "enter")
        assert console.app.current_mode == "flows"


async def test_a_mistake_is_marked_and_mended_where_it_is() -> None:
    async with desk(80, 24) as console:
        await console.feed(flow(1, 10))
        await console.press("3", "colon")
        await console.type("flow.sort")
        await console.press("space", *"byts", "enter")
        assert "there is no column 'byts'; did you mean bytes?" in console.lines[-4]
        assert console.lines[-2].index("byts") == console.lines[-3].index(MARK)
        await console.press("delete", *"b", "end", "backspace", *"es")
        assert MARK not in console.lines[-3]
        await console.press("enter")
        assert not prompt(console).is_open
        assert "Bytes▼" in console.lines[1].replace(" ", "")
        # A filter within a line is marked in the line.
        await console.press("colon")
        await console.type("flow.filter tcp nonsense")
        await console.press("enter")
        assert console.lines[-2].index("nonsense") == console.lines[-3].index(MARK)
        await console.press("escape")
        assert "nonsense" not in console.text
        # The history has wrong commands too.
        await console.press("colon")
        assert prompt(console).text == ""
        await console.press("enter")
        assert "a command is missing" in console.text


async def test_a_value_has_its_own_history_and_candidates() -> None:
    async with desk(80, 24) as console:
        await console.feed(flow(1, 10), flow(2, 30, proto=17))
        await console.press("3", "slash")
        await console.type("prot")
        await console.press("tab")
        assert prompt(console).text == "proto:"
        await console.type("udp")
        await console.press("enter")
        assert console.sources == [2]
        await console.press("escape", "slash", "up")
        assert prompt(console).text == "proto:udp"
        await console.press("down")
        assert prompt(console).text == ""
        await console.press("escape", "colon", "up")
        assert prompt(console).text == "flow.filter proto:udp"
        # Where flows go can be traced.
        await console.press("ctrl+u")
        await console.type("path.trace 10")
        await console.press("tab", "tab")
        assert prompt(console).text in ("path.trace 10.0.0.1", "path.trace 10.0.0.2")
        await console.press("ctrl+u")
        await console.type("app.quit")
        await console.press("tab", "tab")
        assert "app.quit: Quit" in console.lines[-3]


async def test_the_palette_asks_for_what_a_command_needs_and_runs_others() -> None:
    async with desk(80, 24) as console:
        await console.feed(flow(1, 10), flow(2, 30))
        await console.press("3", "ctrl+p")
        await console.still()
        line = next(line for line in console.lines if "flow.sort [COLUMN]" in line)
        assert "Sort by the next column" in line
        assert " s " in line
        await console.type("revers")
        await console.press("enter")
        await console.still()
        assert console.sources == [1, 2]
        await console.press("ctrl+p")
        await console.type("moment")
        await console.press("enter")
        await console.still()
        assert prompt(console).text == "time.go "


async def test_the_palette_finds_what_other_screens_do_and_covers_no_less_while_one_types() -> None:
    async with desk(80, 24) as console:
        await console.feed(*(flow(number, 10) for number in range(1, 20)))
        await console.press("ctrl+p")
        await console.still()
        assert "path.trace" not in console.text
        await console.type("trace")
        own, other = (console.text.index(name) for name in ("flow.trace", "path.trace"))
        assert own < other
        assert "10.0.0." not in console.text
        await console.press("down", "enter")
        await console.still()
        assert console.app.tapes.asking == ("path.trace", "")


async def test_the_palette_ranks_whole_words_first_and_folds_the_same_deed_of_screens() -> None:
    async with desk(80, 24) as console:
        await console.press("1", "ctrl+p")
        await console.type("sort")
        rows = [line.strip() for line in console.lines[3:] if ".sort" in line or "Charts" in line]
        assert len(rows) == 1
        assert "Flows +" in rows[0]
        assert "Sort by the next column" in rows[0]
        await console.press("escape", "ctrl+p")
        await console.type("path.sort")
        assert "path.sort" in next(line for line in console.lines if "Sort by" in line)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (200, 60)])
async def test_help_names_every_key_of_the_screen_and_its_command(width: int, height: int) -> None:
    async with desk(width, height) as console:
        await console.press("3", "question_mark")
        seen: set[str] = set()
        for _ in range(4):
            seen.update(console.lines)
            await console.press("j")
        keymap = console.app.keymap
        for bound in (*keymap.of("flows"), *keymap.of("")):
            assert bound.command is not None
            name = bound.command.name
            if not console.app.commands.has_screen(name):
                continue
            if console.app.tour.offers(name) and name != "table.select":
                assert any(
                    bound.command.name in line and bound.command.title in line for line in seen
                ), bound
        assert any("enter" in line and "flow.open" in line for line in seen)
        await console.press("escape", "6", "question_mark")
        assert "flow.filter" not in console.text


@pytest.mark.slow
async def test_the_prompt_closes_with_the_screens_focus_and_is_on_every_screen() -> None:
    async with desk(80, 24) as console:
        for key in "123456":
            await console.press(key)
            await console.still()
            before = console.app.screen.focused
            await console.press("colon")
            assert console.lines[-2].startswith(" : ")
            await console.press("escape")
            assert console.app.screen.focused is before
            assert not prompt(console).is_open


async def test_another_thread_has_commands_done_and_hears_what_went_wrong() -> None:
    async with desk(80, 24) as console:
        await console.feed(flow(1, 10), flow(2, 30))

        async def ask(line: str) -> list[str]:
            return list(await asyncio.to_thread(console.app.commands.ask, parse(line)))

        assert await ask("flow.reverse") == []
        await console.still()
        assert console.sources == [1, 2]
        await console.press("question_mark")
        assert await ask("flow.reverse") == []
        assert "10.0.0.2" in console.lines[2]
        with pytest.raises(UsageError, match="is not understood"):
            await ask("flow.filter tcp nonsense")
        assert (await ask("flow.trace")) == []
        console.controller.read_only = "it was started so"
        with pytest.raises(UsageError, match="refused: it was started so"):
            await ask("path.trace 192.0.2.1")
    with pytest.raises(ProbedeckError, match="the console does not answer"):
        console.app.commands.ask(parse("view.flows"))


@pytest.mark.slow
async def test_a_text_typed_while_the_last_one_is_acted_on_replaces_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with desk(80, 24) as console:
        go_on = threading.Event()
        start = console.app.plane.set_policy
        monkeypatch.setattr(
            console.app.plane, "set_policy", lambda policy: go_on.wait(20) and start(policy)
        )
        await console.press("4", "colon")
        await console.type("trigger.add flood: flows > 500 -> dns")
        await console.press("enter")
        await console.type("view")
        assert prompt(console).text == "view"
        go_on.set()
        await console.app.workers.wait_for_complete()
        assert prompt(console).text == "view"
        assert prompt(console).is_open


async def test_an_answer_has_no_complaint_about_keys_that_were_pressed_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with desk(80, 24) as console:
        app, begun, go_on = console.app, asyncio.Event(), asyncio.Event()

        async def run_command(asked: Invocation) -> None:
            begun.set()
            await go_on.wait()
            app.complain(UsageError("about the command"))

        monkeypatch.setattr(app, "run_command", run_command)
        answer = asyncio.create_task(asyncio.to_thread(app.commands.ask, parse("flow.trace")))
        await begun.wait()
        app.complain(UsageError("about a key"))
        go_on.set()
        assert [*await answer] == ["about the command"]


async def test_a_command_that_came_too_late_is_not_done_and_one_that_began_is_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatcher, "_PATIENCE_S", 0.2)
    async with desk(80, 24) as console:
        app, go_on = console.app, asyncio.Event()
        done = []

        async def run_command(asked: Invocation) -> None:
            await go_on.wait()
            done.append(asked.line)

        monkeypatch.setattr(app, "run_command", run_command)

        async def ask(line: str) -> str:
            with pytest.raises(ProbedeckError) as error:
                await asyncio.to_thread(app.commands.ask, parse(line))
            return str(error.value)

        said = await asyncio.gather(ask("flow.reverse"), ask("flow.reverse"))
        assert sorted(said) == [
            "flow.reverse has begun and is not done after 0.2 s; it goes on; look before you ask"
            " again",
            "flow.reverse is not done: the console is busy; try again",
        ]
        go_on.set()
        assert [*await asyncio.to_thread(app.commands.ask, parse("flow.trace"))] == []
        assert done == ["flow.reverse", "flow.trace"]
