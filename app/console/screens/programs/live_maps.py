"""The maps of the visible program: in a table beside the source, or in a panel."""

from __future__ import annotations

from collections.abc import Callable

from app.console.live.maps import MapHistory, MapView
from app.console.screen import ConsoleScreen
from app.console.screens.programs.columns import MAPS
from app.console.screens.programs.maps import MapKey, map_rows
from app.console.screens.programs.panels import Panel
from app.console.screens.programs.sources import Sources
from app.console.tables.sorted_table import SortedTable
from app.console.tables.spec import columns
from bpf.errors import ProbedeckError, UsageError, did_you_mean
from probes.control_plane import ControlPlane
from probes.reports import MapReadings

_PAST = "Maps are live: they show the present only.\nPress escape to return to it."
_MOST_ROWS = 200
"""Rows of a map; the API has more."""
_PICTURE = (9, 60)
"""Fewest and most cells of the column of pictures."""
_OTHERS = 60
"""Cells of the other columns, if there is room."""
_BESIDE = ("-beside", "-broad")
"""Classes of screens that show the maps beside the source."""
Answer = MapReadings | str | None
"""The maps of the visible probe; the reason if they cannot be read; None if nobody looks."""


class LiveMaps:
    """Reads the maps of the visible probe while they are visible, and shows them.

    Its `do_` methods are commands of the screen.
    """

    def __init__(
        self,
        screen: ConsoleScreen,
        sources: Sources,
        choose: Callable[[Panel], None],
        poll: Callable[[], None],
    ) -> None:
        """`choose` turns to a panel, and `poll` polls the control plane now."""
        self._screen, self._sources, self._choose, self._poll = screen, sources, choose, poll
        self._answer: Answer = None
        self._history = MapHistory()
        self._views: tuple[MapView, ...] = ()

    @property
    def beside(self) -> bool:
        """Whether the screen is wide enough for the maps beside the source."""
        return any(map(self._screen.has_class, _BESIDE))

    @property
    def table(self) -> SortedTable:
        return self._screen.query_one("#maps" if self.beside else "#maps-panel", SortedTable)

    @property
    def looks(self) -> bool:
        """Whether the user looks at maps: nothing reads them otherwise."""
        return self.table.display and self._screen.console.time.is_live

    @property
    def probe(self) -> str:
        """The probe whose maps the user looks at, or empty."""
        return self._sources.slot.probe if self._sources.slot and self.looks else ""

    def take(self, answer: Answer) -> None:
        self._answer = answer
        if isinstance(answer, MapReadings):
            self._views = self._history.take(answer)

    def show(self) -> None:
        """Show the maps of the visible direction."""
        table, slot = self.table, self._sources.slot
        if not table.display or slot is None:
            return
        views: list[MapView] = []
        if not self._screen.console.time.is_live:
            table.empty = _PAST
        elif isinstance(self._answer, str):
            table.empty = self._answer
        else:
            table.empty = "This program has no maps." if self._answer else ""
            views = [view for view in self._views if (view.probe, view.reading.side) == slot]
        cells = max(_PICTURE[0], min(_PICTURE[1], table.size.width - _OTHERS))
        table.columns = columns(MAPS, picture={"width": cells})
        table.fill(map_rows(views, pinned=self._screen.console.pins.maps, cells=cells))

    def look(self) -> None:
        """Show the maps of another direction or in another place, and poll if they are visible."""
        self.show()
        if self.probe:
            self._poll()

    def do_program_pin(self, name: str = "") -> None:
        key, slot = self.table.cursor_key, self._sources.slot
        known = [v.reading.name for v in self._views if (v.probe, v.reading.side) == slot]
        if not name and isinstance(key, MapKey):
            name = key.map
        if slot is None or name not in known:
            hint = did_you_mean(name, known) or "put the cursor on a map (o)"
            raise UsageError(f"no map {name!r} here" if name else "no map is chosen", hint=hint)
        pinned = self._screen.console.pins.toggle((*slot, name))
        text = f"{name} is {'pinned to' if pinned else 'no longer on'} the Overview"
        self._screen.app.notify(text, markup=False)
        self.show()

    def do_program_maps(self) -> None:
        if not self.beside:
            self._choose(Panel.MAPS)
        self._screen.set_focus(self.table)


def read_maps(plane: ControlPlane, probe: str) -> Answer:
    """Read the maps of a probe; return the reason if that fails."""
    try:
        return plane.maps(probe, _MOST_ROWS)
    except ProbedeckError as error:
        return str(error)
