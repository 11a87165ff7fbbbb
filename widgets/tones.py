"""Tones: what a text means, which the theme turns into a colour."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

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
    """Of a bar for whose samples some answers are missing: it hangs from above, in any colour."""
    ACTIVE = "active"
    """Of a bar of a time at which something ran: it stands on a ground of its own."""


TONE_CLASSES = frozenset(f"tone--{tone}" for tone in Tone)
"""The component classes of a widget that draws tones."""

TONE_RULES = """
    & > .tone--normal { color: $foreground; }
    & > .tone--muted { color: $text-muted; }
    & > .tone--accent { color: $text-primary; }
    & > .tone--good { color: $text-success; }
    & > .tone--warn { color: $text-warning; }
    & > .tone--bad { color: $text-error; text-style: bold; }
    & > .tone--lost { color: $text-error; text-style: reverse; }
    & > .tone--active { color: $text-warning; background: $warning-muted; }
"""
"""Their rules, to be placed inside the widget's own block of DEFAULT_CSS."""


def tone_styles(component_style: Callable[[str], Style]) -> dict[Tone, Style]:
    """The style of each tone, by a widget's `get_component_rich_style`."""
    return {tone: component_style(f"tone--{tone}") for tone in Tone}
