"""Colours of the console: the built-in themes, and the user's own in the folder `themes`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from app.config.paths import check_file_name, config_file, read_private
from app.config.toml_lines import TomlDocument
from app.files import as_invoker
from bpf.errors import ProbedeckError, UsageError, did_you_mean, printable, together

NAMES = {
    "text": "Text.",
    "muted": "Text of less weight: titles, units.",
    "accent": "Names and rules of the focused pane, keys, marks.",
    "good": "A state without trouble.",
    "warn": "Trouble.",
    "bad": "Loss and errors.",
    "special": "Neither good nor bad, such as strings in a source.",
    "ground": "Background.",
    "panel": "Background of strips, footer and dialogs.",
    "cursor": "Background of the selected row.",
    "blurred": "The same in a pane without the focus.",
    "active": "Background of active times on a time line.",
    "line": "Rules, and lines between panes.",
    "in_low": "Incoming traffic below 100 kbit/s.",
    "in": "Incoming traffic below 10 Mbit/s.",
    "in_high": "More incoming traffic.",
    "out_low": "Outgoing traffic, by the same steps.",
    "out": "Outgoing traffic, by the same steps.",
    "out_high": "Outgoing traffic, by the same steps.",
    "in_bar": "Bar behind the rate of incoming traffic.",
    "out_bar": "Bar behind the rate of outgoing traffic.",
}
"""Colours by their names in files, with their use."""
AUTO = "auto"
_COLOR = re.compile(r"#[0-9a-fA-F]{6}")


@dataclass(frozen=True, slots=True)
class ThemeColors:
    """A value `#rrggbb` for each of NAMES."""

    dark: bool
    """Whether texts are lighter than their background."""
    colors: Mapping[str, str]


DARK = ThemeColors(True, {
    "text": "#e4e4e4", "muted": "#a8a8a8", "accent": "#87d7d7", "good": "#87d787",
    "warn": "#ffd75f", "bad": "#ff8787", "special": "#d7afff", "ground": "#121212",
    "panel": "#262626", "cursor": "#1c3a5a", "blurred": "#323232", "active": "#5f5f00",
    "line": "#585858", "in_low": "#87a7c7", "in": "#6fb5f7", "in_high": "#b3dcff",
    "out_low": "#cfa57c", "out": "#f58f2e", "out_high": "#ffd3a6", "in_bar": "#23577f",
    "out_bar": "#662a08",
})  # fmt: skip
LIGHT = ThemeColors(False, {
    "text": "#1c1c1c", "muted": "#585858", "accent": "#005f87", "good": "#005f00",
    "warn": "#5f5f00", "bad": "#af0000", "special": "#5f0087", "ground": "#ffffff",
    "panel": "#eeeeee", "cursor": "#d5edfc", "blurred": "#ececec", "active": "#ffffaf",
    "line": "#b2b2b2", "in_low": "#4a6a8a", "in": "#0a60c0", "in_high": "#00346e",
    "out_low": "#7d6149", "out": "#95570a", "out_high": "#5c2e00", "in_bar": "#a9d1f7",
    "out_bar": "#fbd5ae",
})  # fmt: skip
BUILT_IN = {"dark": DARK, "light": LIGHT}
"""The themes without a file. A file takes another name; these two may be its base."""


def folder() -> Path:
    return config_file().parent / "themes"


def names() -> list[str]:
    """Return the names of all themes, the built-in ones first."""
    with as_invoker():
        own = {path.stem for path in folder().glob("[!.]*.toml")}
    return [*BUILT_IN, *sorted(own - set(BUILT_IN))]


def load(name: str) -> ThemeColors:
    """Return a theme. Raises ProbedeckError, with all mistakes of its file."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    check_file_name(name, "theme")
    path = folder() / f"{name}.toml"
    if (text := read_private(path)) is None:
        raise UsageError(f"there is no theme {name!r}", hint=did_you_mean(name, names()))
    document = TomlDocument.of(path, text)
    if mistakes := list(_mistakes(document)):
        raise together(mistakes)
    base = BUILT_IN[document.data.get("base", "dark")]
    own = {key: value for key, value in document.data.items() if key != "base"}
    return ThemeColors(base.dark, {**base.colors, **own})


def problems() -> Iterator[ProbedeckError]:
    """Return the mistakes in all files of themes."""
    for name in names():
        try:
            load(name)
        except ProbedeckError as error:
            yield from error.mistakes


def _mistakes(document: TomlDocument) -> Iterator[UsageError]:
    for key, value in document.data.items():
        problem = hint = ""
        if key == "base":
            if not isinstance(value, str) or value not in BUILT_IN:
                problem, hint = "is not one of dark, light", "other colours come from that theme"
        elif key not in NAMES:
            problem, hint = "unknown colour", did_you_mean(key, ["base", *NAMES])
        elif not (isinstance(value, str) and _COLOR.fullmatch(value)):
            problem, hint = "is no colour", f'such as "{DARK.colors[key]}"'
        if problem:
            place = document.place((key,))
            error = UsageError(f"{place}: {printable(key)[:80]}: {problem}", hint=hint)
            error.placed = True
            yield error
