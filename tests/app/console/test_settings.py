"""The console goes by the settings; layouts are kept, and put back, now or at the next start."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.config import layouts
from app.config.model import Settings, Ui
from app.config.paths import state_dir
from bpf.errors import UsageError
from tests.app.console.fake import Desk, desk, flow


async def do(console: Desk, *lines: str) -> None:
    await console.app.action_command("\n".join(lines))
    await console.still()


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


async def test_a_layout_is_kept_and_put_back_at_the_next_start() -> None:
    async with desk() as console:
        await do(console, "view.flows")
        await console.feed(flow(1, 30), flow(2, 20), flow(3, 10, proto=17))
        await do(console, "flow.filter proto:tcp", "flow.sort source", "flow.reverse")
        await do(console, "view.columns source bytes", "flow.detail", "app.theme light")
        await do(console, "layout.save mine")
        # Later changes are not kept.
        await do(console, "flow.filter proto:udp")
    assert layouts.names() == ["mine"]
    async with desk(settings=Settings(ui=Ui(layout="mine"))) as console:
        await console.feed(flow(1, 30), flow(2, 20), flow(3, 10, proto=17))
        assert console.app.current_mode == "flows"
        assert not console.app.current_theme.dark
        assert console.header == ["Source▼", "Bytes"]
        shown = [line.split()[0] for line in console.lines[2:4]]
        assert shown == ["10.0.0.2:40002", "10.0.0.1:40001"]
        assert "2 of 3 flows" in console.strip
        assert "IPv4, into this host" in console.detail
        # A layout of no name is the one that was loaded.
        await do(console, "flow.filter")
        await console.press("escape")
        await do(console, "flow.sort rate")
        await do(console, "layout.save")
        assert layouts.load("mine")["flows"]["flows.sort"] == "rate"


async def test_screens_that_were_not_turned_to_are_put_back_when_they_are() -> None:
    layouts.save("mine", {
        "console": {"screen": "events"},
        "flows": {"filter": "proto:udp", "flows.sort": "no_column", "flows.columns": "nor_one"},
        "events": {"events.sort": "text", "events.descending": "false"},
        "screen_of_another_day": {"x": "y"},
    })  # fmt: skip
    async with desk() as console:
        await do(console, "layout.load mine")
        assert "Event▲" in console.text
        await do(console, "layout.save again")
        # Keys unknown to this version stay.
        assert layouts.load("again")["flows"]["filter"] == "proto:udp"
        assert layouts.load("again")["screen_of_another_day"] == {"x": "y"}
        assert "theme" not in layouts.load("again")["console"]
        await do(console, "view.flows")
        await console.feed(flow(1, 30), flow(3, 10, proto=17))
        assert "1 of 2 flows" in console.strip
        assert "Both▼" in console.header


async def test_a_layout_that_is_not_there_is_told_and_changes_nothing() -> None:
    layouts.save("mine", {})
    async with desk() as console:
        mode = console.app.current_mode
        await do(console, "layout.load mien")
        assert console.complaints == ["there is no layout 'mien'; did you mean mine?"]
        await do(console, "layout.save ../mine")
        assert "'../mine' cannot be the name of a layout" in console.complaints[1]
        assert console.app.current_mode == mode
    assert layouts.names() == ["mine"]


def test_texts_come_back_as_they_were() -> None:
    kept = {"flows": {"filter": 'host:/"\\d\x7f\x1b/ 漢', "a.b c": ""}, "events": {}}
    layouts.save("x-1.2", kept)
    assert layouts.load("x-1.2") == kept
    (state_dir() / "layouts" / "broken.toml").write_text("[x")
    with pytest.raises(UsageError, match=r"broken.toml: invalid TOML"):
        layouts.load("broken")


async def test_filters_have_names() -> None:
    settings = Settings(filters={"udp": "proto:udp"})
    async with desk(settings=settings) as console:
        await do(console, "view.flows")
        await console.feed(flow(1, 30), flow(3, 10, proto=17))
        await do(console, "flow.filter @udp")
        assert console.sources == [3]
        await do(console, "flow.filter @ud")
        assert "'ud'" in console.complaints[0]
        assert console.sources == [3]


async def test_what_was_left_out_is_told() -> None:
    async with desk(settings=Settings(warnings=("file [/b] is left out",))) as console:
        assert console.complaints == ["file [/b] is left out"]
        assert "file [/b] is left out" in console.text
