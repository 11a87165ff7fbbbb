"""What an operator can set, in `config.toml`, by PROBEDECK_* and by options: its names and types.

Loading is `app.config.load`; this module is imported by the first paint, and so stays cheap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import typer

Theme = Literal["auto", "dark", "light"]
Glyphs = Literal["auto", "braille", "block", "ascii"]
Colors = Literal["auto", "none", "16", "256", "truecolor"]
Binding = str | tuple[str, ...]
"""What a key does: a command line, several of them, `@tape`, or `@2/dport:443<enter>` for keys;
empty: nothing."""


@dataclass(frozen=True, slots=True)
class Ui:
    """`[ui]`: how the console looks and behaves."""

    theme: Annotated[
        Theme,
        typer.Option(help="Colours for a dark or a light terminal; auto: as it says it is."),
    ] = "auto"
    """`auto`: as light or dark as the terminal says it is; dark where it says nothing."""
    glyphs: Annotated[
        Glyphs, typer.Option(help="What charts are drawn with; auto: what the terminal can show.")
    ] = "auto"
    colors: Annotated[
        Colors, typer.Option(help="How many there are; auto: what the terminal can show.")
    ] = "auto"
    low_bandwidth: Annotated[
        bool,
        typer.Option(
            "--low-bandwidth/--no-low-bandwidth",
            show_default=False,
            help="Send as little as possible: for a slow link.",
        ),
    ] = False
    """Updates the screen seldom, and draws with what takes the fewest bytes."""
    mouse: Annotated[
        bool,
        typer.Option(
            "--mouse/--no-mouse",
            show_default=False,
            help="Take clicks, or leave them to the terminal.",
        ),
    ] = True
    layout: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Begin with a layout that layout.save kept.", show_default="none"
        ),
    ] = ""


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
