"""Limits of TCP connections, by two states of each socket and the seconds between them.

The kernel adds up the time in which a sender had data to send, was held by the receiver's window,
and by its own buffer (net/ipv4/tcp.c, tcp_chrono_start). These shares, the data that waits, and the
round-trip time above its floor decide. A window's finding is a vote: the verdict is the majority of
the last seconds, so one sample in an unusual moment changes nothing.
"""

from __future__ import annotations

import numpy as np

from bpf.arrays import Array, Rows
from bpf.sockets.diag import INFO
from probes.sockets.records import SOCKET, Limit

FIN, SYN, RST, PSH = 0x01, 0x02, 0x04, 0x08

LIMITED = np.dtype([
    ("limit", "u1"), ("limit_s", "u2"), ("busy", "f4"), ("rwnd", "f4"), ("sndbuf", "f4"),
    ("sent", "u8"), ("received", "u8"), ("segments", "u4"), ("retransmitted", "u4"),
    ("out_of_order", "u4"), ("reordered", "u4"), ("rtos", "u4"), ("drops", "u4"),
    ("queue_us", "u4"), ("needless", "u4"),
])  # fmt: skip
"""Columns of a SOCKET row by SocketLimits: the verdict (`limit`) and the seconds since when
it holds, the shares (0 to 1) of the time in which the sender had data (`busy`), waited for the
receiver's window (`rwnd`) and for its own buffer (`sndbuf`), differences of counters, and the
round-trip time above the floor."""

_COUNTERS = {
    "sent": "bytes_sent",
    "received": "bytes_received",
    "segments": "segments_out",
    "retransmitted": "retransmitted",
    "out_of_order": "out_of_order",
    "reordered": "reordered",
    "rtos": "rtos",
    "drops": "drops",
    "needless": "dsacks",
}
"""Columns of LIMITED and their counters in INFO."""
_SHARES = {"busy": "busy_us", "rwnd": "rwnd_us", "sndbuf": "sndbuf_us"}
_ESTABLISHED, _SYN_SENT = 1, 2
_STATES = (_ESTABLISHED, _SYN_SENT, 4, 5, 7, 8, 9, 11)
"""States of a connection with tcp_info (include/net/tcp_states.h): all but TIME_WAIT, LISTEN and
requests."""

_MOST_KNOWN = 1 << 17
_FORGET_S = 60.0
"""A connection that nobody asked about for so long starts anew."""
_SHORTEST_S = 0.01
"""Shares of a shorter time are noise."""
_MEMORY_S = 3.0
"""Votes and losses fade by this time constant: votes of the last five seconds have most weight."""
_LOSS_LEFT = 0.18
"""A single lost segment has faded to this after five seconds."""

_BUSY, _RWND, _SNDBUF = 0.5, 0.3, 0.2
"""Shares of time from which on they decide. Connections that a window limits had 0.99 and more,
others 0."""
_FULL = 0.5
"""Share of the receiver's largest window that is on the way if a queue takes it, times the share of
time in which the window is closed. Queues had 0.57 and more, slow readers of 0.2 to 10 MB/s at most
0.36."""
_OPEN = 60_000
"""Bytes. A process that reads at once keeps the window larger than this."""
_RETRIES, _SYN_RETRIES = 2, 1
"""Timeouts without an acknowledgement: one may be a loss, or a late answer."""
_WAITING_SEGMENTS = 2
"""Fewer unsent segments may wait for Nagle's algorithm or for a timer."""
_CWND_SHARE = 0.8
_PACED_SHARE = 0.8
_QUEUE_US, _QUEUE_SHARE = 5_000, 0.5
"""A queue adds at least so much to the floor: a busy host is late by some milliseconds."""
_NO_RATE = 1 << 62
"""`max_pacing_rate` without a limit is all ones, of 32 or of 64 bits."""
_NO_RATE_32 = (1 << 32) - 1
_NO_FLOOR = (1 << 32) - 1
"""`min_rtt_us` before the first measurement."""
_REQUEST = 3
"""Segments of a first request, such as the begin of a TLS handshake, at most."""
_READ_LATE_S = 0.02
"""Received data that waits so long for the process shows a slow reader."""

