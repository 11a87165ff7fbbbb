"""Tones: meanings of a text, which the theme turns into colours."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.style import Style


class Tone(StrEnum):
    """The meaning of a piece of text."""

    NORMAL = "normal"
    MUTED = "muted"
    ACCENT = "accent"
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"
    LOST = "lost"
    """A bar with missing answers: it hangs from above, in any colour."""
    ACTIVE = "active"
    """A bar of a time at which a program ran: it has another background."""
    IN_LOW = "in-low"
    IN = "in"
    IN_HIGH = "in-high"
    OUT_LOW = "out-low"
    OUT = "out"
    OUT_HIGH = "out-high"
    """Traffic by direction, in one hue each, and by its rate: `rate_tone`."""
    IN_BAR = "in-bar"
    OUT_BAR = "out-bar"
    """Text over a bar: it has another background, or is underlined in few colours."""


Way = Literal["in", "out"]
"""Direction of traffic."""
_STEPS = 100e3, 10e6
"""Bits per second from which traffic is of the middle tone, and of the high one. Steps do not
depend on other rates, so that the colour of a row changes seldom."""
_BY_RATE: dict[Way, tuple[Tone, Tone, Tone]] = {
    "in": (Tone.IN_LOW, Tone.IN, Tone.IN_HIGH),
    "out": (Tone.OUT_LOW, Tone.OUT, Tone.OUT_HIGH),
}


def rate_tone(way: Way, bits_per_second: float) -> Tone:
    """Return the tone of a rate; NaN is of the low tone."""
    return _BY_RATE[way][sum(bits_per_second >= step for step in _STEPS)]


TONE_CLASSES = frozenset(f"tone--{tone}" for tone in Tone)
"""Component classes of a widget that draws tones."""

TONE_RULES = """
    & > .tone--normal { color: $foreground; }
    & > .tone--muted { color: $text-muted; }
    & > .tone--accent { color: $text-primary; }
    & > .tone--good { color: $text-success; }
    & > .tone--warn { color: $text-warning; }
    & > .tone--bad { color: $text-error; text-style: bold; }
    & > .tone--lost { color: $text-error; text-style: reverse; }
    & > .tone--active { color: $text-warning; background: $warning-muted; }
    & > .tone--in-low { color: $in-low; }
    & > .tone--in { color: $in; }
    & > .tone--in-high { color: $in-high; }
    & > .tone--out-low { color: $out-low; }
    & > .tone--out { color: $out; }
    & > .tone--out-high { color: $out-high; }
    & > .tone--in-bar { color: $in-high; background: $in-bar; text-style: $bar-style; }
    & > .tone--out-bar { color: $out-high; background: $out-bar; text-style: $bar-style; }
"""
"""CSS rules of the tones, for the widget's own block in DEFAULT_CSS."""
TONE_VARIABLES = {
    "in-low": "#87a7c7", "in": "#6fb5f7", "in-high": "#b3dcff", "in-bar": "#23577f",
    "out-low": "#cfa57c", "out": "#f58f2e", "out-high": "#ffd3a6", "out-bar": "#662a08",
    "bar-style": "none",
}  # fmt: skip
"""Variables of TONE_RULES that Textual's own themes lack, for a dark ground."""


def tone_styles(component_style: Callable[[str], Style]) -> dict[Tone, Style]:
    """Return the style of each tone, by a widget's `get_component_rich_style`."""
    return {tone: component_style(f"tone--{tone}") for tone in Tone}
