"""The registry: each command can be done, each key is one of it, and none has two meanings."""

from __future__ import annotations

from itertools import combinations

import pytest
from textual.binding import Binding

from app.commands import REGISTRY, Command
from app.commands.keys import spoken
from app.console.app import ConsoleApp
from app.console.screens.base import DeckScreen
from app.console.screens.events import EventsScreen
from app.console.screens.flows import FlowsScreen
from app.console.screens.paths import PathsScreen
from app.console.screens.programs import ProgramsScreen
from app.console.screens.triggers import TriggersScreen
from widgets.table import VirtualTable

SCREENS: dict[str, type[ConsoleApp] | type[DeckScreen]] = {
    "": ConsoleApp,
    "paths": PathsScreen,
    "flows": FlowsScreen,
    "triggers": TriggersScreen,
    "programs": ProgramsScreen,
    "events": EventsScreen,
}


@pytest.mark.parametrize("entry", REGISTRY.values(), ids=REGISTRY)
def test_each_command_is_done_by_its_screen(entry: Command) -> None:
    assert callable(getattr(SCREENS[entry.screen], entry.method))
    assert entry.title
    # Titles stand beside keys and names in 80 columns.
    assert len(entry.title) <= 40
    assert len(spoken(entry.keys)) <= 8


@pytest.mark.parametrize("screen", SCREENS)
def test_each_key_of_a_screen_is_one_of_the_registry(screen: str) -> None:
    owner = SCREENS[screen]
    own = [
        binding for binding in owner.__dict__.get("BINDINGS", []) if isinstance(binding, Binding)
    ]
    keyed = {e.name: e.keys for e in REGISTRY.values() if e.screen == screen and e.keys}
    assert {binding.id: binding.key for binding in own} == keyed
    assert all(b.action == f"app.command('{b.id}')" for b in own)


@pytest.mark.parametrize("screen", [name for name in SCREENS if name])
def test_no_key_has_two_meanings(screen: str) -> None:
    keys = {
        entry.name: set(entry.keys.split(",")) - {""}
        for entry in REGISTRY.values()
        if entry.screen in ("", screen)
    }
    for binding in VirtualTable.BINDINGS:
        assert isinstance(binding, Binding)
        keys[binding.id or ""] = set(binding.key.split(","))
    for one, other in combinations(keys, 2):
        assert not keys[one] & keys[other], (one, other)
