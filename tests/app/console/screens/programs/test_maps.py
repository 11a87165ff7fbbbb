"""The maps of a probe, live beside the source."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from app.console.live.maps import Drawing, MapHistory, key_and_value
from app.console.screens.overview.blocks import PinnedMaps
from app.console.screens.programs.panels import Panel
from probes.reports import MapReading, MapReadings
from tests.app.console.fake_plane import FakePlane, config
from tests.app.console.screens.programs.bench import bench


def reading(name: str, table: str, rows: list[tuple[object, ...]], **more: object) -> MapReading:
    columns = {
        "array": ("index", "value"),
        "hash": ("key", "value"),
        "histogram": ("slot", "low", "high", "count"),
    }.get(table, ())
    made = MapReading(
        "ingress", name, f"percpu {table}", table, 64, None, False, None, 4096, 3,
        columns=columns, rows=tuple(rows),
    )  # fmt: skip
    return replace(made, **more)  # type: ignore[arg-type]


MINE = reading("mine", "array", [(0, 100)], kind="array")
SIZES = reading("sizes", "histogram", [(7, 64, 127, 100), (8, 128, 255, 50)])
HOSTS = reading("hosts", "hash", [("192.0.2.9", 50), ("192.0.2.1", 25)], entries=2, fill=2 / 64)
RING = reading("ring", "", [], kind="ringbuf", max_entries=4096, fill=0.5)


def readings(*maps: MapReading, at: float = 0, window: int = 1, generation: int = 1) -> MapReadings:
    return MapReadings("hello", generation, window, 2.0, round(at * 1e9), maps)


def test_rates_are_growth_in_a_second_and_a_windows_own_count() -> None:
    history = MapHistory()
    (first,) = history.take(readings(MINE, at=1))
    assert first.drawing is Drawing.COUNTERS
    assert math.isnan(first.entries[0].rate)
    grown = replace(MINE, rows=((0, 180),))
    (second,) = history.take(readings(grown, at=3))
    assert second.entries[0].rate == 40
    assert second.entries[0].trend[-1] == 40
    # A counter that begins anew, and another generation.
    assert math.isnan(history.take(readings(MINE, at=4))[0].entries[0].rate)
    assert math.isnan(history.take(readings(grown, at=5, generation=2))[0].entries[0].rate)
    # Of a snapshot metric each window has its own count, and counts once.
    own = replace(HOSTS, metrics=("hosts",), cleared=True)
    for window in (7, 7, 8):
        (view,) = history.take(readings(own, at=window, window=window))
        assert [entry.rate for entry in view.entries] == [25, 12.5]
    # Of another metric a window's growth.
    plain = replace(MINE, name="plain", metrics=("plain",))
    history.take(readings(plain, at=9, window=3))
    more = replace(plain, rows=((0, 160),))
    for at in (10, 11):
        assert history.take(readings(more, at=at, window=4))[0].entries[0].rate == 30


def test_the_shape_of_a_map_decides_how_it_is_drawn() -> None:
    long = reading("ports", "array", [(n, n) for n in range(64)])
    views = MapHistory().take(readings(MINE, SIZES, HOSTS, RING, long))
    assert [view.drawing for view in views] == [
        Drawing.COUNTERS, Drawing.HISTOGRAM, Drawing.TABLE, Drawing.NOTHING, Drawing.HISTOGRAM,
    ]  # fmt: skip
    assert [entry.key for entry in views[1].entries] == ["64..127", "128..255"]
    assert [entry.share for entry in views[1].entries] == [1.0, 0.5]


@pytest.mark.slow
@pytest.mark.parametrize("width", [80, 120, 200])
async def test_maps_without_a_metric_are_shown_and_sorted(width: int) -> None:
    plane = FakePlane(config("flow"), config("hello"))
    plane.readings = (MINE, SIZES, HOSTS, RING)
    async with bench(width, 40, plane) as b:
        assert ("mine" in b.text) == (width >= 120)
        await b.press("o")
        shown = [line for line in b.lines if "[0]" in line or "192.0.2." in line]
        assert "100" in shown[0]
        assert [("192.0.2.9" in line, "192.0.2.1" in line) for line in shown[1:]] == [
            (True, False), (False, True),
        ]  # fmt: skip
        assert "50.0 % full" in b.text or width < 200
        # The maps beside the source are not in the panel, too.
        b.screen.choose(Panel.MAPS)
        await b.until_still()
        assert b.screen.query_one("#maps-panel").display == (width < 120)
        assert ("The maps are at the right." in b.panel) == (width >= 120)
        await b.press("s")
        shown = [line for line in b.lines if "192.0.2." in line]
        assert "192.0.2.1 " in shown[0]
        plane.readings = (replace(MINE, rows=((0, 7_000_001),)),)
        b.screen._poll()
        await b.until_still()
        assert "7000001" in b.text
        assert "192.0.2" not in b.text
        # The past has no maps, and says so.
        await b.press("1", "space", "5")
        assert "they show the present only" in b.text
        assert "7000001" not in b.text


async def test_nobody_reads_maps_that_nobody_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    plane = FakePlane(config("flow"), config("hello"))
    asked: list[str] = []

    def read(name: str, most: int = 0) -> MapReadings:
        asked.append(name)
        return readings(MINE)

    monkeypatch.setattr(plane, "maps", read)
    async with bench(80, 24, plane) as b:
        b.screen._poll()
        await b.until_still()
        assert asked == []
        await b.press("o")
        assert set(asked) == {"hello"}


@pytest.mark.slow
async def test_a_pinned_map_is_on_the_overview_and_in_the_layout() -> None:
    plane = FakePlane(config("flow"), config("hello"))
    plane.readings = (MINE, HOSTS)
    async with bench(120, 40, plane) as b:
        await b.press("o")
        b.screen.live_maps.table.move_to(0)
        await b.press("P")
        assert "mine *" in b.text
        kept = b.app.pins.keep()
        await b.press("1")
        block = b.app.screen.query_one(PinnedMaps)
        for _ in range(2):
            block._read()
            await b.until_still()
        await b.feed()
        assert "Pinned" in b.text
        assert [line for line in b.lines if "[0]" in line and "100" in line]
        assert "192.0.2.9" not in b.text
        await b.press("space")
        block._read()
        await b.until_still()
        assert "they show the present only" in b.text
        await b.press("escape", "5")
        await b.app.action_command("program.pin mine")
        await b.until_still()
        assert not b.app.pins.maps
        b.app.pins.restore({"pinned": "nonsense"})
        b.app.pins.restore(kept)
        assert b.app.pins.maps == (("hello", "ingress", "mine"),)
        await b.app.action_command("program.pin mien")
        await b.until_still()
        assert "no map 'mien' here" in b.complaints[-1]


def test_elements_of_a_value_are_no_part_of_the_key() -> None:
    columns = "key.port", "key.name", "value.hits", "value.first[1]"
    assert key_and_value(columns, (53, "dns", 4, 7)) == ("53 dns", "hits=4 first[1]=7")
    assert key_and_value(("index", "value[0]", "value[1]"), (3, 4, 5)) == ("3", "4 5")
