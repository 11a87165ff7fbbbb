"""Saved layouts: the current screen, and the display of each screen.

The console keeps them in files of the state directory, not in the user's `config.toml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from app.config.paths import check_file_name, read_private, state_dir, write_private
from app.config.toml_lines import TomlDocument, dumped
from app.files import as_invoker
from bpf.errors import UsageError, did_you_mean

USUAL = "default"
"""Name of a layout that is saved without a name."""
CONSOLE = "console"
"""The key for settings of the whole console, among the names of screens."""
Layout = Mapping[str, Mapping[str, str]]
"""Values by screen and key. A screen ignores unknown keys."""


def save(name: str, layout: Layout) -> Path:
    """Save or replace a layout, and return its path. Raises ProbedeckError."""
    path = path_of(name)
    tables = (
        [f"[{dumped(screen)}]", *(f"{dumped(key)} = {dumped(value)}" for key, value in of.items())]
        for screen, of in layout.items()
    )
    write_private(path, "\n\n".join("\n".join(table) for table in tables) + "\n")
    return path


def load(name: str) -> Layout:
    """Return a saved layout. Raises ProbedeckError."""
    path = path_of(name)
    if (text := read_private(path)) is None:
        hint = did_you_mean(name, names()) or "layout.save keeps one"
        raise UsageError(f"there is no layout {name!r}", hint=hint)
    data = TomlDocument.of(path, text).data
    return {
        screen: {key: value for key, value in of.items() if isinstance(value, str)}
        for screen, of in data.items()
        if isinstance(of, dict)
    }


def names() -> list[str]:
    with as_invoker():
        return sorted(path.stem for path in (state_dir() / "layouts").glob("[!.]*.toml"))


def path_of(name: str) -> Path:
    """Return the path for a layout. Raises UsageError for an impossible name."""
    check_file_name(name, "layout")
    return state_dir() / "layouts" / f"{name}.toml"
