"""Columns of screen 7: the hosts of a fleet."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.console.tables.spec import TableSpec
from bpf.quantities import age, bit_rate, byte_size, duration, si, signed
from widgets.table.rows import Column
from widgets.tones import Tone

if TYPE_CHECKING:
    from app.fleet.host_state import HostState

_TONES = {"up": Tone.GOOD, "connecting": Tone.MUTED, "slow": Tone.WARN}
"""Tones of states; of others BAD."""


@dataclass(frozen=True, slots=True)
class HostLine:
    """A host, for the cells of its row."""

    state: HostState
    is_chosen: bool
    is_current: bool
    """Whether it is the one of several chosen hosts that Programs shows."""
    group: str = ""
    """Value of the label that groups the hosts."""

    @property
    def seconds(self) -> float:
        """Seconds since it entered its state."""
        since = self.state.since_utc_ns
        return (time.time_ns() - since) / 1e9 if since else math.nan

    @property
    def lost(self) -> int:
        """Packets, and results of probes, that its windows lack."""
        return sum(loss.packets for reason, loss in self.state.losses.items() if reason.is_loss)

    @property
    def offset(self) -> str:
        """`+5.00 s`, or `<0.4 ms` if the error of measuring hides the offset."""
        off, error = self.state.offset_s, self.state.offset_error_s
        if math.isnan(off):
            return ""
        return signed(off, duration) if abs(off) > error else f"<{duration(abs(off) + error)}"

    @property
    def is_known(self) -> bool:
        """Whether its rates are of now."""
        return self.state.state.counts

    def rate(self, text: str) -> str:
        return text if self.is_known else ""


def _number(line: HostLine, value: float) -> float:
    return value if line.is_known else math.nan


def _of(count: int) -> str:
    return si(count) if count else ""


FLEET: TableSpec[HostLine] = TableSpec(
    "fleet",
    (
        Column("chosen", "", 2, help="● is chosen: the other screens show it. Programs is of ▸."
                   " m chooses or leaves out.", larger_first=True,
            cells=lambda line: f"{' ●'[line.is_chosen]}{' ▸'[line.is_current]}", tone=Tone.ACCENT,
            order=lambda line: line.is_chosen,
            written=lambda line: line.is_chosen),
        Column("group", "Group", 8, priority=2, hidden=True,
            help="Value of the label that `fleet.group` of the file names.",
            cells=lambda line: line.group),
        Column("host", "Host", 12, grows=True, help="Name of the host in the file.",
            cells=lambda line: line.state.name),
        Column("state", "State", 10, help="up; slow: its records come late; lost: no connection"
                   "; refused: it answers, and refuses; connecting: no answer yet.",
            cells=lambda line: str(line.state.state),
            tone=lambda line: _TONES.get(line.state.state, Tone.BAD)),
        Column("since", "For", 5, "right", priority=2, unit="s", larger_first=True,
            help="Time since it entered that state.",
            cells=lambda line: age(line.seconds), order=lambda line: line.seconds,
            written=lambda line: line.seconds),
        Column("rate", "Rate", 11, "right", unit="bps", larger_first=True,
            help="Bits per second of its last window, both directions.",
            cells=lambda line: line.rate(bit_rate(line.state.bits_s)),
            order=lambda line: _number(line, line.state.bits_s),
            written=lambda line: line.state.bits_s),
        Column("packet_rate", "Pkt/s", 6, "right", priority=3, unit="pps", larger_first=True,
            help="Packets per second of its last window.",
            cells=lambda line: line.rate(si(line.state.packets_s)),
            order=lambda line: _number(line, line.state.packets_s),
            written=lambda line: line.state.packets_s),
        Column("flows", "Flows", 6, "right", priority=4, larger_first=True,
            help="Flows of its last window.",
            cells=lambda line: line.rate(si(line.state.flows)),
            order=lambda line: _number(line, line.state.flows),
            written=lambda line: line.state.flows),
        Column("lost", "Lost", 6, "right", priority=1, larger_first=True,
            help="Packets and results that its windows lack since this console follows it.",
            cells=lambda line: _of(line.lost), tone=Tone.BAD,
            order=lambda line: line.lost, written=lambda line: line.lost),
        Column("behind", "Behind", 6, "right", priority=3, larger_first=True,
            help="Windows that did not get through to this console.",
            cells=lambda line: _of(line.state.behind), tone=Tone.WARN,
            order=lambda line: line.state.behind, written=lambda line: line.state.behind),
        Column("offset", "Clock", 9, "right", priority=4, unit="s", larger_first=True,
            help="Its clock minus the clock here; < is a bound, if the error hides the offset."
            " Merged screens correct it.",
            cells=lambda line: line.offset,
            tone=lambda line: Tone.WARN if abs(line.state.offset_s) > 1 else Tone.NORMAL,
            order=lambda line: abs(line.state.offset_s), written=lambda line: line.state.offset_s),
        Column("active", "Active policies", 15, priority=2, grows=True,
            help="Names of its active policies.",
            cells=lambda line: ", ".join(line.state.active), tone=Tone.WARN),
        Column("labels", "Labels", 14, priority=5, help="Labels in the file.",
            cells=lambda line: " ".join(f"{name}={of}" for name, of in line.state.labels.items()),
            tone=Tone.MUTED),
        Column("interface", "Interface", 9, priority=6, help="Its interfaces.",
            cells=lambda line: line.state.interface),
        Column("version", "Version", 8, priority=7, help="Version of its probedeck.",
            cells=lambda line: line.state.version),
        Column("lag", "Lag", 7, "right", priority=8, hidden=True, unit="s", larger_first=True,
            help="From the end of its last window to its arrival here.",
            cells=lambda line: line.rate(duration(line.state.lag_s)),
            order=lambda line: line.state.lag_s, written=lambda line: line.state.lag_s),
        Column("received", "Stream/s", 8, "right", priority=8, hidden=True, larger_first=True,
            help="Bytes per second that its stream takes.",
            cells=lambda line: line.rate(byte_size(line.state.received_s)),
            order=lambda line: line.state.received_s, written=lambda line: line.state.received_s),
        Column("reason", "Reason", 20, priority=9, hidden=True, grows=True,
            help="Why it is not up.", cells=lambda line: line.state.reason),
        Column("url", "Address", 20, priority=9, hidden=True, grows=True,
            help="Address of its API.", cells=lambda line: line.state.url),
    ),
    sort="",
)  # fmt: skip
