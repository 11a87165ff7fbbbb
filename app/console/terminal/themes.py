"""The console's own themes: a dark and a light one, for many colours and for sixteen.

Terminals with 256 colours show the nearest ones. The contrast of each text with each of its grounds
is at least 4.5 in both. The usual texts and grounds are among the 256: their names are short. The
themes for sixteen colours take those whose shade terminals agree about.
"""

from __future__ import annotations

from dataclasses import dataclass

from textual.theme import Theme


@dataclass(frozen=True, slots=True)
class _Colors:
    """The colours of a theme, as #rrggbb."""

    text: str
    muted: str
    accent: str
    good: str
    warn: str
    bad: str
    special: str
    """Neither good nor bad: a string in a source, for example."""
    ground: str
    panel: str
    """Ground of strips, footer and dialogs."""
    cursor: str
    blurred: str
    """Ground of the cursor in a widget without the focus."""
    active: str
    """Ground of active times on a time line."""
    line: str
    """Between two panes."""
    incoming: tuple[str, str, str]
    outgoing: tuple[str, str, str]
    """Traffic, from low to high rates."""
    in_bar: str
    out_bar: str
    """Ground of a bar behind a text; the usual ground underlines the text."""
    dark: bool


def _theme(name: str, c: _Colors) -> Theme:
    names = "in-low", "in", "in-high", "out-low", "out", "out-high"
    rates = dict(zip(names, c.incoming + c.outgoing, strict=True))
    return Theme(
        name=name, dark=c.dark,
        primary=c.accent, secondary=c.special, accent=c.accent, warning=c.warn, error=c.bad,
        success=c.good, foreground=c.text, background=c.ground, surface=c.ground, panel=c.panel,
        boost=c.panel,
        variables={
            "text": c.text, "text-muted": c.muted, "text-disabled": c.muted,
            "text-primary": c.accent, "text-secondary": c.special, "text-accent": c.special,
            "text-success": c.good, "text-warning": c.warn, "text-error": c.bad,
            "primary-muted": c.line, "warning-muted": c.active, "foreground-muted": c.muted,
            "block-cursor-background": c.cursor, "block-cursor-foreground": c.text,
            "block-cursor-blurred-background": c.blurred,
            "block-cursor-blurred-foreground": c.text, "block-hover-background": c.blurred,
            "border": c.accent, "border-blurred": c.line, "surface-active": c.ground,
            "scrollbar": c.muted, "scrollbar-hover": c.muted, "scrollbar-active": c.accent,
            "scrollbar-background": c.ground, "scrollbar-background-hover": c.ground,
            "scrollbar-background-active": c.ground, "scrollbar-corner-color": c.ground,
            "footer-key-foreground": c.accent, "footer-foreground": c.text,
            "footer-background": c.panel, "footer-description-foreground": c.text,
            "input-cursor-background": c.ground, "input-cursor-foreground": c.text,
            "input-cursor-text-style": "reverse",  # also visible without colours
            "input-selection-background": c.cursor, "input-selection-foreground": c.text,
            **rates, "in-bar": c.in_bar, "out-bar": c.out_bar,
            "bar-style": "underline" if c.in_bar == c.ground else "none",
        },
    )  # fmt: skip


_DARK = _Colors(
    text="#e4e4e4", muted="#a8a8a8", accent="#87d7d7", good="#87d787", warn="#ffd75f",
    bad="#ff8787", special="#d7afff", ground="#121212", panel="#262626", cursor="#1c3a5a",
    blurred="#323232", active="#5f5f00", line="#585858",
    incoming=("#87a7c7", "#6fb5f7", "#b3dcff"), outgoing=("#c39f7d", "#eb9c54", "#ffd3a6"),
    in_bar="#23577f", out_bar="#6a3408", dark=True,
)  # fmt: skip
_LIGHT = _Colors(
    text="#1c1c1c", muted="#585858", accent="#005f87", good="#005f00", warn="#5f5f00",
    bad="#af0000", special="#5f0087", ground="#ffffff", panel="#eeeeee", cursor="#d5edfc",
    blurred="#ececec", active="#ffffaf", line="#b2b2b2",
    incoming=("#4a6a8a", "#0a60c0", "#00346e"), outgoing=("#7d6149", "#95570a", "#5c2e00"),
    in_bar="#a9d1f7", out_bar="#fbd5ae", dark=False,
)  # fmt: skip
_DARK_16 = _Colors(
    text="#ffffff", muted="#aaaaaa", accent="#55ffff", good="#55ff55", warn="#ffff55",
    bad="#ff5555", special="#ff55ff", ground="#000000", panel="#000000", cursor="#0000aa",
    blurred="#555555", active="#555555", line="#5555ff",
    incoming=("#00aaaa",) * 3, outgoing=("#ff55ff",) * 3, in_bar="#000000",
    out_bar="#000000", dark=True,
)  # fmt: skip
_LIGHT_16 = _Colors(
    text="#000000", muted="#555555", accent="#0000aa", good="#00aa00", warn="#aa00aa",
    bad="#aa0000", special="#0000aa", ground="#ffffff", panel="#ffffff", cursor="#ffff55",
    blurred="#ffffff", active="#55ffff", line="#555555",
    incoming=("#5555ff",) * 3, outgoing=("#aa5500",) * 3, in_bar="#ffffff",
    out_bar="#ffffff", dark=False,
)  # fmt: skip

_COLORS = {"dark": _DARK, "light": _LIGHT, "dark-16": _DARK_16, "light-16": _LIGHT_16}
THEMES = {f"probedeck-{name}": _theme(f"probedeck-{name}", of) for name, of in _COLORS.items()}


def name_of(*, dark: bool, colors: str) -> str:
    """The theme for a ground and a number of colours, as settings call that."""
    # Without colours, the grounds of the dark theme select the text to be reversed.
    shade = "dark" if dark or colors == "none" else "light"
    return f"probedeck-{shade}-16" if colors == "16" else f"probedeck-{shade}"
