"""The registry in the console: each command runs, and the keymap's keys are bound."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import pytest

from app.commands.keys import spoken
from app.commands.model import Command
from app.commands.registry import REGISTRY
from app.config.keymap import Keymap
from app.config.model import Settings
from app.console.app import ConsoleApp
from app.console.commands.dispatcher import Runner
from app.console.commands.keys import bindings
from app.console.screen import ConsoleScreen, front_screen
from app.console.screens import SCREENS
from app.console.screens.events.screen import EventsScreen
from app.console.screens.flows.screen import FlowsScreen
from app.console.screens.hosts.screen import HostsScreen
from app.console.screens.overview.screen import OverviewScreen
from app.console.screens.paths.screen import PathsScreen
from app.console.screens.programs.screen import ProgramsScreen
from app.console.screens.triggers.screen import TriggersScreen
from tests.app.console.fake import desk, flow
from tests.app.console.fake_plane import FakePlane

OWNERS: dict[str, type[ConsoleScreen]] = {
    "overview": OverviewScreen,
    "paths": PathsScreen,
    "flows": FlowsScreen,
    "triggers": TriggersScreen,
    "programs": ProgramsScreen,
    "events": EventsScreen,
    "hosts": HostsScreen,
}
OWN = Settings(
    keys={
        "": {"f10": ("view.flows", "flow.sort packets"), "6": "", "f11": "@3fport:443<enter>",
             "ctrl+t": "app.prompt app.theme "},
        "flows": {"f": "flow.filter", "/": "", "enter": "flow.detail", "-": "app.prompt"},
        "programs": {"-": "app.prompt"},
    }
)  # fmt: skip


@functools.cache
def runners() -> Mapping[str, Runner]:
    """Return the methods of the console's parts."""
    return ConsoleApp(FakePlane, lambda: None, "eth0").commands.runners  # type: ignore[arg-type]


@pytest.mark.parametrize("entry", REGISTRY.values(), ids=REGISTRY)
def test_each_command_is_done_by_its_screen(entry: Command) -> None:
    if entry.screen:
        screen = OWNERS[entry.screen]()
        owners = [each for each in (screen, *screen.parts) if hasattr(each, entry.method)]
        # Screens share some commands.
        shared = f"do_{entry.name.partition('.')[2]}" if not owners else entry.method
        (owner,) = owners or [screen]
        assert callable(getattr(owner, shared))
    else:
        assert callable(runners()[entry.method])
    assert entry.title
    # Titles stand beside keys and names in 80 columns.
    assert len(entry.title) <= 40
    assert len(spoken(entry.keys)) <= 12


def test_each_method_of_the_consoles_parts_runs_a_command() -> None:
    assert {entry.method for entry in REGISTRY.values() if not entry.screen} == set(runners())


@pytest.mark.parametrize("screen", SCREENS)
def test_each_screen_has_its_name_in_the_registry(screen: str) -> None:
    owner = OWNERS[screen]
    assert issubclass(owner, ConsoleScreen)
    assert screen in ConsoleApp.MODES
    assert vars(owner)["MODE"] == screen


def test_bindings_are_the_keymap_and_each_footer_stands_once() -> None:
    for screen in ("", *SCREENS):
        keymap = Keymap()
        made = bindings(keymap, screen)
        assert set(made.key_to_bindings) == {bound.key for bound in keymap.of(screen)}
        footers = [binding.description for _, binding in made if binding.show]
        assert len(footers) == len(set(footers))


@pytest.mark.slow
async def test_an_operators_keys_do_what_he_says_and_are_shown_in_the_footer() -> None:
    async with desk(80, 24, settings=OWN) as console:
        await console.press("3")
        await console.feed(flow(1, 10, size=10), flow(2, 30))
        assert console.lines[-1].startswith("f Filter v View ")
        assert " d " not in console.lines[-1]
        await console.press("6", "slash")
        assert console.app.current_mode == "flows"
        assert not console.app.screen.prompt.is_open  # type: ignore[attr-defined]
        await console.press("enter")
        assert "10.0.0.2" in console.detail
        await console.press("escape", "2", "f10")
        assert console.app.current_mode == "flows"
        assert "10.0.0.1" in console.lines[2]
        # A key may stand for other keys, also for text in a prompt.
        await console.press("1", "f11")
        await console.still()
        assert console.app.current_mode == "flows"
        assert "2 of 2 flows" in console.strip
        await console.press("question_mark")
        keys = {line.split()[0]: line for line in console.lines if line.split()}
        assert "Filter what is shown" in keys["f"]
        assert "/" not in keys
        assert "flow.detail" in keys["enter,"]
        for _ in range(3):
            await console.press("space")
        assert any("view.flows; flow.sort packets" in line for line in console.lines)
        await console.press("escape", "ctrl+p")
        await console.type("filter")
        await console.still()
        row = next(line for line in console.lines if "flow.filter [FILTER]" in line)
        assert " f " in row


async def test_text_gets_its_characters_whatever_they_are_bound_to() -> None:
    async with desk(80, 24, settings=OWN) as console:
        await console.press("3", "f", "minus", "f", "colon", "q", "j")
        screen = console.app.screen
        assert screen.prompt.command == "flow.filter"  # type: ignore[attr-defined]
        assert screen.prompt.text == "-f:qj"  # type: ignore[attr-defined]


async def test_movement_is_by_commands() -> None:
    async with desk(80, 24) as console:
        await console.press("3")
        await console.feed(*(flow(number, 100 - number) for number in range(1, 60)))
        for command, number in (
            ("table.last", 59), ("table.first", 1), ("table.down", 2), ("table.page_down", 21),
            ("table.up", 20), ("table.page_up", 1), ("table.top", 1),
        ):  # fmt: skip
            await console.app.action_command(command)
            await console.still()
            assert console.under_cursor == f"10.0.0.{number}:{40000 + number}", command
        for key, number in (("G", 59), ("g", 1), ("j", 2), ("pagedown", 21), ("k", 20)):
            await console.press(key)
            assert console.under_cursor == f"10.0.0.{number}:{40000 + number}", key


async def test_a_command_closes_what_is_open_over_its_screen() -> None:
    async with desk(80, 24) as console:
        await console.feed(flow(1, 10), flow(2, 30))
        await console.press("3", "question_mark")
        await console.app.action_command("flow.reverse")
        await console.still()
        assert console.sources == [1, 2]
        await console.press("f1", "question_mark")
        await console.app.action_command("table.down")
        await console.still()
        assert console.app.screen is front_screen(console.app)


async def test_messages_name_the_keys_that_the_user_chose() -> None:
    own = Settings(
        keys={
            "": {"f12": "app.quit", "q": "", "ctrl+c": ""},
            "triggers": {"f6": "trigger.add", "a": ""},
            "programs": {"f7": "program.swap", "f8": ""},
        }
    )
    async with desk(120, 40, settings=own, first="overview") as console:
        await console.feed()
        assert "No policies yet. Press 4, then f6." in console.text
        console.app.unsaved = ("hello.ingress.c",)
        await console.press("f12")
        assert console.complaints[-1].endswith("; f12 again quits and loses that")
        assert console.app.key_of("program.swap") == "f7"
        assert console.app.key_of("help.tour") == ":help.tour"
