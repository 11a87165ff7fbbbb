"""The status strip, as seen."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.geometry import Size
from textual.pilot import Pilot

from widgets.status import StatusItem, StatusStrip
from widgets.terminal.compositor import DiffApp
from widgets.tones import Tone

ITEMS = (
    StatusItem("LIVE", Tone.GOOD, badge=True),
    StatusItem("eth0", priority=2),
    StatusItem("[b]61[/b]\x1b %", Tone.WARN, priority=1, label="map"),
    StatusItem("ready", Tone.MUTED, priority=3),
)


class StripApp(DiffApp[None]):
    least = Size(1, 1)

    def __init__(self, items: Sequence[StatusItem]) -> None:
        super().__init__()
        self.strip = StatusStrip(items)
        self.frames = 0

    def compose(self) -> ComposeResult:
        yield self.strip

    def post_display_hook(self) -> None:
        self.frames += 1


def seen(pilot: Pilot[None]) -> str:
    return pilot.app.screen._compositor.render_strips()[0].text


async def test_items_and_labels_are_shown_as_they_are() -> None:
    async with StripApp(ITEMS).run_test(size=(80, 5)) as pilot:
        assert seen(pilot).rstrip() == "  LIVE  │ eth0 │ map [b]61[/b]· % │ ready"


async def test_a_narrow_strip_drops_the_least_important() -> None:
    async with StripApp(ITEMS).run_test(size=(30, 5)) as pilot:
        assert seen(pilot).rstrip() == "  LIVE  │ map [b]61[/b]· %"
        await pilot.resize_terminal(9, 5)
        await pilot.pause()
        assert seen(pilot).strip() == "LIVE"


async def test_it_is_repainted_only_when_it_changes() -> None:
    app = StripApp(ITEMS)
    async with app.run_test(size=(80, 5)) as pilot:
        await pilot.pause()
        before = app.frames
        app.strip.show(list(ITEMS))
        await pilot.pause(0.05)
        assert app.frames == before
        app.strip.show(ITEMS[:2])
        await pilot.pause(0.05)
        assert app.frames == before + 1
        assert seen(pilot).rstrip() == "  LIVE  │ eth0"
