"""Lines of widgets that draw all of their width themselves."""

from __future__ import annotations

from rich.style import Style
from textual._styles_cache import StylesCache
from textual.filter import ANSIToTruecolor
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget


class OwnLines(StylesCache):
    """What is drawn of a widget without border, padding, tint and opacity, line by line.

    Textual's own cache looks for each of these at every line, which takes longer than to draw it.
    """

    def render_widget(self, widget: Widget, crop: Region) -> list[Strip]:
        """Give the lines of `crop`; those that are dirty are drawn anew."""
        width = widget.outer_size.width
        if width != self._width:
            self.clear()
            self._width = width
        cache, dirty = self._cache, self._dirty_lines
        fresh = [y for y in crop.line_range if y in dirty or y not in cache]
        if fresh:
            background = widget.background_colors[1]
            # Colours of a theme are none of the terminal's own.
            filters = [f for f in widget.get_line_filters() if not isinstance(f, ANSIToTruecolor)]
            ground = Style.from_color(bgcolor=background.rich_color)
            for y in fresh:
                strip = widget.render_line(y).adjust_cell_length(width, ground)
                for each in filters:
                    strip = strip.apply_filter(each, background)
                cache[y] = strip
            dirty.difference_update(fresh)
        strips = [cache[y] for y in crop.line_range]
        if crop.column_span != (0, width):
            strips = [strip.crop(*crop.column_span) for strip in strips]
        return strips
