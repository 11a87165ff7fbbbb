"""A box over the screen."""

from __future__ import annotations

from widgets.terminal.compositor import DiffModalScreen

_CELLS = 80


class BoxScreen(DiffModalScreen[None]):
    """A screen with a box, the widget of class `box`.

    In a terminal that is no wider than the box, it has no sides: they would cost two cells a line.
    """

    DEFAULT_CSS = f"""
    BoxScreen > .box {{
        width: {_CELLS}; max-width: 100%; height: auto; max-height: 100%;
        background: $panel; border: round $primary;
        border-title-color: $text-primary; border-subtitle-color: $text-muted;
    }}
    BoxScreen.-narrow > .box {{ border-left: none; border-right: none; }}
    """

    # Textual also calls the handlers of base classes.

    def on_mount(self) -> None:
        self._fit_sides()

    def on_resize(self) -> None:
        self._fit_sides()

    def _fit_sides(self) -> None:
        # Breakpoints would come after the first frame.
        self.set_class(self.app.size.width <= _CELLS, "-narrow")
