"""The detail of one flow: its fields, and its rate over the windows of the history."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Any

import numpy as np
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Static

from app.console.live.flows import LiveView
from app.console.screens.flows.columns import whole
from app.console.screens.flows.flow import endpoint, flag_letters
from probes.filter.network import protocol_name
from probes.flow.records import KEY_MASK, KEY_WORDS, Array, FlowDirection, words_of
from probes.snapshot import History
from probes.tunnels import tunnel_name
from widgets.chart import ChartSeries, HistoryChart
from widgets.format import age, bit_rate, byte_size

_PORTS_WORD = 4
_WINDOWS = 3600
"""As many as a history keeps of a table."""


class FlowDetail(Horizontal):
    """A pane below the table; a chart only where there is room for it."""

    DEFAULT_CSS = """
    FlowDetail { display: none; height: 8; border-top: solid $primary-muted; background: $surface; }
    FlowDetail.open { display: block; }
    FlowDetail > Static { width: 1fr; padding: 0 1; }
    FlowDetail > HistoryChart { display: none; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._key: Hashable | None = None
        self._seen_ns = 0
        """End of the last window that is in `_points`."""
        self._points: deque[tuple[float, float]] = deque(maxlen=_WINDOWS)
        """Ends of windows in seconds, and the flow's bits per second; also of windows after the
        moment that is shown."""

    def compose(self) -> ComposeResult:
        yield Static(markup=False)
        yield HistoryChart(unit=bit_rate, empty="no window yet")

    @property
    def is_open(self) -> bool:
        return self.has_class("open")

    def follow(self, key: Hashable) -> None:
        """Show the flow whose LIVE id is `key` from now on."""
        if key != self._key:
            self._key = key
            self._seen_ns = 0
            self._points.clear()

    def show(self, view: LiveView, history: History, span: float) -> None:
        """Show the flow as of `view`, and its rate in the windows of `span` seconds until then."""
        found = np.flatnonzero(view.rows["id"] == self._key)
        if not len(found):
            self.query_one(Static).update(Text("This flow has been idle for a minute."))
            self.query_one(HistoryChart).show([])
            return
        row = view.rows[found[0]]
        self.query_one(Static).update(_described(row, view.now_ns), layout=False)
        self._measure(row.reshape(1), history)
        times, rates = np.array(self._points, "f8").reshape(-1, 2).T
        until = int(np.searchsorted(times, view.now_ns / 1e9, "right"))
        self.query_one(HistoryChart).show(
            [ChartSeries("rate", times[:until], rates[:until])], span=span
        )

    def _measure(self, row: Array, history: History) -> None:
        key = row.view("u1")[: KEY_WORDS * 8].view("u8") & KEY_MASK
        for window in history.snapshots("flow"):
            if window.end_ns <= self._seen_ns:
                continue
            words = words_of(window.rows)
            # The ports tell nearly all flows apart: few rows are compared whole.
            near = np.flatnonzero(words[:, _PORTS_WORD] == key[_PORTS_WORD])
            hits = near[(words[near, :KEY_WORDS] & KEY_MASK == key).all(axis=1)]
            bits = int(window.rows["bytes"][hits].sum()) * 8
            self._points.append((window.end_ns / 1e9, bits / max(window.seconds, 1e-3)))
            self._seen_ns = window.end_ns


def _described(row: Any, now_ns: int) -> Text:
    protocol, version = int(row["protocol"]), int(row["version"])
    way = "into this host" if row["direction"] == FlowDirection.INGRESS else "out of this host"
    mean = byte_size(row["bytes"] / row["packets"])
    first, last = (age((now_ns - int(row[end])) / 1e9) for end in ("first_ns", "last_ns"))
    packets = f"{whole(row['packets'])} packet{'' if row['packets'] == 1 else 's'}"
    bound = "at least " if row["at_least"] else ""
    lines = [
        ("Flow", f"{protocol_name(protocol)} over IPv{version}, {way}"),
        ("Source", endpoint(row, "source")),
        ("Destination", endpoint(row, "destination")),
        ("Rate", f"{bit_rate(row['bit_rate'])}, {whole(row['packet_rate'])} packets/s"),
        ("Total", f"{bound}{byte_size(row['bytes'])} in {packets}, {mean} each"),
        ("Seen", f"first {first} ago, last {last} ago"),
    ]
    if row["vlan"]:
        lines[0] = (lines[0][0], f"{lines[0][1]}, VLAN {row['vlan']}")
    if row["tunnel"]:
        tunnel = f"{tunnel_name(int(row['tunnel']))} {row['tunnel_id']}"
        lines[0] = (lines[0][0], f"{lines[0][1]}, in {tunnel}")
    if protocol == 6:
        lines.append(("TCP flags", flag_letters(int(row["tcp_flags"]))))
    text = Text(no_wrap=True, overflow="ellipsis")
    for label, value in lines:
        text.append(f"{label:<13}", "dim")
        text.append(f"{value}\n")
    text.right_crop(1)
    return text
