"""Routers' reports that the flows' own packets are larger than the next link's MTU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from probes.path.records import DESTINATION_HOP, Array
from probes.path.slots import Destination
from probes.path.traced import MtuStep, PathMtu

_PATIENCE = 12
"""Windows in which the reporter's hop is searched: three seconds."""


@dataclass(slots=True)
class _Known:
    report: tuple[int, bytes]
    """MTU and router, 16 bytes."""
    windows: int = 0
    result: PathMtu | None = None


class MtuReports:
    """The last report about each destination, with the hop of its router."""

    def __init__(self) -> None:
        self._known: dict[bytes, _Known] = {}

    def add(
        self, destination: Destination, report: tuple[int, bytes], rows: Array
    ) -> list[tuple[str, str]]:
        """Take the kernel's last report and the destination's new rows of dtype HOP.

        Returns severity and text of an event if the report is new.
        """
        known = self._known.get(destination.address)
        if known is None or known.report != report:
            known = self._known[destination.address] = _Known(report)
        if known.result:
            return []
        known.windows += 1
        mtu, reporter = known.report
        from_it = (rows["responder"] == np.frombuffer(reporter, "u1")).all(axis=1)
        hops = rows["hop"][from_it & (rows["hop"] < DESTINATION_HOP)]
        if not len(hops) and known.windows < _PATIENCE:
            return []
        by = Destination(reporter, destination.version).text
        known.result = PathMtu(mtu, (MtuStep(min(hops.tolist(), default=0), mtu, by),))
        return [("info", f"{destination.text}: {known.result}")]

    def result(self, destination: Destination) -> PathMtu | None:
        known = self._known.get(destination.address)
        return known.result if known else None

    def forget(self, destination: Destination) -> None:
        self._known.pop(destination.address, None)
