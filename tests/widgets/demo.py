"""A console in miniature: ten thousand flows whose every value changes, status strip and chart."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Hashable
from typing import Any, ClassVar

import numpy as np
from textual.app import ComposeResult
from textual.binding import BindingType

from bpf.quantities import bit_rate, byte_size, duration, percent, si
from widgets.chart import ChartSeries, HistoryChart
from widgets.status import StatusItem, StatusStrip
from widgets.table.rows import Column, Tones
from widgets.table.table import VirtualTable
from widgets.terminal.compositor import DiffApp
from widgets.terminal.driver import GroundKnown
from widgets.tones import Tone

COLUMNS: tuple[Column[Any], ...] = (
    Column("flow", "Flow", 32, grows=True),
    Column("protocol", "Proto", 5, priority=3),
    Column("rate", "Rate", 11, "right"),
    Column("bytes", "Bytes", 9, "right", priority=1),
    Column("packets", "Packets", 8, "right", priority=4),
    Column("rtt", "RTT", 8, "right", priority=1),
    Column("loss", "Loss", 7, "right", priority=2),
    Column("age", "Age", 7, "right", priority=5),
)
WORDS = ("eth0", "curl", "nginx", "postgres", "[kworker/0:1]", "sshd")


class Flows:
    """A sorted source over numpy columns, as a flow table's snapshot is."""

    def __init__(self, generation: int, count: int) -> None:
        random = np.random.default_rng(generation)
        self._rate = random.gamma(0.3, 4e7, count)
        self._rtt = random.gamma(2.0, 0.02, count)
        self._loss = np.maximum(random.normal(-0.01, 0.02, count), 0)
        self._age = np.arange(count) % 4000 * 1.7 + generation
        self._order = np.argsort(-self._rate)
        self._place = np.empty(count, np.int64)
        self._place[self._order] = np.arange(count)

    @property
    def rows(self) -> int:
        return len(self._order)

    def key(self, index: int) -> Hashable:
        return int(self._order[index])

    def index(self, key: Hashable) -> int | None:
        return int(self._place[key]) if isinstance(key, int) and key < self.rows else None

    def cells(self, index: int) -> tuple[str, ...]:
        flow = int(self._order[index])
        rate = float(self._rate[flow])
        return (
            f"10.{flow >> 8 & 255}.{flow & 255}.7:{1024 + flow % 60000} → {WORDS[flow % 6]}:443",
            ("tcp", "udp", "quic")[flow % 3],
            bit_rate(rate),
            byte_size(rate / 8 * float(self._age[flow])),
            si(round(rate / 9000)),
            duration(float(self._rtt[flow])),
            percent(float(self._loss[flow])),
            duration(float(self._age[flow])),
        )

    def tones(self, index: int) -> Tones:
        flow = int(self._order[index])
        rtt, loss = float(self._rtt[flow]), float(self._loss[flow])
        slow = Tone.BAD if rtt > 0.1 else Tone.WARN if rtt > 0.06 else Tone.NORMAL
        lost = Tone.BAD if loss > 0.03 else Tone.WARN if loss else Tone.MUTED
        plain, muted = Tone.NORMAL, Tone.MUTED
        return (plain, muted, Tone.ACCENT, plain, plain, slow, lost, muted)


TABLE_KEYS: list[BindingType] = [
    ("down,j", "focused.move(1)"),
    ("up,k", "focused.move(-1)"),
    ("pagedown", "focused.page(1)"),
    ("pageup", "focused.page(-1)"),
    ("g", "focused.move(-1000000)"),
    ("home", "focused.top"),
    ("end,G", "focused.move(1000000)"),
    ("enter", "focused.select"),
]
"""A program's keys for the table that has the focus."""


class Demo(DiffApp[None]):
    """The demo; `ready` appears in the strip when it can be used."""

    CSS = "HistoryChart { height: 12; border-top: solid $primary 30%; }"
    BINDINGS: ClassVar = [("q", "quit", "Quit"), *TABLE_KEYS]

    def __init__(self, rows: int, period: float, *, chart: bool, changing: int) -> None:
        super().__init__()
        self._rows, self._chart, self._changing = rows, chart, changing
        self._period = period
        self.generation = 0
        self.ready = "ready"
        self.table = VirtualTable(COLUMNS)
        self.chart = HistoryChart("10.0.3.7:4711 → nginx:443", unit=duration)
        self.strip = StatusStrip()

    def on_ground_known(self, event: GroundKnown) -> None:
        self.ready = "dark" if event.dark else "light"
        self.advance()

    def compose(self) -> ComposeResult:
        yield self.strip
        yield self.table
        if self._chart:
            yield self.chart

    def on_mount(self) -> None:
        self.show_title("a demo")
        self.table.show_sort("rate", descending=True)
        self.advance()
        if self._period:
            self.set_interval(self._period, self.advance)

    def advance(self) -> None:
        """Show the next generation."""
        self.generation += 1
        self.table.show(Flows(self.generation % self._changing, self._rows))
        self.strip.show(
            [
                StatusItem("LIVE", Tone.GOOD, badge=True),
                StatusItem("eth0", priority=1),
                StatusItem(str(self.generation), priority=2, label="gen"),
                StatusItem("4.1 ms / 1 s", priority=3, label="poll"),
                StatusItem("61 %", Tone.WARN, priority=2, label="map"),
                StatusItem("0", Tone.MUTED, priority=1, label="lost"),
                StatusItem(self.ready, priority=4),
            ]
        )
        if self._chart:
            times = np.arange(120.0) + self.generation
            rtt = 0.02 + 0.01 * np.sin(times / 9) + 0.004 * np.sin(times * 1.7)
            rtt[(times % 61) < 3] = np.nan
            median = 0.015 + 0.002 * np.sin(times / 31)
            self.chart.show(
                [ChartSeries("rtt", times, rtt), ChartSeries("median", times, median, Tone.GOOD)]
            )


def main() -> None:
    """Run it."""
    options = argparse.ArgumentParser()
    options.add_argument("--rows", type=int, default=10_000)
    options.add_argument("--period", type=float, default=1.0)
    options.add_argument("--changing", type=int, default=1_000_000, help="distinct generations")
    options.add_argument("--chart", action="store_true")
    options.add_argument("--ticks", help="file that gets a byte for each generation")
    given = options.parse_args()
    app = Demo(given.rows, given.period, chart=given.chart, changing=given.changing)
    if given.ticks:
        count = os.open(given.ticks, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        advance = app.advance

        def counted() -> None:
            os.write(count, b".")
            advance()

        app.advance = counted  # type: ignore[method-assign]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    app.run(mouse=False)
    sys.exit(app.return_code)


if __name__ == "__main__":
    main()
