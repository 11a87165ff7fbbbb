"""The way as a picture in one line, and the delay that each hop adds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from app.console.screens.paths.hop import HOP, add_delays
from app.console.screens.paths.picture import picture
from bpf.arrays import Array
from probes.path.records import DESTINATION_HOP
from widgets.tones import Tone

NAN = math.nan


def way(*times: float, least: float = 0.0) -> Array:
    """A path with these medians in milliseconds; NaN: no answer. The last one is the destination.

    Least times are `least` times the medians.
    """
    hops = np.zeros(len(times), HOP)
    hops["ttl"] = hops["hop"] = range(1, len(times) + 1)
    hops["hop"][-1], hops["is_end"][-1] = DESTINATION_HOP, True
    hops["median"] = np.array(times) / 1e3
    hops["least"] = least * hops["median"]
    hops["answered"] = np.where(np.isnan(times), 0, 100)
    # Nothing tells whether packets to the destination are lost.
    hops["sent"] = np.where(hops["is_end"], hops["answered"], 100)
    hops["loss"] = 1 - hops["answered"] / np.where(hops["sent"] > 0, hops["sent"], np.nan)
    hops["forgiven"] = (hops["answered"] == 0) & ~hops["is_end"]
    add_delays(hops)
    return hops


@pytest.mark.parametrize(
    ("medians", "adds"),
    [
        ((1, 3, 10), (1, 2, 7)),
        # The second router is slow to answer, or its answers come by a longer way.
        ((1, 9, 4, 10), (1, 3, 0, 6)),
        # A silent hop is unknown; the next one adds what both add.
        ((1, NAN, 5), (1, NAN, 4)),
        ((NAN, NAN), (NAN, NAN)),
        # The destination is nearer than any router says.
        ((8, 9, 2), (2, 0, 0)),
    ],
)
def test_a_hop_adds_to_the_nearest_one_that_answers_and_never_less_than_nothing(
    medians: tuple[float, ...], adds: tuple[float, ...]
) -> None:
    found = (way(*medians)["adds"] * 1e3).tolist()
    assert found == pytest.approx(adds, nan_ok=True)


def test_what_the_least_times_lack_is_queues() -> None:
    found = (way(1, 41, NAN, 45, least=0.25)["adds_queue"] * 1e3).tolist()
    assert found == pytest.approx([0.75, 30, NAN, 3], nan_ok=True)


def drawn(hops: Array, width: int = 200) -> str:
    hosts = [f"10.94.{ttl - 1}.2" for ttl in hops["ttl"].tolist()]
    return "".join(text for text, _ in picture(hops, hosts, width))


def test_the_worst_link_stays_however_narrow_the_screen_is() -> None:
    hops = way(0.3, 0.31, 0.32, 75.4, NAN, 75.41, 75.42)
    full = (
        "me ──·── 10.94.0.2 ──·── 10.94.1.2 ──·── 10.94.2.2 ══75.1 ms══▶ 10.94.3.2 ──?──·── "
        "10.94.5.2 ──·── 10.94.6.2"
    )
    assert drawn(hops) == full
    assert drawn(hops, len(full) - 1) == (
        "me ─·─ 1 ─·─ 2 ─·─ 10.94.2.2 ═75.1 ms═▶ 10.94.3.2 ─?─·─ 6 ─·─ 10.94.6.2"
    )
    for width in range(8, 130):
        text = drawn(hops, width)
        assert len(text) <= width
        assert "75.1" in text or width < 20
    assert drawn(hops, 40) == "me … ═75.1 ms═▶ 4 … 10.94.6.2"


def test_queues_and_losses_are_worse_than_delays_and_little_is_not_drawn_as_bad() -> None:
    hops = way(1, 3, 90, 91)
    hops["queue_ns"][1] = 20_000_000
    assert "══▲ 20.0 ms══▶ 10.94.1.2 ──87.0── 10.94.2.2" in drawn(hops)
    tones = {text: tone for text, tone in picture(hops, ["h"] * 4, 99) if "▲" in text}
    assert set(tones.values()) == {Tone.WARN}
    hops["queue_ns"][1], hops["loss"][1] = 0, 0.05
    assert "══5.0 % lost══▶ 10.94.1.2" in drawn(hops)
    hops["forgiven"][1] = True
    assert "══87.0 ms══▶ 10.94.2.2" in drawn(hops)
    assert drawn(way(0.02, 0.05, 0.09)) == "me ──·── 10.94.0.2 ──·── 10.94.1.2 ──·── 10.94.2.2"
    # Nothing tells the round trip to the destination.
    assert drawn(way(0.3, NAN)) == "me ══0.300 ms══▶ 10.94.0.2 ── 10.94.1.2"
    assert picture(np.empty(0, HOP), [], 80) == ()
