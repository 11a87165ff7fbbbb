"""`output.list`: the outputs of the run, as they deliver."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.text import Text
from textual import work

from app.console.dialogs.help_box import HelpBox
from bpf.errors import ProbedeckError, printable
from bpf.quantities import REPLACED, byte_size, si
from probes.reports import OutputState, OutputStatus

_PERIOD = 1.0
_NONE = "No output runs. Start one: :output.add URL, --output URL or [[outputs]]."


class OutputsScreen(HelpBox):
    """Asks for the state of all outputs once a second, in a thread."""

    title_text = "Outputs"

    def __init__(self, status: Callable[[], Sequence[OutputStatus]]) -> None:
        """`status` may wait for another host."""
        super().__init__()
        self._status, self._shown = status, Text()

    def on_mount(self) -> None:
        self._ask()
        self.set_interval(_PERIOD, self._ask)

    def text(self) -> Iterator[Text]:
        yield self._shown

    @work(thread=True, exclusive=True, group="outputs")
    def _ask(self) -> None:
        try:
            self._shown = page(self._status())
        except ProbedeckError as error:
            self._shown = Text(str(error), "bold")
        self.app.call_from_thread(self.renew)


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
