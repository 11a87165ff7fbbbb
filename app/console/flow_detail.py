"""The detail of one flow: what is known of it, and its rate over the windows in the history."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Static

from app.console.flow_rows import endpoint, flag_letters
from probes.flow.filter import protocol_name
from probes.flow.live import LiveView
from probes.flow.records import KEY_MASK, KEY_WORDS, Array, Direction, words_of
from probes.snapshot import History
from widgets.chart import HistoryChart, Series
from widgets.format import bit_rate, byte_size, duration, si

_WINDOWS = 300


class FlowDetail(Horizontal):
    """A pane below the table."""

    DEFAULT_CSS = """
    FlowDetail { height: 12; border-top: solid $primary-muted; }
    FlowDetail > Static { width: 42; padding: 0 1; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._key: Hashable | None = None

    def compose(self) -> ComposeResult:
        yield Static(markup=False)
        yield HistoryChart("rate", unit=bit_rate, empty="no packet in the last windows")

    def follow(self, key: Hashable) -> None:
        """Show the flow whose LIVE id is `key` from now on."""
        self._key = key

    def show(self, view: LiveView, history: History) -> None:
        found = np.flatnonzero(view.rows["id"] == self._key)
        if not len(found):
            self.query_one(Static).update(Text("This flow has been idle for a minute."))
            self.query_one(HistoryChart).show([])
            return
        row = view.rows[found[0]]
        protocol, version = int(row["protocol"]), int(row["version"])
        lines = [
            (
                "Direction",
                "into this host" if row["direction"] == Direction.INGRESS else "out of it",
            ),
            ("Protocol", f"{protocol_name(protocol)} over IPv{version}"),
            ("Source", endpoint(row, "source")),
            ("Destin.", endpoint(row, "destination")),
            ("Rate", f"{bit_rate(row['bit_rate'])}, {si(row['packet_rate'])} packets/s"),
            ("Total", f"{byte_size(row['bytes'])} in {si(row['packets'])} packets"),
            ("Mean size", byte_size(row["bytes"] / row["packets"])),
            ("First", f"{duration((view.now_ns - int(row['first_ns'])) / 1e9)} ago"),
            ("Last", f"{duration(max(0, view.now_ns - int(row['last_ns'])) / 1e9)} ago"),
        ]
        if protocol == 6:
            lines.append(("TCP flags", flag_letters(int(row["tcp_flags"]))))
        text = Text()
        for label, value in lines:
            text.append(f"{label:<10}", "dim")
            text.append(f"{value}\n")
        self.query_one(Static).update(text, layout=False)
        self._draw(row.reshape(1), history)

    def _draw(self, row: Array, history: History) -> None:
        key = row.view("u1")[: KEY_WORDS * 8].view("u8") & KEY_MASK
        windows = [w for w in history.snapshots()[-_WINDOWS:] if w.probe == "flow"]
        times, rates = [], []
        for window in windows:
            words = words_of(window.rows)
            # The ports tell nearly all flows apart: few rows are compared whole.
            near = np.flatnonzero(words[:, KEY_WORDS - 1] & KEY_MASK[-1] == key[-1])
            hits = near[(words[near, : KEY_WORDS - 1] == key[:-1]).all(axis=1)]
            times.append(window.end_ns / 1e9)
            rates.append(int(window.rows["bytes"][hits].sum()) * 8 / max(window.seconds, 1e-3))
        series = Series("rate", np.array(times, "f8"), np.array(rates, "f8"))
        self.query_one(HistoryChart).show([series])