_KNOWN = np.dtype([
    ("cookie", "u8"), ("at", "f8"), ("counters", "u8", (len(_COUNTERS),)),
    ("shares", "u8", (len(_SHARES),)), ("lost", "f4"), ("gaps", "f4"),
    ("votes", "f4", (len(Limit),)), ("limit", "u1"), ("since", "f8"),
    ("vote", "u1"), ("vote_since", "f8"), ("window", "u4"), ("pad", "V2"),
])  # fmt: skip
"""A socket's last state: its counters at the time `at`, fading numbers of `lost` sent segments, of
`gaps` in received ones and of `votes`, the verdict with its begin, the last window's vote with its
begin, and the largest `window` of the receiver."""


class SocketLimits:
    """Follows sockets from window to window. Rows of 130,000 sockets at most, for a minute."""

    def __init__(self) -> None:
        self._known = np.empty(0, _KNOWN)
        self._cookies = np.empty(0, "u8")
        self._at = 0.0

    def window(
        self, info: Rows[INFO], at_s: float, floors_us: Array, opened_s: Array | None = None
    ) -> Array:
        """Return the verdicts and differences (n,), dtype LIMITED, of sockets asked at `at_s`.

        `info` (n,) is of dtype INFO; several rows may have one cookie. `at_s` is in seconds of
        CLOCK_MONOTONIC. `floors_us` (n,) u4 are round-trip times of the empty path, from other
        sources than the socket; 0: unknown. `opened_s` (n,) are the times at which connections
        opened after the last call, so that all their counts belong to this window; 0 of others. A
        socket that was not known has no differences and the verdict UNKNOWN.
        """
        cookies, first, inverse = np.unique(info["cookie"], return_index=True, return_inverse=True)
        # By take: indexing copies a structured array field by field.
        now = info.take(first)
        present = now["found"] & (cookies != 0)
        before, known = self._before(cookies)
        if opened_s is not None:
            new = ~known & (opened_s[first] > 0) & (self._at > 0)
            latest = max(self._at, at_s - _SHORTEST_S)
            before["at"][new] = np.clip(opened_s[first][new], self._at, latest)
            known |= new
        # close() with a linger time of 0 sets the counters of a connection to 0.
        known &= present & (now["bytes_sent"] >= before["counters"][:, 0])
        seconds = np.where(known, at_s - before["at"], 0.0)
        found = _differences(before, now, seconds, known)
        floors = floor_of(now, floors_us[first])
        found["queue_us"] = np.where(
            present & (floors > 0), np.maximum(now["rtt_us"].astype("i8") - floors, 0), 0
        )
        after = self._after(before, now, found, floors, seconds, at_s)
        found["limit"] = after["limit"]
        found["limit_s"] = np.minimum(at_s - after["since"], 0xFFFF)
        self._keep(after.take(np.flatnonzero(present)), at_s)
        result: Array = found.take(inverse)
        return result

    def _before(self, cookies: Array) -> tuple[Array, Array]:
        """Return the last states (n,) of sockets, zero if unknown, and which are known."""
        if not len(self._known):
            return np.zeros(len(cookies), _KNOWN), np.zeros(len(cookies), bool)
        at = np.searchsorted(self._cookies, cookies)
        at[at == len(self._known)] = 0
        known = self._cookies[at] == cookies
        before = self._known.take(at)
        _words(before)[~known] = 0
        return before, known

    def _after(
        self,
        before: Rows[_KNOWN],
        now: Rows[INFO],
        found: Rows[LIMITED],
        floors: Array,
        seconds: Array,
        at_s: float,
    ) -> Rows[_KNOWN]:
        """Return the new states (n,) of dtype _KNOWN."""
        after, known = before.copy(), before["at"] > 0
        after["cookie"], after["at"] = now["cookie"], at_s
        for column, name in enumerate(_COUNTERS.values()):
            after["counters"][:, column] = now[name]
        for column, name in enumerate(_SHARES.values()):
            after["shares"][:, column] = now[name]
        fade = np.exp(-seconds / _MEMORY_S).astype("f4")
        # If the receiver reports that it already had a repeated segment (DSACK), the segment was
        # late, not lost. The report may come in a later window.
        lost = before["lost"] * fade + found["retransmitted"] - found["needless"].astype("f4")
        after["lost"] = np.maximum(lost, 0)
        after["gaps"] = before["gaps"] * fade + found["out_of_order"]
        lossy, gaps = after["lost"] >= _LOSS_LEFT, after["gaps"] >= _LOSS_LEFT
        after["window"] = np.maximum(before["window"], now["send_window"])
        votes = votes_of(found, now, floors, seconds, lossy, gaps, after["window"])
        counts = votes != Limit.UNKNOWN
        after["votes"] *= fade[:, None]
        rows = np.flatnonzero(counts)
        # A longer window has more weight, but at most the weight of all earlier votes.
        after["votes"][rows, votes[rows]] += 1 - np.exp(-seconds[rows] / _MEMORY_S)
        again = votes == before["vote"]
        after["vote"] = votes
        after["vote_since"] = np.where(again & known, before["vote_since"], at_s - seconds)
        limit = np.where(after["votes"].any(axis=1), after["votes"].argmax(axis=1), Limit.UNKNOWN)
        begin = np.where(limit == votes, after["vote_since"], at_s)
        stays = (limit == before["limit"]) & known
        after["since"] = np.where(stays, before["since"], begin)
        after["limit"] = limit
        return after

    def _keep(self, after: Rows[_KNOWN], at_s: float) -> None:
        """Remember the states of this window, and younger ones of sockets nobody asked about."""
        stays = self._known["at"] > at_s - _FORGET_S
        stays &= ~np.isin(self._cookies, after["cookie"], assume_unique=True)
        old = self._known.take(np.flatnonzero(stays))
        if (many := len(old) + len(after) - _MOST_KNOWN) > 0:
            old = old.take(np.argsort(old["at"])[many:])
        known = np.concatenate((after, old))[:_MOST_KNOWN]
        self._known = known.take(np.argsort(known["cookie"]))
        self._cookies = np.ascontiguousarray(self._known["cookie"])
        self._at = at_s


