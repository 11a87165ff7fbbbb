"""A block of the Overview: the maps that the user has pinned, live."""

from __future__ import annotations

from dataclasses import replace

from app.console.live.maps import MapHistory, MapView
from app.console.screen import ConsoleScreen
from app.console.screens.programs.columns import MAPS
from app.console.tables.spec import columns
from bpf.errors import ProbedeckError
from probes.reports import MapReadings
from widgets.table.block import Block
from widgets.table.rows import Rows, RowSource

_PERIOD = 1.0
"""Seconds between two readings."""
_ENTRIES = 5
"""Entries of a pinned map."""
_LINES = 12
"""Most lines of the block."""
_CELLS = 24
"""Cells of the pictures."""
_PAST = "maps are live: they show the present only"


class PinnedMaps(Block):
    """The pinned maps with their largest entries; hidden without a pin."""

    def __init__(self) -> None:
        super().__init__(
            columns(MAPS, map={"title": "Pinned"}, picture={"width": _CELLS}), id="pinned"
        )
        self.display = False
        self._history = MapHistory()
        self._reading = False

    @property
    def lines(self) -> int:
        """Lines of the block; 0 if it is hidden."""
        return min(_LINES, 1 + self.source.rows) if self.display else 0

    def on_mount(self) -> None:
        self.set_interval(_PERIOD, self._read)

    def _read(self) -> None:
        """Read the probes of the pinned maps in a worker, while the screen is in front."""
        screen = self.screen
        assert isinstance(screen, ConsoleScreen)
        console = screen.console
        pins = console.pins.maps
        self.display = bool(pins)
        if not console.time.is_live:
            self.empty = _PAST
            self._fill(Rows())
        elif pins and screen.is_current and not self._reading:
            self._reading = True
            plane = console.plane

            def ask() -> tuple[MapReadings, ...]:
                running = {info.name for info in plane.probes()}
                names = dict.fromkeys(pin[0] for pin in pins)
                return tuple(plane.maps(name) for name in names if name in running)

            screen.run_in_worker(ask, self._taken, self._failed, asked=False)

    def _taken(self, readings: tuple[MapReadings, ...]) -> None:
        # Imported here: the first paint needs no numpy.
        from app.console.screens.programs.maps import map_rows

        self._reading = False
        screen = self.screen
        assert isinstance(screen, ConsoleScreen)
        views = [view for each in readings for view in self._history.take(each)]
        pins = screen.console.pins.maps
        if screen.console.time.is_live:
            self.empty = "no such map runs"
            pinned = [
                _largest(one)
                for one in views
                if (one.probe, one.reading.side, one.reading.name) in pins
            ]
            self._fill(map_rows(pinned, cells=_CELLS))

    def _failed(self, error: ProbedeckError) -> None:
        self._reading = False
        self.empty = str(error)
        self._fill(Rows())

    def _fill(self, rows: RowSource) -> None:
        self.show(rows)
        self.styles.height = self.lines


def _largest(view: MapView) -> MapView:
    """Return the view with its largest entries, in their order, and with its probe's name."""
    largest = sorted(view.entries, key=lambda each: -each.number)[:_ENTRIES]
    entries = tuple(each for each in view.entries if each in largest)
    reading = replace(view.reading, name=f"{view.probe} {view.reading.name}")
    return replace(view, reading=reading, entries=entries)
