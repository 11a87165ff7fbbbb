"""Scenes: a network, an application, and a trace; tests then look at what each of them reports."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.topologies.application import KINDS, Application, Report, application
from tests.topologies.catalogue import Hops, Layout
from tests.topologies.network import VERSIONS, Topology, topology
from tests.topologies.tracing import PROTOCOLS, Tracing, tracing, wait, wait_until

TOLERANCE_MS = 0.5
FEW = 3
"""Fewer answers have no steady median."""


@dataclass(frozen=True)
class Scene:
    """A finished trace and the truth."""

    trace: Tracing
    report: Report
    hops: Hops
    delays: Sequence[float]
    """Built round-trip times in ms, to each hop and to the server."""

    def wrong_hops(self, kinds: Sequence[str] = KINDS, first: int = 1, last: int = 99) -> object:
        """Return the hops without an answer, or with an answer of a router elsewhere."""
        found = {}
        for hop, addresses in enumerate(self.hops, 1):
            for kind in kinds:
                for version in VERSIONS:
                    seen = self.trace.responders(kind, version, hop)
                    if first <= hop <= last and seen != {addresses[version]}:
                        found[f"{kind}{version} hop {hop}"] = seen
        return found

    def wrong_times(
        self, of: Callable[[list[float]], float] = min, since: int = 0
    ) -> dict[str, float]:
        """Round-trip times in ms further than the tolerance from the built delays, by hop.

        `of` is the number of a hop's times: a busy machine delays the median, but not the least.
        Only probes sent since a moment count, in ns of the epoch, and hops with some answers.
        """
        found = {}
        for hop, built in enumerate(self.delays[:-1], 1):
            for kind in KINDS:
                for version in VERSIONS:
                    times = self.trace.times(kind, version, hop, since)
                    if len(times) >= FEW and abs(of(times) - built) > TOLERANCE_MS:
                        found[f"{kind}{version} hop {hop}"] = of(times)
        return found

    def phantoms(self) -> set[int]:
        """Hops behind the last router whose probes count as lost."""
        return {hop for hop in self.trace.lost() if len(self.hops) < hop < 31}


def together(*plays: Callable[[], Scene]) -> list[Scene]:
    """Play scenes at the same time, because they mostly wait. Each has its own network.

    Beside more tests than CPUs they play in turn: a busy machine delays packets, and applications
    send some again.
    """
    if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1)) > len(os.sched_getaffinity(0)):
        return [play() for play in plays]
    with ThreadPoolExecutor(len(plays)) as threads:
        return [scene.result() for scene in [threads.submit(play) for play in plays]]


During = Callable[[Topology, Application, Tracing], object]


def observe(layout: Layout, seconds: float, kinds: Sequence[str] = KINDS) -> During:
    """Return a wait of some seconds, and until every hop of the layout has answered each kind.

    A busy machine may take longer than the seconds to find all hops.
    """

    def during(network: Topology, app: Application, trace: Tracing) -> None:
        hops = range(1, len(layout.hops(network)) + 1)

        def is_complete() -> bool:
            seen = {(each.version, each.protocol, each.hop) for each in trace.answers()}
            return all(
                (version, protocol, hop) in seen
                for kind in kinds
                for version, protocol in PROTOCOLS[kind].items()
                for hop in hops
            )

        wait(seconds)
        wait_until(is_complete)

    return during


def play(
    folder: Path,
    layout: Layout = Layout(),  # noqa: B008 - immutable
    during: During | None = None,
    *arguments: str,
    **options: Any,
) -> Scene:
    """Trace an application through a network; `options` are the application's.

    Unless `during` tells the end, the application runs until every hop has answered. Whatever
    happens to the network, the application gets no packet of the tracer, and none twice.
    """
    during = during or observe(layout, 2.5, options.get("kinds", KINDS))
    with topology(layout.plan) as network:
        layout.change(network)
        with (
            application(network, to=layout.to, **options) as app,
            tracing(network, folder, *arguments, to=layout.to) as trace,
        ):
            during(network, app, trace)
            report = app.finish()
        assert not {"foreign", "duplicates"} & report.harm().keys(), report.harm()
        return Scene(trace, report, layout.hops(network), network.delays_ms())
