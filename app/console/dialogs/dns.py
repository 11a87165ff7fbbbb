"""`dns.show`: names of DNS queries, with servers, answer codes and times."""

from __future__ import annotations

from collections.abc import Callable

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.widgets import Static

from app.console.live.state import Frame
from bpf.errors import printable
from bpf.quantities import MISSING, REPLACED, milliseconds, si
from probes.filter.hosts import address_text
from probes.tables.field_types import MAPPED
from widgets.terminal.compositor import DiffModalScreen

PROBE = "dns"
"""The ready probe that counts."""
_PERIOD = 1.0
_MOST = 16
_NONE = "No query by UDP has passed since the count began: it goes on while this is open or closed."


class DnsScreen(DiffModalScreen[None]):
    """The names with the most queries, updated once a second."""

    BINDINGS = [Binding("escape,q,D,enter", "dismiss", "Close")]
    CSS = """
    DnsScreen { align: center middle; }
    DnsScreen > Vertical {
        width: 110; max-width: 100%; height: auto; padding: 0 1;
        background: $panel; border: round $primary;
    }
    DnsScreen Static { text-wrap: nowrap; }
    """

    def __init__(self, frame: Callable[[], Frame]) -> None:
        super().__init__()
        self._frame = frame

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title, box.border_subtitle = "DNS by UDP", "esc closes this"
            yield Static(markup=False)

    def on_mount(self) -> None:
        self._show()
        self.set_interval(_PERIOD, self._show)

    def _show(self) -> None:
        self.query_one(Static).update(page(self._frame()))


def page(frame: Frame) -> Text:
    """Return a line for each server and name, those with the most queries first."""
    tables = [
        one.rows for one in frame.metrics if one.probe == PROBE == one.metric and len(one.rows)
    ]
    text = Text(no_wrap=True)
    titles = f"{'Name':<27}{'Server':<16}{'Queries':>8}{'Answers':>8}{'Mean ms':>8}{'Max ms':>8}"
    text.append(f"{titles}{'No name':>9}{'Failed':>8}\n" if tables else _NONE, "bold")
    for rows in tables:
        for row in rows[rows["value"]["queries"].argsort()[::-1]][:_MOST]:
            raw, of = row["key"]["server"].tobytes(), row["value"]
            server = address_text(raw[12:], 4) if raw.startswith(MAPPED) else address_text(raw, 6)
            name = row["key"]["name"].tobytes().rstrip(b"\0").decode("ascii", "replace")
            counts = {each: si(int(of[each])) for each in of.dtype.names}
            for each in ("mean_us", "max_us"):
                counts[each] = milliseconds(int(of[each]) / 1e6) if of["timed"] else MISSING
            text.append(f"{printable(name, REPLACED):<26.26} {server:<15.15} ")
            text.append(
                "{queries:>8}{answers:>8}{mean_us:>8}{max_us:>8}{no_such_name:>9}{failed:>8}\n".format(
                    **counts
                )
            )
    text.rstrip()
    return text
