"""Names that the probe of names learned, on their way to the screens."""

from __future__ import annotations

from app.console.host_names import NameSource
from app.console.protocol import Console
from probes.snapshot import Snapshot


class LearnedNames:
    """Gives the names of the probe's tables to the console's names."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def take(self, item: Snapshot) -> None:
        """Learn the names of a window; the probes' threads call it."""
        if item.probe != "names":
            return
        # Imported here: the first paint needs no tables of names.
        from probes.names.learned import learned

        for address, name, source, ttl in learned(item):
            self._console.names.learn(address, name, NameSource(source), ttl)
