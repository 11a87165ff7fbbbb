"""Columns of screen 7: the hosts of a fleet."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from app.console.tables.spec import TableSpec, either
from bpf.quantities import age, bit_rate, byte_size, duration, si, signed
from widgets.table.rows import Column
from widgets.tones import Tone

if TYPE_CHECKING:
    from app.console.tables.sorted_table import FewRows

_TONES = {"up": Tone.GOOD, "connecting": Tone.MUTED, "slow": Tone.WARN}
"""Tones of states; of others BAD."""


def _measured(
    name: str, title: str, width: int, text: Callable[[Any], str], **layout: Any
) -> Column[FewRows]:
    """A column of numbers of the last window; the cell of a host that is not up is empty."""
    return Column(
        name, title, width, "right", larger_first=True,
        cells=lambda rows: either(~rows["is_known"], "", list(map(text, rows[name].tolist()))),
        order=lambda rows: either(~rows["is_known"], math.nan, rows[name].tolist()),
        written=lambda rows: rows[name].tolist(), **layout,
    )  # fmt: skip


def _count(number: int) -> str:
    return si(number) if number else ""


def _offset(offset: float, error: float) -> str:
    """Return `+5.00 s`, or `<0.4 ms` if the error of measuring hides the offset."""
    if math.isnan(offset):
        return ""
    hidden = abs(offset) <= error
    return f"<{duration(abs(offset) + error)}" if hidden else signed(offset, duration)


FLEET: TableSpec[FewRows] = TableSpec(
    "fleet",
    (
        Column("chosen", "", 2, help="● is chosen: the other screens show it. Programs is of ▸."
                   " m chooses or leaves out.", larger_first=True,
            cells=lambda rows: [f"{' ●'[chosen]}{' ▸'[current]}" for chosen, current in zip(
                rows["chosen"].tolist(), rows["current"].tolist(), strict=True)], tone=Tone.ACCENT),
        Column("group", "Group", 8, priority=2, hidden=True,
            help="Value of the label that `fleet.group` of the file names."),
        Column("host", "Host", 12, grows=True, help="Name of the host in the file."),
        Column("state", "State", 10, help="up; slow: its records come late; lost: no connection"
                   "; refused: it answers, and refuses; connecting: no answer yet.",
            tone=lambda rows: [_TONES.get(state, Tone.BAD) for state in rows["state"]]),
        Column("since", "For", 5, "right", priority=2, unit="s", larger_first=True,
            help="Time since it entered that state.", text=age,
            written=lambda rows: rows["since"].tolist()),
        _measured("rate", "Rate", 11, bit_rate, unit="bps",
            help="Bits per second of its last window, both directions."),
        _measured("packet_rate", "Pkt/s", 6, si, priority=3, unit="pps",
            help="Packets per second of its last window."),
        _measured("flows", "Flows", 6, si, priority=4, help="Flows of its last window."),
        Column("lost", "Lost", 6, "right", priority=1, larger_first=True,
            help="Packets and results that its windows lack since this console follows it.",
            text=_count, tone=Tone.BAD),
        Column("behind", "Behind", 6, "right", priority=3, larger_first=True,
            help="Windows that did not get through to this console.",
            text=_count, tone=Tone.WARN),
        Column("offset", "Clock", 9, "right", priority=4, unit="s", larger_first=True,
            help="Its clock minus the clock here; < is a bound, if the error hides the offset."
            " Merged screens correct it.",
            cells=lambda rows: list(map(
                _offset, rows["offset"].tolist(), rows["offset_error"].tolist())),
            tone=lambda rows: [
                Tone.WARN if one.clock_is_off else Tone.NORMAL for one in rows["of"]],
            order=lambda rows: abs(rows["offset"]),
            written=lambda rows: rows["offset"].tolist()),
        Column("active", "Active policies", 15, priority=2, grows=True,
            help="Names of its active policies.", tone=Tone.WARN,
            values=lambda rows: list(map(", ".join, rows["active"]))),
        Column("labels", "Labels", 14, priority=5, help="Labels in the file.", tone=Tone.MUTED,
            values=lambda rows: [
                " ".join(f"{name}={of}" for name, of in labels.items()) for labels in rows["labels"]
            ]),
        Column("interface", "Interface", 9, priority=6, help="Its interfaces."),
        Column("version", "Version", 8, priority=7, help="Version of its probedeck."),
        _measured("lag", "Lag", 7, duration, priority=8, hidden=True, unit="s",
            help="From the end of its last window to its arrival here."),
        _measured("received", "Stream/s", 8, byte_size, priority=8, hidden=True,
            help="Bytes per second that its stream takes."),
        Column("reason", "Reason", 20, priority=9, hidden=True, grows=True,
            help="Why it is not up."),
        Column("url", "Address", 20, priority=9, hidden=True, grows=True,
            help="Address of its API."),
    ),
    sort="",
)  # fmt: skip
