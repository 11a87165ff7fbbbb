"""Owners of flows on screen 3: of one row, labels of groups, and sentences."""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from app.commands.flow_view import INTERFACES, NODES, OWNER_KINDS
from app.tape.named_state import StateValues
from bpf.arrays import Array
from bpf.quantities import age, bit_rate, byte_size, duration, percent
from probes.flow.interfaces import names_of
from probes.snapshot import History
from probes.sockets.records import OWNER_TEXTS, PROBE, SOCKETS_TABLE, By, Limit, Owned, Reason
from probes.sockets.words import limit_text
from widgets.sparkline import BARS, NOTHING, round_scale
from widgets.tones import Tone

_REASONS, _BY, _LIMITS = tuple(Reason), tuple(By), tuple(Limit)
_CALM = (
    Limit.UNKNOWN, Limit.IDLE, Limit.APPLICATION, Limit.PACED, Limit.BANDWIDTH, Limit.SENDER,
)  # fmt: skip
"""Limits that are nobody's trouble."""


class RowOwner:
    """The owner and the socket of a row; texts are empty, and numbers 0 or NaN, if unknown."""

    __slots__ = ("owner", "reason", "socket")

    def __init__(self, owned: Owned, place: int) -> None:
        """`place` is the row's place in the sockets; -1: none."""
        self.socket: Any = owned.sockets[place] if place >= 0 else None
        """Of dtype LIVE_SOCKET; None if no socket is known for the row."""
        at = owned.owner_of_socket(place)
        self.owner: Any = owned.owners[at] if at < len(owned.owners) else None
        """Of dtype OWNER; None if nobody owns the row, or the owner is unknown."""
        self.reason = None if self.socket is None else _REASONS[self.socket["reason"]]
        """None if the row was not asked for yet."""

    def text(self, column: str) -> str:
        """The text of a column of OWNER_TEXTS."""
        if self.owner is None:
            return ""
        found: bytes = self.owner[OWNER_TEXTS[column]]
        return found.decode(errors="replace")

    @property
    def name(self) -> str:
        """Name of the process; else of its pod, container or unit."""
        return next(filter(None, map(self.text, ("process", "pod", "container", "unit"))), "")

    @property
    def place(self) -> str:
        """The pod, container or unit of the process: the first that is known."""
        return next(filter(None, map(self.text, ("pod", "container", "unit"))), "")

    @property
    def states(self) -> StateValues:
        """Values of named states."""
        names = ("process", "user", "unit", "container", "pod")
        return {
            **{f"flow.{name}": self.text(name) for name in names},
            "flow.pid": self.pid,
            "flow.limit": self.limited.label,
        }

    @property
    def process(self) -> str:
        if self.owner is not None:
            others = int(self.socket["holders"]) - 1
            name = self.text("process") or f"({self.name})"
            return f"{name}+{others}" if others > 0 else name
        if self.reason in (None, Reason.OWNED):
            return ""
        return f"({self.reason.label})"

    @property
    def pid(self) -> str:
        return str(self.owner["tgid"] or "") if self.owner is not None else ""

    @property
    def by(self) -> By:
        return _BY[self.socket["by"]] if self.owner is not None else By.NONE

    @property
    def limited(self) -> Limit:
        return _LIMITS[self.socket["limit"]] if self.socket is not None else Limit.UNKNOWN

    @property
    def limit_tone(self) -> Tone:
        """Tone of the limit: trouble of somebody else stands out."""
        return Tone.MUTED if self.limited in _CALM else Tone.WARN


_UNKNOWN = "no owner yet"
"""Label of flows of a window whose owners are not known yet."""


def labels_of(kind: str, flows: Array, owned: Owned) -> tuple[Array, Mapping[int, str]]:
    """Return the label's number of each of `flows` (n,), and the label of each number.

    `kind` is one of LABEL_KINDS. Flows without an owner have the label of their reason.
    """
    if kind == INTERFACES:
        found = names_of(flows)
        numbers = [_number(text) for text in found.texts]
        return np.array(numbers, "u8")[found.codes], dict(zip(numbers, found.texts, strict=True))
    if kind == NODES:
        none = np.zeros(len(owned.at), "u8")
        return none if owned.salts is None else owned.salts, {0: "this host", **owned.nodes}
    noun = OWNER_KINDS[kind]
    coded = owned.texts(noun)
    texts = [text or f"no {noun}" for text in coded.texts[:-1]]
    known = len(texts)
    texts += [f"no owner: {reason.label}" if reason else _UNKNOWN for reason in Reason]
    codes = np.where(coded.codes < known, coded.codes, known + owned.reason)
    texts.append(_UNKNOWN)
    codes[owned.at < 0] = len(texts) - 1
    numbers = [_number(text) for text in texts]
    return np.array(numbers, "u8")[codes], dict(zip(numbers, texts, strict=True))


@cache
def _number(text: str) -> int:
    """Return the number of a label: the same in every frame."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


_CELLS = 20
_CELL_S = 3.0
"""Seconds of a cell of the line of round-trip times: a minute in all."""
_BY_TEXTS = {
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
    parts = (name, *map(row.text, ("pod", "container", "unit")), _BY_TEXTS.get(row.by, ""))
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
