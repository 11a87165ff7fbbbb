"""Settings from `config.toml`, PROBEDECK_* variables and options: names and types.

`app.config.load` loads them. The first paint imports this module, so it imports little.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from probes.config.options import setting
from probes.reports import OutputConfig

CONSOLE = "Console"
"""Heading of the console's options in the help."""
Glyphs = Literal["auto", "braille", "block", "ascii"]
Colors = Literal["auto", "none", "16", "256", "truecolor"]
TimeZone = Literal["utc", "local"]
Binding = str | tuple[str, ...]
"""The action of a key: a command line, several, `@tape`, keys such as `@2/dport:443<enter>`, or
nothing (empty)."""


@dataclass(frozen=True, slots=True)
class Ui:
    """`[ui]`: look and behaviour of the console."""

    theme: str = setting(
        CONSOLE, "auto", "Colours: auto asks the terminal; a NAME is a file in the folder themes.",
        "auto|dark|light|NAME",
    )  # fmt: skip
    glyphs: Glyphs = setting(CONSOLE, "auto", "Characters that draw charts.")
    colors: Colors = setting(CONSOLE, "auto", "Number of colours.")
    low_bandwidth: bool = setting(CONSOLE, False, "Send few bytes and few updates.")
    mouse: bool = setting(
        CONSOLE, True, "Take mouse clicks; --no-mouse leaves them to the terminal."
    )
    time: TimeZone = setting(CONSOLE, "utc", "Clocks of the console: UTC or this host's zone.")
    layout: str = setting(CONSOLE, "", "Start with a layout that layout.save kept.", "NAME")


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings, by section."""

    ui: Ui = field(default_factory=Ui)
    keys: Mapping[str, Mapping[str, Binding]] = field(default_factory=dict)
    """Actions by screen (`""`: all screens) and key: `[keys]` and `[keys.flows]`."""
    macros: Mapping[str, str] = field(default_factory=dict)
    """Files of tapes by name: `[macros]`."""
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Columns by table, in their order: `[columns]`, `flows = ["source", "rate"]`."""
    filters: Mapping[str, str] = field(default_factory=dict)
    """Filters by name, for `flow.filter @name`; `[filters]`."""
    outputs: tuple[OutputConfig, ...] = ()
    """Outputs of a run, beside those of `--output`: `[[outputs]]`."""
    again: Callable[[], tuple[Settings, Mapping[str, Any]]] | None = field(
        default=None, compare=False, repr=False
    )
    """Reads the file again: the settings, and values of options by name. Raises UsageError with
    every mistake, one a line. None: there is no file to read."""
    origin: str = ""
    """The path of the file, for messages; empty without a file."""
    warnings: tuple[str, ...] = ()
    """Messages about an untrusted file or unknown variables."""
