"""What an operator can set, in `config.toml`, by PROBEDECK_* and by options: its names and types.

Loading is `app.config.load`; this module is imported by the first paint, and so stays cheap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from app.config.schema import setting

CONSOLE = "Console"
"""Heading of the console's options in the help."""
Theme = Literal["auto", "dark", "light"]
Glyphs = Literal["auto", "braille", "block", "ascii"]
Colors = Literal["auto", "none", "16", "256", "truecolor"]
Binding = str | tuple[str, ...]
"""What a key does: a command line, several of them, `@tape`, or `@2/dport:443<enter>` for keys;
empty: nothing."""


@dataclass(frozen=True, slots=True)
class Ui:
    """`[ui]`: how the console looks and behaves."""

    theme: Theme = setting("auto", "Colours; auto asks the terminal.", group=CONSOLE)
    glyphs: Glyphs = setting("auto", "Characters that draw charts.", group=CONSOLE)
    colors: Colors = setting("auto", "Number of colours.", group=CONSOLE)
    low_bandwidth: bool = setting(False, "Send few bytes and few updates.", group=CONSOLE)
    mouse: bool = setting(
        True, "Take mouse clicks; --no-mouse leaves them to the terminal.", group=CONSOLE
    )
    layout: str = setting(
        "", "Start with a layout that layout.save kept.", group=CONSOLE, metavar="NAME"
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """All that is set, by section."""

    ui: Ui = field(default_factory=Ui)
    keys: Mapping[str, Mapping[str, Binding]] = field(default_factory=dict)
    """By screen (`""`: everywhere) and key: `[keys]` and `[keys.flows]`."""
    macros: Mapping[str, str] = field(default_factory=dict)
    """Tapes by name: files; `[macros]`. Relative ones are beside the configuration file."""
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Columns by table, in their order: `[columns]`, `flows = ["source", "rate"]`."""
    filters: Mapping[str, str] = field(default_factory=dict)
    """Filters by name, for `flow.filter @name`; `[filters]`."""
    origin: str = ""
    """The file that it is from, for messages; empty where there is none."""
    warnings: tuple[str, ...] = ()
    """What was left out, and why: a file that is not trusted, a variable that nothing knows."""