def _words(known: Array) -> Array:
    """Return the memory of rows (n,) of dtype _KNOWN as 32-bit words (n, m)."""
    return known.view("u4").reshape(len(known), _KNOWN.itemsize // 4)


def _since(now: Array, before: Array) -> Array:
    """Return the differences of counters (n,) u8. Those that the kernel keeps in 32 bits wrap; one
    that otherwise went back began anew."""
    more = now.astype("i8") - before.astype("i8")
    if now.dtype.itemsize == 4:
        more = more.astype("i4")
    result: Array = np.maximum(more, 0).astype("u8")
    return result


def _differences(before: Rows[_KNOWN], now: Array, seconds: Array, known: Array) -> Rows[LIMITED]:
    found = np.zeros(len(now), LIMITED)
    for column, (name, counter) in enumerate(_COUNTERS.items()):
        found[name] = np.where(known, _since(now[counter], before["counters"][:, column]), 0)
    us = np.maximum(seconds, _SHORTEST_S) * 1e6
    for column, (name, counter) in enumerate(_SHARES.items()):
        spent = np.where(known, _since(now[counter], before["shares"][:, column]), 0)
        found[name] = np.minimum(spent / us, 1)
    return found


def floor_of(info: Rows[INFO], floors_us: Array) -> Array:
    """Return the least known round-trip time (n,) i8, us, of sockets; 0 if unknown."""
    own = info["min_rtt_us"].astype("i8")
    own = np.where((own == 0) | (own == _NO_FLOOR), info["rtt_us"], own)
    other = floors_us.astype("i8")
    result: Array = np.where((other > 0) & ((other < own) | (own == 0)), other, own)
    return result


def vain(flags: Array, back: Array, alone: Array, over: Array) -> Array:
    """Return the verdicts (n,) u1 of connections that this host wanted to open, in vain; UNKNOWN of
    others.

    `flags` (n,) are TCP flags of both directions, `back` those of the far end. `alone`: nothing
    came back, `over`: and the application waits no more.
    """
    wanted = (flags & SYN > 0) & (back & SYN == 0)
    found: Array = np.select(
        [wanted & (back & RST > 0), wanted & alone & over],
        [Limit.REFUSED, Limit.NO_ANSWER],
        Limit.UNKNOWN,
    ).astype("u1")
    return found


def resting(rows: Rows[SOCKET], received: Array, segments: Array) -> Array:
    """Return the verdicts (n,) u1 of connections that rest, rows (n,) of dtype SOCKET with the last
    packets: SENDER if the far end has not answered the last data, else IDLE. UNKNOWN: something
    waits, so the last verdict holds.

    `received` (n,): whether data came lately; `segments` (n,) were sent lately.
    """
    waits = np.isin(rows["limit"], (Limit.NO_ANSWER, Limit.REFUSED))
    waits |= (rows["unacked"] > 0) | (rows["notsent"] > 0) | (rows["rqueue"] > 0)
    # A request may be the first one. A sender that gets no data at all needs no answer.
    asked = rows["asked"] & (received | (segments <= _REQUEST))
    return np.select([waits, asked], [Limit.UNKNOWN, Limit.SENDER], Limit.IDLE).astype("u1")


def votes_of(
    found: Rows[LIMITED], info: Rows[INFO], floors_us: Array, seconds: Array, lossy: Array,
    gaps: Array, windows: Array,
) -> Array:  # fmt: skip
    """Return what limited each connection (n,) u1 Limit in one window; UNKNOWN of other sockets.

    `found` (n,) LIMITED has the window's differences, `info` (n,) INFO the state at its end,
    `floors_us` (n,) the least round-trip time. `lossy` and `gaps` (n,) bool tell of lost segments
    in the last seconds: sent ones, and ones that should have been received. `windows` (n,) are the
    largest windows of the receivers so far, bytes.
    """
    tcp = (info["info_bytes"] > 0) & np.isin(info["state"], _STATES)
    votes = _sending(found, info, floors_us, seconds, lossy, windows)
    nothing = (found["sent"] == 0) & (info["unacked"] == 0) & (info["notsent"] == 0)
    votes[nothing] = Limit.IDLE
    late = info["rqueue"] > found["received"] / np.maximum(seconds, _SHORTEST_S) * _READ_LATE_S
    receiving = found["received"] > found["sent"]
    votes[receiving] = Limit.SENDER
    votes[receiving & gaps] = Limit.LOST_BEFORE
    # A process that reads nothing at all receives nothing any more.
    votes[(receiving | nothing) & late] = Limit.READS_SLOWLY
    begins = info["state"] == _SYN_SENT
    votes[begins] = Limit.UNKNOWN
    patience = np.where(begins, _SYN_RETRIES, _RETRIES)
    votes[(info["retries"] >= patience) & (info["unacked"] > 0)] = Limit.NO_ANSWER
    votes[~tcp] = Limit.UNKNOWN
    # UDP: datagrams that found the receive buffer full.
    votes[~tcp & (found["drops"] > 0)] = Limit.READS_SLOWLY
    votes[seconds < _SHORTEST_S] = Limit.UNKNOWN
    return votes


def _sending(
    found: Rows[LIMITED],
    info: Rows[INFO],
    floors_us: Array,
    seconds: Array,
    lossy: Array,
    windows: Array,
) -> Array:
    """Return what limited each sender (n,) u1. The last rule that fits decides."""
    votes = np.full(len(info), Limit.BANDWIDTH, "u1")
    mss = info["mss"].astype("u8")
    waiting = (info["notsent"] >= _WAITING_SEGMENTS * mss) & (mss > 0)
    waiting |= (info["unacked"] >= _CWND_SHARE * info["cwnd"]) & ~info["app_limited"]
    full = (info["wmem"] >= info["sndbuf"]) & (info["sndbuf"] > 0)
    limit = info["max_pacing_rate"]
    paced = (limit > 0) & (limit < _NO_RATE) & (limit != _NO_RATE_32)
    paced &= found["sent"] >= _PACED_SHARE * limit.astype("f8") * seconds
    queued = found["queue_us"] >= np.maximum(_QUEUE_US, _QUEUE_SHARE * floors_us)
    # A slow reader answers late, too: its window is small, often open again, and nothing is on the
    # way. If the largest window ever is on the way all the time, a queue takes it, and would take
    # a larger one. Shares are of the time with data: some connections begin or end in the window.
    closed, busy_s = found["rwnd"] >= _RWND, np.maximum(found["busy"] * seconds, _SHORTEST_S)
    carried = found["sent"] * (info["rtt_us"] / 1e6) / busy_s
    # After the last data, little is on the way.
    drained = (info["state"] != _ESTABLISHED) & (info["notsent"] == 0)
    on_the_way = np.where(drained, carried, np.minimum(info["unacked"] * mss, carried))
    on_the_way *= found["rwnd"] / np.maximum(found["busy"], _RWND)
    takes = queued & (windows >= _OPEN) & (on_the_way >= _FULL * windows)
    votes[lossy] = Limit.LOSS
    votes[queued] = Limit.QUEUE
    votes[~waiting] = Limit.APPLICATION
    votes[closed & takes] = Limit.QUEUE
    votes[~waiting & full] = Limit.SEND_BUFFER
    votes[waiting & paced] = Limit.PACED
    votes[(found["sndbuf"] >= _SNDBUF) & ~queued] = Limit.SEND_BUFFER
    votes[closed & ~takes] = Limit.RECEIVER
    votes[(found["busy"] < _BUSY) & ~closed] = Limit.APPLICATION
    return votes
