"""The owner and the verdict of a connection in words, with the numbers that decided."""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from app.console.screens.flows.owners.cells import RowOwner
from bpf.quantities import age, bit_rate, byte_size, duration, percent
from probes.snapshot import History
from probes.sockets.records import PROBE, SOCKETS_TABLE, By, Limit, Reason
from probes.sockets.words import limit_text
from widgets.sparkline import BARS, NOTHING, round_scale

_CELLS = 20
_CELL_S = 3.0
"""Seconds of a cell of the line of round-trip times: a minute in all."""
_BY = {
    By.HOLDS: "by its open descriptor",
    By.OPENED: "which opened the socket",
    By.CLOSED: "which closed the socket",
    By.LISTENER: "which listens on the port",
    By.CGROUP: "by the socket's cgroup",
}


def owner_words(row: RowOwner) -> str:
    """`nginx+1 pid 812, web.service, by its open descriptor`; or why nobody owns it.

    Begins with `perhaps` if several processes may own it.
    """
    if row.owner is None:
        return f"nobody: {row.reason.about}" if row.reason else ""
    others = int(row.socket["holders"]) - 1
    name = f"{row.name}+{others}" if others > 0 else row.name
    name = f"{name} pid {row.pid}" if row.pid else name
    if row.reason is Reason.SEVERAL:
        name = f"perhaps {name}"
    parts = (name, *map(row.text, ("pod", "container", "unit")), _BY.get(row.by, ""))
    return ", ".join(dict.fromkeys(filter(None, parts)))


def limit_words(row: RowOwner) -> str:
    """`queue +80.0 ms, since 12 s: packets wait in a queue of the network`; empty if unknown."""
    if row.limited is Limit.UNKNOWN:
        return ""
    about = row.limited.about
    return f"{limit_text(row.socket)}, since {age(int(row.socket['limit_s']))}: {about}"


def tcp_words(row: RowOwner) -> list[tuple[str, str]]:
    """Return labelled lines about a TCP connection; none without its numbers."""
    socket = row.socket
    if socket is None or not socket["rtt_us"]:
        return []
    sent, again = socket["recent_segments"], socket["recent_retransmitted"]
    loses = f", {percent(float(again / sent))} retransmitted" if sent else ""
    waits = f", {byte_size(int(socket['notsent']))} not sent" if socket["notsent"] else ""
    busy, receiver, buffer = (percent(float(socket[n])) for n in ("busy", "rwnd", "sndbuf"))
    return [
        ("TCP", f"{bit_rate(8 * float(socket['delivery_rate']))} delivered,"
         f" cwnd {socket['cwnd'] or ''}{loses}{waits}"),
        ("Time", f"had data {busy}; waited: receiver {receiver}, buffer {buffer}"),
    ]  # fmt: skip


class RttLine:
    """Round-trip times of a connection in the last minute, from the history of its windows."""

    def __init__(self) -> None:
        self._cookie = self._seen_ns = 0
        self._samples: deque[tuple[int, int]] = deque(maxlen=4096)
        """Ends of windows, CLOCK_MONOTONIC, and microseconds."""

    def text(self, row: RowOwner, history: History, now_ns: int) -> str:
        """Return the line until `now_ns`, with its last value; empty without a value."""
        cookie = int(row.socket["cookie"]) if row.socket is not None else 0
        if cookie != self._cookie:
            self._cookie, self._seen_ns = cookie, 0
            self._samples.clear()
        if not cookie:
            return ""
        for window in history.snapshots(PROBE):
            if window.metric != SOCKETS_TABLE or window.end_ns <= self._seen_ns:
                continue
            self._seen_ns = window.end_ns
            found = window.rows["rtt_us"][window.rows["cookie"] == cookie]
            if len(found) and found[0]:
                self._samples.append((window.end_ns, int(found[0])))
        return self._drawn(row, now_ns)

    def _drawn(self, row: RowOwner, now_ns: int) -> str:
        samples = np.array([one for one in self._samples if one[0] <= now_ns], "i8").reshape(-1, 2)
        if not len(samples) or not row.socket["rtt_us"]:
            return ""
        # A cell begins at a round time, so that bars move only from one cell to the next.
        cell_ns = round(_CELL_S * 1e9)
        at = _CELLS - 1 - (now_ns // cell_ns - samples[:, 0] // cell_ns)
        kept = at >= 0
        sums = np.bincount(at[kept], samples[kept, 1], _CELLS)
        counts = np.bincount(at[kept], minlength=_CELLS)
        means = np.divide(sums, counts, out=np.zeros(_CELLS), where=counts > 0)
        scale = round_scale(float(means.max()))
        bars = "".join(
            BARS[max(1, math.ceil(value / scale * len(BARS))) - 1] if count else NOTHING
            for value, count in zip(means.tolist(), counts.tolist(), strict=True)
        )
        now, queue = float(row.socket["rtt_us"]), float(row.socket["queue_us"])
        above = f", {duration(queue / 1e6)} above the least" if queue else ""
        return f"{bars} {duration(now / 1e6)}{above}"
