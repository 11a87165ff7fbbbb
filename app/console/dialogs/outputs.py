"""`output.list`: the outputs of the run, as they deliver."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from bpf.errors import printable
from bpf.quantities import REPLACED, byte_size, si
from probes.reports import OutputState, OutputStatus

_NONE = "No output runs. Start one: :output.add URL, --output URL or [[outputs]]."


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
