"""Tracing the paths of the flows that a policy is about, as long as it is active."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

import numpy as np

from bpf.errors import DeckError
from probes.flow import FLOW, Direction
from probes.flow.filter import FlowFilter, address_text
from probes.path.options import TracedFlow
from probes.primitive.records import PROBE, Array
from probes.snapshot import Event, History

_ANSWER = {
    "source": "destination",
    "destination": "source",
    "source_port": "destination_port",
    "destination_port": "source_port",
    "protocol": "protocol",
    "version": "version",
}
"""Where the fields of an answer's flow come from."""
_KEY = np.dtype([(name, FLOW[name]) for name in _ANSWER])


@dataclass(frozen=True, slots=True)
class Wish:
    """What a policy has traced; nothing: it is not active any more."""

    policy: str
    select: tuple[str, ...] = ()
    count: int = 0


def top_flows(rows: Array, select: Sequence[str], count: int) -> list[tuple[str, TracedFlow]]:
    """Of the flows that come in and pass one of the filters, those with most packets that this host
    answers: where their answers go, which is what can be traced. Rows are of dtype FLOW (n,).
    """
    incoming = rows[rows["direction"] == Direction.INGRESS]
    outgoing = rows[rows["direction"] == Direction.EGRESS]
    if select:
        passed = [FlowFilter.parse(text).mask(incoming) for text in select]
        incoming = incoming[np.logical_or.reduce(passed)]
    busiest = incoming[np.argsort(incoming["packets"], kind="stable")[::-1]]
    answers, answered = np.empty(len(busiest), _KEY), np.empty(len(outgoing), _KEY)
    for name, of in _ANSWER.items():
        answers[name], answered[name] = busiest[of], outgoing[name]
    known = set(answered.view(f"V{_KEY.itemsize}").tolist())
    which = [key in known for key in answers.view(f"V{_KEY.itemsize}").tolist()]
    return [
        (
            address_text(row["destination"].tobytes(), int(row["version"])),
            TracedFlow(int(row["protocol"]), int(row["source_port"]), int(row["destination_port"])),
        )
        for row in answers[which][:count]
    ]


class Tracing:
    """A thread that traces what policies wish: starting to may take as long as a compile."""

    def __init__(
        self,
        history: History,
        trace: Callable[[str, TracedFlow], None],
        untrace: Callable[[str, TracedFlow], None],
        publish: Callable[[Event], None],
    ) -> None:
        self._history = history
        self._trace = trace
        self._untrace = untrace
        self._publish = publish
        self._wishes: SimpleQueue[Wish | None] = SimpleQueue()
        self._traced: dict[str, list[tuple[str, TracedFlow]]] = {}
        """By policy, what it began to trace."""
        self._thread = threading.Thread(target=self._run, name="trace for policies", daemon=True)
        self._thread.start()

    def wish(self, wish: Wish) -> None:
        """Have it done; returns at once."""
        self._wishes.put(wish)

    def close(self) -> None:
        """Begin nothing more; what is traced goes on."""
        self._wishes.put(None)
        self._thread.join()

    def _run(self) -> None:
        while wish := self._wishes.get():
            for destination, flow in self._traced.pop(wish.policy, ()):
                try:
                    self._untrace(destination, flow)
                except DeckError:
                    continue  # an operator ended it
            if wish.count:
                self._begin(wish)

    def _begin(self, wish: Wish) -> None:
        windows = self._history.snapshots("flow")
        found = top_flows(windows[-1].rows, wish.select, wish.count) if windows else []
        begun = self._traced[wish.policy] = []
        why = "" if found else "no flow that it selects is answered by this host"
        for destination, flow in found:
            try:
                self._trace(destination, flow)
                begun.append((destination, flow))
            except DeckError as error:
                why = str(error)
        if why:
            text = f"policy {wish.policy} traces {len(begun)} of {wish.count} flows: {why}"
            self._publish(Event.now("warning", PROBE, text))
