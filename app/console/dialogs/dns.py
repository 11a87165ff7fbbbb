"""The page of DNS: servers and names with the most queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.table import Table
from rich.text import Text
from textual.binding import Binding

from app.console.dialogs.boxes import HelpBox
from app.console.live.frames import Frame
from bpf.errors import printable
from bpf.quantities import MISSING, REPLACED, milliseconds, si
from probes.filter.hosts import address_text
from probes.tables.field_types import MAPPED

_PERIOD = 1.0
"""Seconds between two updates."""
PROBE = "dns"
"""The ready probe that counts."""
_MOST = 16
_COUNTS = {
    "queries": "Queries", "answers": "Answers", "mean_us": "Mean ms", "max_us": "Max ms",
    "no_such_name": "No name", "failed": "Failed",
}  # fmt: skip
_NONE = "No query by UDP has passed yet. The count goes on after this closes."


class DnsScreen(HelpBox):
    """The names with the most queries, updated once a second."""

    BINDINGS = [Binding("D", "dismiss", show=False)]
    DEFAULT_CSS = "DnsScreen > .box { width: 110; }"
    title_text = "DNS by UDP"

    def __init__(self, frame: Callable[[], Frame]) -> None:
        super().__init__()
        self._frame = frame

    def on_mount(self) -> None:
        self.set_interval(_PERIOD, self.renew)

    def text(self) -> Iterator[Text | Table]:
        yield page(self._frame())


def page(frame: Frame) -> Text | Table:
    """Return a line for each server and name, those with the most queries first."""
    tables = [
        one.rows for one in frame.metrics if one.probe == PROBE == one.metric and len(one.rows)
    ]
    if not tables:
        return Text(_NONE, "bold")
    grid = Table(box=None, expand=True, padding=(0, 0, 0, 1), header_style="bold")
    grid.add_column("Name", no_wrap=True, ratio=1)
    grid.add_column("Server", no_wrap=True)
    for title in _COUNTS.values():
        grid.add_column(title, justify="right", no_wrap=True)
    for rows in tables:
        for row in rows[rows["value"]["queries"].argsort()[::-1]][:_MOST]:
            raw, of = row["key"]["server"].tobytes(), row["value"]
            server = address_text(raw[12:], 4) if raw.startswith(MAPPED) else address_text(raw, 6)
            name = row["key"]["name"].tobytes().rstrip(b"\0").decode("ascii", "replace")
            counts = {each: si(int(of[each])) for each in _COUNTS}
            for each in ("mean_us", "max_us"):
                counts[each] = milliseconds(int(of[each]) / 1e6) if of["timed"] else MISSING
            grid.add_row(*map(Text, (printable(name, REPLACED), server, *counts.values())))
    return grid
