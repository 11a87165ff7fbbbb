"""What stands in a box over the screen that it was asked on."""

from __future__ import annotations

from widgets.terminal.compositor import DiffModalScreen

_CELLS = 80


class BoxScreen(DiffModalScreen[None]):
    """A screen with a box in a widget of the class `box`; in a terminal no wider than that the box
    has no sides, which would be two cells of each line to be sent."""

    DEFAULT_CSS = f"""
    BoxScreen > .box {{
        width: {_CELLS}; max-width: 100%; height: auto; max-height: 100%;
        background: $panel; border: round $primary;
        border-title-color: $text-primary; border-subtitle-color: $text-muted;
    }}
    BoxScreen.-narrow > .box {{ border-left: none; border-right: none; }}
    """

    # Textual calls those of the classes that this one is made from by itself.

    def on_mount(self) -> None:
        self._fit_sides()

    def on_resize(self) -> None:
        self._fit_sides()

    def _fit_sides(self) -> None:
        # Breakpoints would come after the first frame.
        self.set_class(self.app.size.width <= _CELLS, "-narrow")
