"""What stands in a box over the screen that it was asked on."""

from __future__ import annotations

from widgets.screen import DiffModalScreen

_CELLS = 80


class BoxScreen(DiffModalScreen[None]):
    """A screen with a box in a widget of the class `box`; in a terminal no wider than that the box
    has no sides, which would be two cells of each line to be sent."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (_CELLS + 1, "-wide")]
    DEFAULT_CSS = f"""
    BoxScreen > .box {{
        width: {_CELLS}; max-width: 100%; height: auto; max-height: 100%;
        background: $panel; border: round $primary;
        border-title-color: $text-primary; border-subtitle-color: $text-muted;
    }}
    BoxScreen.-narrow > .box {{ border-left: none; border-right: none; }}
    """
