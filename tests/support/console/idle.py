"""Wait for a Textual app by its pending work, not by the process's CPU time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from textual._context import active_app
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.pilot import Pilot

SOON = 0.02
"""Seconds; a timer that is due within them is waited for, and so long a thread of the app's."""


async def wait_for_idle(min_sleep: float = 0.0, max_sleep: float = 1.0) -> None:
    """In the place of Textual's, which sleeps 20 ms until the process was not busy in them.

    This one returns as soon as the event loop has nothing to do.
    """
    loop: Any = asyncio.get_running_loop()
    start = loop.time()
    rounds = 0
    while rounds < 3 and (spent := loop.time() - start) < max_sleep:
        await asyncio.sleep(0)
        due = min((t.when() for t in loop._scheduled if not t.cancelled()), default=float("inf"))
        if loop._ready:
            rounds = 0
        elif due - loop.time() < SOON:
            await asyncio.sleep(max(0.0, due - loop.time()))
            rounds = 0
        elif spent < SOON and any(worker.is_running for worker in active_app.get().workers):
            await asyncio.sleep(0.001)
            rounds = 0
        else:
            rounds += 1


_pause = Pilot.pause


async def _pause_twice(pilot: Pilot[Any], delay: float | None = None) -> None:
    """Wait for the effects of the update at the end of a pause, too."""
    await _pause(pilot, delay)
    if delay is None:
        await _pause(pilot)


_parse_rules = Stylesheet._parse_rules
_PARSED: dict[tuple[Any, ...], list[RuleSet]] = {}


def _parse_once(sheet: Stylesheet, *source: Any, **more: Any) -> list[RuleSet]:
    """Parse the style sheets of widgets once, not again for each app of a test."""
    key = (*source, *more.values(), *sheet._variables.items())
    rules = _PARSED.get(key)
    if rules is None:
        rules = _PARSED[key] = _parse_rules(sheet, *source, **more)
    return rules


def be_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have pilots wait no longer than there is something to wait for."""
    monkeypatch.setattr(Stylesheet, "_parse_rules", _parse_once)
    for module in ("app", "pilot"):
        monkeypatch.setattr(f"textual.{module}.wait_for_idle", wait_for_idle)
    monkeypatch.setattr("textual.screen.UPDATE_PERIOD", 0.002)
    monkeypatch.setattr(Pilot, "pause", _pause_twice)
