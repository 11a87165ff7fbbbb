"""Tones: meanings of a text, which the theme turns into colours."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING

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
"""
"""CSS rules of the tones, for the widget's own block in DEFAULT_CSS."""


def tone_styles(component_style: Callable[[str], Style]) -> dict[Tone, Style]:
    """Return the style of each tone, by a widget's `get_component_rich_style`."""
    return {tone: component_style(f"tone--{tone}") for tone in Tone}
