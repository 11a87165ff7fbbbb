"""The hosts of a fleet in the console."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from app.console.layout import Layouts
from app.console.protocol import Console
from app.console.screen import screen_of
from app.console.screens import SCREENS
from probes.snapshot import Item

if TYPE_CHECKING:
    from app.console.live.fleet_state import FleetState
    from app.fleet.plane import ChosenHosts


class FleetHosts:
    """The chosen hosts of a fleet, and their present; without a fleet it has neither."""

    chosen: ChosenHosts | None = None

    def __init__(
        self, console: Console, layouts: Layouts, make: Callable[[], ChosenHosts] | None
    ) -> None:
        """`make` connects to the hosts; None: there is no fleet."""
        self._console, self._layouts, self._make = console, layouts, make
        self._state: FleetState | None = None

    def load(self) -> None:
        """Connect to the hosts. Raises ProbedeckError."""
        if self._make is not None:
            from app.console.live.fleet_state import FleetState

            self.chosen = self._make()
            self._state = FleetState(self.chosen)

    def open(self) -> None:
        """Begin to take windows in."""
        self._console.time.open(self._state)

    def listen(self, listener: Callable[[Item], None]) -> None:
        """Keep the items of the chosen hosts, and then call `listener` with each."""

        def hear(host: str, item: Item) -> None:
            if self._state is not None:
                self._state.take_of(host, item)
            listener(item)

        if self.chosen is not None:
            self.chosen.listen(hear)
        else:
            self._console.plane.listen(listener)

    async def choose(self) -> None:
        """Begin anew with the chosen hosts."""
        assert self._state is not None
        self._state.choose()
        app = self._console.app
        shown = {mode: screen_of(app, mode) for mode in SCREENS if mode != app.current_mode}
        # The models of other screens are about the hosts before; filters and the like stay.
        self._layouts.keep({mode: screen.keep() for mode, screen in shown.items() if screen})
        for mode in shown:
            await app.remove_mode(mode)
            app.add_mode(mode, SCREENS[mode])
        self.open()
        self._console.refresh_view()
