"""`:set`, `:bind` and `:reload` while the console runs."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.cli.decorator import _again
from app.config.model import Settings, Ui
from app.console.app import ConsoleApp
from bpf.quantities import clock, moment, show_local_time, zone, zone_offset_ns
from probes.snapshot import Event
from tests.app.console.fake import Desk, desk, flow


@pytest.fixture(autouse=True)
def _zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "XYZ-2")
    time.tzset()
    yield
    show_local_time(False)
    monkeypatch.undo()
    time.tzset()


async def run(console: Desk, line: str) -> str:
    """Run a line; return the last message."""
    await console.app.action_command(line)
    await console.still()
    return console.complaints[-1] if console.complaints else ""


async def test_set_lists_the_options_tells_one_and_refuses_what_it_cannot_change() -> None:
    async with desk(100, 40) as console:
        await run(console, "set")
        assert "Settings: set OPTION VALUE" in console.text
        assert "low_bandwidth" in console.text
        await console.press("escape")
        assert await run(console, "set theme") == "theme is auto"
        assert "did you mean theme?" in await run(console, "set them")
        assert "colors is read at the start" in await run(console, "set colors 16")
        assert "time: is not" in await run(console, "set time moon")
        await run(console, "set theme light")
        assert console.app.settings.ui.theme == "light"
        assert not console.app.current_theme.dark
        await run(console, "set glyphs ascii")
        assert console.app.look.glyphs == "ascii"


async def test_clocks_show_utc_or_the_zone_of_this_host() -> None:
    at = 1_700_000_000 * 10**9  # 22:13:20 UTC
    async with desk(120, 40, first="events") as console:
        console.controller.publish(Event(at, "info", "flow", "one"))
        await console.feed(flow(1, 10))
        assert "22:13:20" in console.text
        assert "(UTC)" in console.text
        await run(console, "set time local")
        assert "00:13:20" in console.text
        assert "(XYZ)" in console.text
        await run(console, "set time utc")
        assert "22:13:20" in console.text


def test_a_typed_time_of_day_is_one_of_the_chosen_zone() -> None:
    now = 1_700_000_000 * 10**9
    assert (clock(now), zone()) == ("22:13:20", "UTC")
    show_local_time(True)
    assert (clock(now), zone()) == ("00:13:20", "XYZ")
    assert clock(moment("00:10:00.5", now, zone_offset_ns())) == "00:10:00"
    assert now - moment("00:10:00", now, zone_offset_ns()) < 200 * 10**9
    assert now - moment("23:10:00", now, zone_offset_ns()) < 3800 * 10**9


@pytest.mark.slow
async def test_bind_gives_a_key_a_command_on_its_screen_or_takes_it() -> None:
    async with desk(120, 40) as console:
        await console.feed(flow(1, 10), flow(2, 30))
        await run(console, "bind f12 flow.sort source")
        await console.press("1", "f12")
        assert console.app.current_mode == "overview"
        await console.press("3", "f12")
        assert console.app.current_mode == "flows"
        await run(console, "bind f11 view.events")
        await console.press("f11")
        assert console.app.current_mode == "events"
        await run(console, "bind f11")
        await console.press("3", "f11")
        assert console.app.current_mode == "flows"
        assert "there is no key" in await run(console, "bind f99 view.events")
        assert "there is no command" in await run(console, "bind f10 view.event")
        assert "f10" not in console.app.settings.keys.get("", {})


def _settings(file: Path) -> Settings:
    return Settings(again=functools.partial(_again, str(file)), origin=str(file))


async def _until(console: Desk, words: str) -> None:
    for _ in range(100):
        if any(words in text for text in console.complaints):
            return
        await console.pilot.pause(0.02)
    raise AssertionError(console.complaints)


async def test_reload_takes_the_whole_file_or_nothing(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        '[keys]\nf12 = "view.events"\n[filters]\nweb = "port:443"\n[ui]\ntime = "local"'
    )
    async with desk(120, 40, settings=_settings(file)) as console:
        await console.feed(flow(1, 10))
        await run(console, "reload")
        await _until(console, "is read again")
        assert zone() == "XYZ"
        assert console.app.settings.filters == {"web": "port:443"}
        await console.press("f12")
        assert console.app.current_mode == "events"
        file.write_text('[keys]\nf12 = "view.event"\n[ui]\ntheme = "light"\ntime = "moon"')
        await run(console, "reload")
        await _until(console, f"{file}:2: [keys] f12: there is no command 'view.event'")
        assert any(f"{file}:5: [ui] time" in text for text in console.complaints)
        assert console.app.settings.ui.theme != "light"
        assert console.app.settings.filters == {"web": "port:443"}
        await console.press("1", "f12")
        assert console.app.current_mode == "events"


def test_a_console_starts_with_the_zone_of_its_settings() -> None:
    ConsoleApp(lambda: None, lambda: None, "x", settings=Settings(ui=Ui(time="local")))  # type: ignore[arg-type, return-value]
    assert zone() == "XYZ"
