"""Capabilities of the terminal, detected before the import of Textual, which reads settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from app.config.model import Colors, Glyphs, Ui

_DIRECT = ("kitty", "alacritty", "foot", "wezterm", "ghostty", "direct")
"""Terminals with all colours; a remote host knows TERM only."""
_NO_COLORS = ("", "dumb", "unknown", "vt100", "vt102", "vt220", "ansi-m")
_NO_BRAILLE = ("linux", "dumb")
_PICTURES = {"TERM": "xterm", "COLORTERM": "truecolor", "COLORFGBG": ""}
_SYSTEMS: Mapping[str, Colors] = {"standard": "16", "256": "256", "truecolor": "truecolor"}
"""Colours by Textual's word for them."""
_LIGHT_GROUNDS = ("7", "9", "10", "11", "12", "13", "14", "15")
"""Numbers of the light colours in COLORFGBG."""


def prepare(ui: Ui, *, drawn: bool = False) -> Ui:
    """Resolve `auto` in the settings, and set the environment that Textual reads.

    A console that is only `drawn`, in pictures, looks the same whatever the terminal can do.
    """
    # Python itself sets LC_CTYPE if the locale is the C locale: look at the process's beginning.
    initial = Path("/proc/self/environ").read_bytes().split(b"\0")
    ctype = next((entry[9:] for entry in initial if entry.startswith(b"LC_CTYPE=")), b"")
    environment = {**os.environ, "LC_CTYPE": os.fsdecode(ctype)}
    ui = resolved(ui, environment | (_PICTURES if drawn else {}))
    # For NO_COLOR, even empty, Textual sends greys; probedeck leaves out colours itself.
    os.environ.pop("NO_COLOR", None)
    words = {colors: word for word, colors in _SYSTEMS.items()}
    os.environ["TEXTUAL_COLOR_SYSTEM"] = words.get(ui.colors, "truecolor")
    if ui.low_bandwidth:
        os.environ["TEXTUAL_ANIMATIONS"] = "none"
        os.environ["TEXTUAL_SMOOTH_SCROLL"] = "0"
    return ui


def resolved(ui: Ui, environment: Mapping[str, str]) -> Ui:
    """Return `ui` with `auto` replaced by the capabilities that the environment names.

    A theme may remain `auto`: the terminal itself reports its ground later.
    """
    colors = _colors(environment) if ui.colors == "auto" else ui.colors
    glyphs = _glyphs(environment) if ui.glyphs == "auto" else ui.glyphs
    theme = _theme(environment) if ui.theme == "auto" else ui.theme
    if ui.low_bandwidth:
        colors = "16" if ui.colors == "auto" and colors != "none" else colors
        glyphs = "block" if glyphs == "braille" and ui.glyphs == "auto" else glyphs
    mouse = ui.mouse and not ui.low_bandwidth
    return replace(ui, theme=theme, glyphs=glyphs, colors=colors, mouse=mouse)


def erases_in_color() -> bool:
    """Whether this terminal erases in the colour of the ground; False if unknown."""
    import curses

    term = os.environ.get("TERM", "")
    if "TMUX" in os.environ or term.startswith("tmux"):
        return True  # for years, whatever terminfo says
    try:
        # curses writes nothing: it asks the descriptor for the speed of the line.
        curses.setupterm(term, 2)
    except curses.error:
        return False
    return curses.tigetflag("bce") == 1


def has_shell() -> bool:
    """Whether a shell can continue the process after a stop."""
    group, process = os.getpgrp(), os.getppid()
    # As the kernel does: the process that began our group, in the same session.
    while process and os.getpgid(process) == group:
        status = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
        process = int(status.rpartition(")")[2].split()[1])
    return bool(process) and os.getsid(process) == os.getsid(0)


def _colors(environment: Mapping[str, str]) -> Colors:
    if environment.get("NO_COLOR"):
        return "none"
    if (asked := _SYSTEMS.get(environment.get("TEXTUAL_COLOR_SYSTEM", ""))) is not None:
        return asked
    term = environment.get("TERM", "").lower()
    if term in _NO_COLORS:
        return "none"
    known = environment.get("COLORTERM", "").lower() in ("truecolor", "24bit")
    if known or any(name in term for name in _DIRECT):
        return "truecolor"
    return "256" if "256color" in term else "16"


def _glyphs(environment: Mapping[str, str]) -> Glyphs:
    names = (environment.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    # Many containers set no locale: that says nothing about the terminal.
    locale = next((name for name in names if name), "UTF-8")
    if "utf8" not in locale.lower().replace("-", ""):
        return "ascii"
    return "block" if environment.get("TERM", "") in _NO_BRAILLE else "braille"


def _theme(environment: Mapping[str, str]) -> str:
    ground = environment.get("COLORFGBG", "").rpartition(";")[2]
    if not ground.isdigit():
        return "auto"
    return "light" if ground in _LIGHT_GROUNDS else "dark"
