"""Textual's themes of the console's colours, for many colours and for sixteen.

Terminals with 256 colours show the nearest ones. The contrast of each text with each of its grounds
is at least 4.5 in both. The usual texts and grounds are among the 256: their names are short. The
themes for sixteen colours take those whose shade terminals agree about.
"""

from __future__ import annotations

from textual.theme import Theme

from app.config.theme_colors import BUILT_IN, ThemeColors, load


def theme(name: str, of: ThemeColors) -> Theme:
    """Return Textual's theme. A bar of the ground's colour underlines its text instead."""
    c = of.colors
    text, muted, accent, special = c["text"], c["muted"], c["accent"], c["special"]
    ground, panel, line, blurred = c["ground"], c["panel"], c["line"], c["blurred"]
    traffic = {each.replace("_", "-"): c[each] for each in c if each.startswith(("in", "out"))}
    return Theme(
        name=name, dark=of.dark,
        primary=accent, secondary=special, accent=accent, warning=c["warn"], error=c["bad"],
        success=c["good"], foreground=text, background=ground, surface=ground, panel=panel,
        boost=panel,
        variables={
            "text": text, "text-muted": muted, "text-disabled": muted,
            "text-primary": accent, "text-secondary": special, "text-accent": special,
            "text-success": c["good"], "text-warning": c["warn"], "text-error": c["bad"],
            "primary-muted": line, "warning-muted": c["active"], "foreground-muted": muted,
            "block-cursor-background": c["cursor"], "block-cursor-foreground": text,
            "block-cursor-text-style": "none", "block-cursor-blurred-background": blurred,
            "block-cursor-blurred-foreground": text, "block-hover-background": blurred,
            "border": accent, "border-blurred": line, "surface-active": ground,
            "scrollbar": line, "scrollbar-hover": muted, "scrollbar-active": accent,
            "scrollbar-background": ground, "scrollbar-background-hover": ground,
            "scrollbar-background-active": ground, "scrollbar-corner-color": ground,
            "footer-key-foreground": accent, "footer-foreground": text,
            "footer-background": panel, "footer-description-foreground": text,
            "input-cursor-background": ground, "input-cursor-foreground": text,
            "input-cursor-text-style": "reverse",  # also visible without colours
            "input-selection-background": c["cursor"], "input-selection-foreground": text,
            **traffic, "bar-style": "underline" if c["in_bar"] == ground else "none",
        },
    )  # fmt: skip


_DARK_16 = ThemeColors(True, {
    "text": "#ffffff", "muted": "#aaaaaa", "accent": "#55ffff", "good": "#55ff55",
    "warn": "#ffff55", "bad": "#ff5555", "special": "#ff55ff", "ground": "#000000",
    "panel": "#000000", "cursor": "#0000aa", "blurred": "#555555", "active": "#555555",
    "line": "#5555ff", "in_bar": "#000000", "out_bar": "#000000",
    **dict.fromkeys(("in_low", "in", "in_high"), "#00aaaa"),
    **dict.fromkeys(("out_low", "out", "out_high"), "#ff55ff"),
})  # fmt: skip
_LIGHT_16 = ThemeColors(False, {
    "text": "#000000", "muted": "#555555", "accent": "#0000aa", "good": "#00aa00",
    "warn": "#aa00aa", "bad": "#aa0000", "special": "#0000aa", "ground": "#ffffff",
    "panel": "#ffffff", "cursor": "#ffff55", "blurred": "#ffffff", "active": "#55ffff",
    "line": "#555555", "in_bar": "#ffffff", "out_bar": "#ffffff",
    **dict.fromkeys(("in_low", "in", "in_high"), "#5555ff"),
    **dict.fromkeys(("out_low", "out", "out_high"), "#aa5500"),
})  # fmt: skip

_USUAL = {**BUILT_IN, "dark-16": _DARK_16, "light-16": _LIGHT_16}
THEMES = {f"probedeck-{name}": theme(f"probedeck-{name}", of) for name, of in _USUAL.items()}


def theme_of(name: str, colors: str) -> Theme:
    """Return a theme (by name) for a number of colours, as settings call that.

    Raises ProbedeckError if it does not exist, or its file has mistakes.
    """
    found = load(name)
    # Without colours, the grounds of the dark theme select the text to be reversed.
    shade = "dark" if found.dark or colors == "none" else "light"
    if colors == "16":
        return THEMES[f"probedeck-{shade}-16"]
    if name in BUILT_IN or colors == "none":
        return THEMES[f"probedeck-{shade}"]
    return theme(f"probedeck-own-{name}", found)
