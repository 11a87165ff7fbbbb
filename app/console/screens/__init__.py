"""The screens of the console, in the order of their keys; each folder describes its own."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from app.console.screens.info import ScreenInfo
from app.console.tables.spec import TableSpec

_INFOS: list[ScreenInfo] = [
    import_module(f"{__name__}.{folder}").SCREEN
    for folder in ("overview", "paths", "flows", "triggers", "programs", "events", "hosts")
]
# Only now: a module that one of the folders imports must not take some of the screens for all.
SCREENS: dict[str, ScreenInfo] = {}
"""By name."""
TABLES: dict[str, TableSpec[Any]] = {}
"""Tables that the user can sort and choose columns of, by their names in settings."""


def register(screen: ScreenInfo) -> None:
    SCREENS[screen.name] = screen
    TABLES.update((table.name, table) for table in screen.tables)


for _info in _INFOS:
    register(_info)
