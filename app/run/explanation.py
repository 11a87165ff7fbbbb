"""A run that ends with the explanation of one conversation."""

from __future__ import annotations

import time
from typing import Any

from app.explain import (
    Explanation,
    choose,
    explain,
    far_end,
    nothing_passes,
)
from app.outputs.view import is_table
from app.resolve import detour
from app.run.headless import say
from app.run.item_loop import ItemLoop
from app.run.spec import RunSpec
from app.run.start import new_controller
from app.run.totals import Totals
from bpf.attach import group
from bpf.errors import ProbedeckError
from probes.control.controller import Controller
from probes.path.options import OwnFlow
from probes.snapshot import Event, Snapshot

_LOOK_S = 2.0
"""Windows before the choice: the first one may miss the largest conversation."""
_MOST_LOOK_S = 10.0
"""Longest wait for a conversation that passes."""
_ENOUGH_S = 5.0
"""Votes about the limit, and probes of the path, take as long to be certain."""
_MOST_S = 15.0
"""Longest wait for numbers after the choice."""
_FEW = 10
"""Answers of the last hop, before the path is known."""


class _Watch:
    """The wanted conversation: looked for, then traced, until its numbers are whole."""

    def __init__(self, controller: Controller, spec: RunSpec, text: str, seconds: float | None):
        self._controller, self._spec = controller, spec
        self._text, self._seconds = text, seconds
        self._begin = time.monotonic()
        self._conversation: Any = None
        self._traced_at = 0.0
        self._untraced = ""

    def take(self, window: Snapshot) -> bool:
        """Look at a window of flows; return whether the run can end. Raises ProbedeckError."""
        if self._conversation is None:
            looked = time.monotonic() - self._begin
            if looked >= _LOOK_S:
                self._choose()
            return self._conversation is None and looked >= _MOST_LOOK_S
        watched = time.monotonic() - self._traced_at
        if self._seconds is not None:
            return watched >= self._seconds
        return watched >= _MOST_S or (watched >= _ENOUGH_S and self._is_whole())

    def explanation(self) -> Explanation:
        """Return the explanation. Raises ProbedeckError if no conversation passes the filter."""
        items = self._controller.history.snapshots()
        if self._conversation is None:
            choice = choose(items, self._text)
            if choice.conversation is None:
                raise nothing_passes(choice, self._text, ProbedeckError)
            self._conversation = choice.conversation
        untraced = self._untraced or self._absence()
        return explain(self._conversation, items, self._spec.describe, untraced)

    def _choose(self) -> None:
        choice = choose(self._controller.history.snapshots(), self._text)
        if choice.conversation is None:
            return
        self._conversation = choice.conversation
        far = far_end(choice.conversation)
        if choice.passing > 1:
            say(f"{choice.passing} conversations pass; the largest one goes to {far}")
        try:
            # Connections that do not begin, or rest, send no packet from which a probe is made.
            self._controller.trace(far, own=OwnFlow.parse("icmp"))
        except ProbedeckError as error:
            self._untraced = f"the path is not traced: {error}"
        self._traced_at = time.monotonic()

    def _is_whole(self) -> bool:
        found = self.explanation()
        knows_why = bool(found.why.limit) or found.flow.protocol != "tcp" or not found.why.samples
        hops = found.where.hops
        knows_where = bool(hops) and hops[-1].answered >= _FEW
        return knows_why and (knows_where or bool(self._untraced or self._absence()))

    def _absence(self) -> str:
        """Why there may be no probes of the path, or no answers; empty if nothing is known."""
        far = far_end(self._conversation)
        words = detour(far, group.find(self._spec.interface))
        notes = [note for each in self._controller.traced() for note in each.notes
                 if each.destination == far]  # fmt: skip
        return f"the path is not traced: {far} {words}" if words else next(iter(notes), "")


def run(spec: RunSpec, text: str, seconds: float | None) -> Explanation:
    """Watch until the numbers of the conversation of a filter are known, and explain it.

    `seconds` is the length of the watch after the choice; None: as short as the numbers allow. A
    signal ends the watch early. Raises ProbedeckError, also if no conversation passes the filter.
    """
    choose((), text)
    controller, _ = new_controller()
    loop = ItemLoop(controller)
    with loop.running(controller, spec, Totals()):
        # The explanation can do without either.
        for name, loss in ("sockets", "owners and limits"), ("drops", "drops of the kernel"):
            try:
                controller.switch(name, True)
            except ProbedeckError as error:
                say(f"{loss} are unknown: {error}")
        say(f"watching {spec.interface}")
        watch = _Watch(controller, spec, text, seconds)
        for item in loop.items():
            if isinstance(item, Event) and item.severity != "info":
                say(f"{item.source}: {item.text}")
            if is_table(item, "flow", "") and watch.take(item):
                break
        if loop.failures:
            raise loop.failures[0]
        return watch.explanation()
