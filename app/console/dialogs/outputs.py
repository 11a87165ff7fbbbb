"""`output.list`: the outputs of the run, as they deliver."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.widgets import Static

from bpf.errors import ProbedeckError, printable
from bpf.quantities import REPLACED, byte_size, si
from probes.reports import OutputState, OutputStatus
from widgets.terminal.compositor import DiffModalScreen

_PERIOD = 1.0
_NONE = "No output runs. Start one: :output.add URL, --output URL or [[outputs]]."


class OutputsScreen(DiffModalScreen[None]):
    """Asks for the state of all outputs once a second, in a thread."""

    BINDINGS = [Binding("escape,q,enter", "dismiss", "Close")]
    CSS = """
    OutputsScreen { align: center middle; }
    OutputsScreen > VerticalScroll {
        width: 78; max-width: 100%; height: auto; max-height: 100%; padding: 1 2;
        background: $panel; border: round $primary;
    }
    """

    def __init__(self, status: Callable[[], Sequence[OutputStatus]]) -> None:
        """`status` may wait for another host."""
        super().__init__()
        self._status = status

    def compose(self) -> ComposeResult:
        with VerticalScroll() as box:
            box.border_title, box.border_subtitle = "Outputs", "esc closes this"
            yield Static(id="outputs", markup=False)

    def on_mount(self) -> None:
        self._ask()
        self.set_interval(_PERIOD, self._ask)

    @work(thread=True, exclusive=True, group="outputs")
    def _ask(self) -> None:
        try:
            shown = page(self._status())
        except ProbedeckError as error:
            shown = Text(str(error), "bold")

        def show() -> None:
            if self.is_mounted:
                self.query_one("#outputs", Static).update(shown)

        self.app.call_from_thread(show)


def page(outputs: Sequence[OutputStatus]) -> Text:
    """Return the outputs: a line of numbers each, then its URL, and why it fails."""
    if not outputs:
        return Text(_NONE)
    text = Text()
    titles = f"{'Output':<16}{'State':<12}{'Delivered':>11}{'Undelivered':>13}{'Waiting':>9}"
    text.append(f"{titles}{'Memory':>10}\n", "bold")
    for each in outputs:
        waiting = byte_size(each.queued_bytes)
        text.append(f"{printable(each.name, REPLACED):<15.15} {each.state:<12}")
        text.append(f"{si(each.delivered):>11}{si(each.lost):>13}{si(each.queued):>9}{waiting:>10}")
        text.append(f"\n  {printable(each.url, REPLACED)}\n", "dim")
        if each.reason:
            style = "bold" if each.state is OutputState.FAILING else "dim"
            text.append(f"  {printable(each.reason, REPLACED)}\n", style)
        if each.lost:
            why = ", ".join(f"{count} {reason}" for reason, count in each.undelivered.items())
            text.append(f"  undelivered: {printable(why, REPLACED)}\n")
    text.rstrip()
    return text
