"""The start of the search for owners beside a console that already shows flows."""

from __future__ import annotations

import threading

from app.outputs.view import is_table
from bpf.errors import ProbedeckError
from probes.control.controller import Controller
from probes.snapshot import Event, Item


class OwnersLater:
    """Looks for owners once the first window of flows has ended: its programs take a second."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._begun = False
        controller.listen(self._hear)

    def _hear(self, item: Item) -> None:
        if not self._begun and is_table(item, "flow", ""):
            self._begun = True
            threading.Thread(target=self._look, name="owners", daemon=True).start()

    def _look(self) -> None:
        try:
            self._controller.look_for_owners(True)
        except ProbedeckError as error:
            self._controller.publish(Event.now("warning", "sockets", f"no owners: {error}"))
