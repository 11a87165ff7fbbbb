"""A line of path tracing's own traffic, which is no part of flows."""

from __future__ import annotations

import numpy as np

from app.console.live.paths import OWN_NS, PathView
from bpf.quantities import bit_rate
from widgets.status import StatusItem, StatusStrip
from widgets.tones import Tone


class OwnProbesLine(StatusStrip):
    """Routers that answer, and the rate of probes and answers; hidden without own traffic."""

    DEFAULT_CSS = """
    OwnProbesLine { background: $surface; display: none; }
    """

    def follow(self, view: PathView) -> None:
        """Show the own traffic of the last second."""
        self.display = view.own_bits > 0
        if self.display:
            # Routers that answered probes in the last seconds.
            recent = view.responders[view.responders["last_ns"] > view.now_ns - OWN_NS]
            at = np.searchsorted(view.series["id"], recent["series"])
            others = (recent["responder"] != view.series["destination"][at]).any(axis=1)
            count = len(np.unique(recent["responder"][others], axis=0))
            told = {0: "no router answers", 1: "1 router answers"}
            routers = told.get(count, f"{count} routers answer")
            text = f"{routers}, {bit_rate(view.own_bits)}"
            self.show([StatusItem(text, Tone.MUTED, label="own probes")])
