"""A line with the sums of the shown flows."""

from __future__ import annotations

import numpy as np

from app.commands.flow_view import INTERFACES, Grouping
from app.console.live.state import Frame
from bpf.arrays import Array
from bpf.quantities import bit_rate, counted, percent
from probes.flow.records import FlowDirection
from probes.snapshot import Snapshot
from widgets.status import StatusItem, StatusStrip
from widgets.tones import Tone

_MOST = 3
"""Interfaces that are named."""


class TotalsLine(StatusStrip):
    """Rates of both directions, counts, and whether they are exact."""

    DEFAULT_CSS = """
    TotalsLine { background: $surface; }
    """

    def follow(self, frame: Frame, places: Array, rows: int, by: Grouping) -> None:
        """Show the sums of the flows at `places` of a frame, in `rows` groups."""
        view = frame.flows
        rates, leaves = (view.rows[name][places] for name in ("bit_rate", "direction"))
        out = float(rates[leaves == FlowDirection.EGRESS].sum())
        exact = not (view.left_out or view.rows["at_least"][places].any())
        why = view.lacks or "the table was full"
        items = [
            StatusItem(bit_rate(float(rates.sum()) - out), Tone.IN, label="total in"),
            StatusItem(bit_rate(out), Tone.OUT, label="out"),
            StatusItem(counted(len(places), "flow"), Tone.MUTED, 2),
        ]
        if by.is_grouped:
            how = str(by).removeprefix(by.kind)
            noun = by.noun if rows == 1 else by.kind
            items.insert(2, StatusItem(f"{rows} {noun}{how}", Tone.MUTED, 1))
        items.append(
            StatusItem("exact sums", Tone.MUTED, 3) if exact
            else StatusItem(f"at least: {why}", Tone.WARN, 1)
        )  # fmt: skip
        if (share := frame.owners.share) is not None:
            items.append(StatusItem(percent(share), Tone.MUTED, 2, label="owned"))
        if by.kind == INTERFACES and frame.pulses.links is not None:
            items += repeated_items(frame.pulses.links)
        self.show(items)


def repeated_items(links: Snapshot) -> list[StatusItem]:
    """Return the interfaces that saw most of the packets that had counted before, from the last
    window of the table of interfaces."""
    bits = 8 * (links.rows["repeated_in_bytes"] + links.rows["repeated_out_bytes"]) / links.seconds
    most = [at for at in np.argsort(-bits)[:_MOST] if bits[at]]
    texts = [f"{links.rows['interface'][at].decode()} {bit_rate(bits[at])}" for at in most]
    return [StatusItem(text, Tone.MUTED, 2 * number, label="" if number else "repeated at")
            for number, text in enumerate(texts)]  # fmt: skip
