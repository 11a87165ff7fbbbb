"""Drawing a distribution."""

from __future__ import annotations

import numpy as np
import pytest
from textual.app import ComposeResult
from textual.geometry import Size

from bpf.quantities import duration
from widgets.chart import Distribution
from widgets.terminal.compositor import DiffApp


class Holder(DiffApp[None]):
    least = Size(1, 1)

    def compose(self) -> ComposeResult:
        yield Distribution(unit=duration)


async def lines(values: list[float], width: int = 40) -> list[str]:
    app = Holder()
    async with app.run_test(size=(width, 8)) as pilot:
        app.query_one(Distribution).show(np.array(values), "answers")
        await pilot.pause()
        strips = app.screen._compositor.render_strips()
        return [strip.text.rstrip() for strip in strips[:5]]


async def test_bars_are_where_values_are_and_the_axis_names_ends_and_median() -> None:
    shown = await lines([0.001] * 50 + [0.003] * 100)
    assert shown[0] == " answers"
    apart = " " * 36
    assert [line.strip() for line in shown[1:4]] == ["█", f"▄{apart}█", f"█{apart}█"]
    assert shown[4].startswith(" 1.00 ms")
    assert shown[4].endswith("3.00 ms")


async def test_a_rare_value_does_not_flatten_the_others_and_is_seen() -> None:
    shown = await lines([0.001 + 0.00001 * (n % 10) for n in range(300)] + [9.0])
    assert "9.0 s" not in shown[4]
    assert shown[3][-1] in "▁▂▃▄▅▆▇█"


@pytest.mark.parametrize("values", [[], [0.002], [0.0, 0.0]])
async def test_few_values_are_no_trouble(values: list[float]) -> None:
    shown = await lines(values)
    assert bool(shown[4].strip()) == bool(values)


async def test_too_narrow_is_empty() -> None:
    assert not any((await lines([1.0, 2.0], width=12))[1:])
