"""Traces the paths of an active policy's flows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue

import numpy as np

from bpf.arrays import Rows
from bpf.errors import ProbedeckError
from probes.filter.hosts import address_text
from probes.flow.filter import FlowFilter
from probes.flow.records import FLOW, FlowDirection
from probes.monitor.owners.text import is_of_owners
from probes.monitor.owners.window import OwnerWindow
from probes.monitor.state import PROBE
from probes.path.options import TracedFlow
from probes.snapshot import Event, History

_ANSWER = {
    "source": "destination",
    "destination": "source",
    "source_port": "destination_port",
    "destination_port": "source_port",
    "protocol": "protocol",
    "version": "version",
}
"""Each field of an answer's flow, and the field of the flow that it equals."""
_KEY = np.dtype([(name, FLOW[name]) for name in _ANSWER])
_ICMP = (1, 58)

FlowTrace = tuple[str, TracedFlow]
"""A destination, and one flow to it."""
_RENEW = 5.0
"""Seconds between two checks for other flows to trace."""
_GONE = 10.0
"""Seconds without a packet after which another flow may take the place."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """The flows that a policy traces; count 0: the policy is not active."""

    policy: str
    select: tuple[str, ...] = ()
    count: int = 0


def top_flows(rows: Rows[FLOW], select: Sequence[str]) -> list[FlowTrace]:
    """Return the reverse flows of incoming flows that this host answers, busiest first.

    If there are filters, a flow must pass one. Only answers outside of tunnels can be traced. Rows
    are of dtype FLOW (n,).
    """
    rows = rows[rows["tunnel"] == 0]
    incoming = rows[rows["direction"] == FlowDirection.INGRESS]
    outgoing = rows[rows["direction"] == FlowDirection.EGRESS]
    if select:
        passed = [FlowFilter.parse(text).mask(incoming) for text in select]
        incoming = incoming[np.logical_or.reduce(passed)]
    busiest = incoming[np.argsort(incoming["packets"], kind="stable")[::-1]]
    answers, answered = np.empty(len(busiest), _KEY), np.empty(len(outgoing), _KEY)
    for name, of in _ANSWER.items():
        answers[name], answered[name] = busiest[of], outgoing[name]
    for keys in (answers, answered):
        # All echo to a host is one path; its ports are identifier and type.
        echo = np.isin(keys["protocol"], _ICMP)
        keys["source_port"][echo] = keys["destination_port"][echo] = 0
    known = set(answered.view(f"V{_KEY.itemsize}").tolist())
    which = [key in known for key in answers.view(f"V{_KEY.itemsize}").tolist()]
    found = (
        (
            address_text(row["destination"].tobytes(), int(row["version"])),
            TracedFlow(int(row["protocol"]), int(row["source_port"]), int(row["destination_port"])),
        )
        for row in answers[which]
    )
    return list(dict.fromkeys(found))  # of several windows


class Tracing:
    """A thread that starts and ends traces for policies: a start may take as long as a compile.

    While a policy is active, new flows replace ended ones.
    """

    def __init__(
        self,
        history: History,
        trace: Callable[[str, TracedFlow], None],
        untrace: Callable[[str, TracedFlow], None],
        publish: Callable[[Event], None],
        owners: Callable[[], OwnerWindow | None] = lambda: None,
    ) -> None:
        """`owners` returns the last known owners of flows."""
        self._history = history
        self._trace = trace
        self._untrace = untrace
        self._publish = publish
        self._owners = owners
        self._requests: SimpleQueue[TraceRequest | None] = SimpleQueue()
        self._active: dict[str, TraceRequest] = {}
        self._traced: dict[str, list[FlowTrace]] = {}
        """By policy, the flows that it traces."""
        threading.Thread(target=self._run, name="trace for policies", daemon=True).start()

    def request(self, request: TraceRequest) -> None:
        self._requests.put(request)

    def close(self) -> None:
        """End the thread after the request in progress; traces go on."""
        self._requests.put(None)

    def _run(self) -> None:
        while True:
            try:
                request = self._requests.get(timeout=_RENEW if self._active else None)
            except Empty:
                for each in self._active.values():
                    self._renew(each)
                continue
            if request is None:
                return
            self._active.pop(request.policy, None)
            for flow in self._traced.pop(request.policy, ()):
                self._end(flow)
            if request.count:
                self._active[request.policy] = request
                if why := self._renew(request):
                    text = f"policy {request.policy} traces fewer than {request.count} flows: {why}"
                    self._publish(Event.now("warning", PROBE, text))

    def _renew(self, request: TraceRequest) -> str:
        """Trace up to the requested number of flows. Returns a reason if there are fewer."""
        windows = self._history.snapshots("flow", "")
        since = windows[-1].end_ns - _GONE * 1e9 if windows else 0
        recent = [window.rows for window in windows if window.end_ns > since]
        found = self._top_flows(np.concatenate(recent, dtype=FLOW), request) if recent else []
        begun = self._traced.setdefault(request.policy, [])
        others = [flow for flow in found if flow not in begun]
        for ended in [flow for flow in begun if flow not in found][: len(others)]:
            begun.remove(ended)
            self._end(ended)
        why = "" if found else "no flow that it selects is answered by this host"
        for flow in others[: request.count - len(begun)]:
            try:
                self._trace(*flow)
                begun.append(flow)
            except ProbedeckError as error:
                why = str(error)
        return why

    def _top_flows(self, rows: Rows[FLOW], request: TraceRequest) -> list[FlowTrace]:
        if not any(map(is_of_owners, request.select)):
            return top_flows(rows, request.select)
        owners = self._owners()
        if owners is None:
            return []
        leaves = rows["direction"] == FlowDirection.EGRESS
        return top_flows(rows[leaves | owners.passing(rows, request.select)], ())

    def _end(self, flow: FlowTrace) -> None:
        with suppress(ProbedeckError):  # an operator ended it
            self._untrace(*flow)
