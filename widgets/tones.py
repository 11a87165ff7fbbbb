"""Tones: meanings of a text, which the theme turns into colours."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.style import Style
    from textual.widget import Widget


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
"""Component classes of an app whose widgets draw tones. They are the app's and not the widgets',
because Textual computes each component style of each widget anew, often several times a start."""

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
"""CSS rules of the tones, for the app's block in DEFAULT_CSS."""
TONE_VARIABLES = {
    "in-low": "#87a7c7", "in": "#6fb5f7", "in-high": "#b3dcff", "in-bar": "#23577f",
    "out-low": "#cfa57c", "out": "#f58f2e", "out-high": "#ffd3a6", "out-bar": "#662a08",
    "bar-style": "none",
}  # fmt: skip
"""Variables of TONE_RULES that Textual's own themes lack, for a dark ground."""


def tone_styles(widget: Widget) -> dict[Tone, Style]:
    """Return the style of each tone on the ground of a widget."""
    from rich.style import Style

    app, plain = widget.app, widget.rich_style
    _, ground = widget.background_colors
    styles = {}
    for tone in Tone:
        rules = app.get_component_styles(f"tone--{tone}")
        under = ground + rules.background if rules.has_rule("background") else ground
        color = under.get_contrast_text(rules.color.a) if rules.auto_color else rules.color
        styles[tone] = plain + rules.text_style
        styles[tone] += Style.from_color((under + color).rich_color, under.rich_color)
    return styles
