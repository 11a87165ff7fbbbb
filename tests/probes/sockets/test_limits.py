"""Verdicts by hand-made numbers: the rules, the votes, and the memory of sockets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bpf.arrays import Array
from bpf.sockets.diag import INFO
from probes.sockets.floors import Floors
from probes.sockets.limits import LIMITED, SocketLimits
from probes.sockets.records import SOCKET, Limit
from probes.sockets.words import limit_text

SECOND = 1_000_000
BUSY = {"busy_us": SECOND, "bytes_sent": 1_000_000, "segments_out": 700}
"""A sender that had data the whole second."""
WAITING = {"notsent": 500_000, "unacked": 100}
QUEUED = {**BUSY, **WAITING, "rtt_us": 30_000}
FULL = {**BUSY, **WAITING, "rtt_us": 100_000, "rwnd_us": SECOND}
"""The receiver's window is full all the time, and the round-trip time is 90 ms longer."""


def info(cookie: int = 7, **values: Any) -> Array:
    """One established connection with a round-trip time of 10 ms."""
    row = np.zeros(1, INFO)
    usual = {
        "found": True, "state": 1, "info_bytes": 280, "cookie": cookie, "rtt_us": 10_000,
        "min_rtt_us": 10_000, "mss": 1448, "cwnd": 100, "sndbuf": 1 << 20,
        "max_pacing_rate": 2**64 - 1,
    }  # fmt: skip
    for name, value in (usual | values).items():
        row[name] = value
    return row


def many(rows: list[Array]) -> Array:
    return np.concatenate(rows)


def zero(rows: Array) -> Array:
    return np.zeros(len(rows), "u4")


class Followed:
    """One connection from second to second: `now` has the differences and the state of one."""

    def __init__(self) -> None:
        self.limits, self.at, self.total = SocketLimits(), 100.0, dict.fromkeys(_COUNTED, 0)
        self.step()

    def step(self, floor: int = 0, **now: Any) -> Any:
        self.at += 1
        for name in _COUNTED:
            self.total[name] += now.pop(name, 0)
        row = info(**now, **self.total)
        return self.limits.window(row, self.at, np.full(1, floor, "u4"))[0]


_COUNTED = (
    "bytes_sent", "bytes_received", "segments_out", "retransmitted", "dsacks", "out_of_order",
    "busy_us", "rwnd_us", "sndbuf_us", "drops",
)  # fmt: skip


@pytest.mark.parametrize(
    ("limit", "now"),
    [
        (Limit.IDLE, {}),
        (Limit.APPLICATION, {"bytes_sent": 1000, "busy_us": SECOND // 10}),
        (Limit.APPLICATION, {"bytes_sent": 1000, "busy_us": SECOND // 10, **WAITING}),
        (Limit.APPLICATION, {**BUSY}),
        # Nagle's algorithm holds a part of a segment back.
        (Limit.APPLICATION, {**BUSY, "notsent": 1000}),
        (Limit.APPLICATION, {**BUSY, "unacked": 90, "app_limited": True}),
        (Limit.RECEIVER, {**BUSY, **WAITING, "rwnd_us": SECOND * 0.9}),
        (Limit.SEND_BUFFER, {**BUSY, **WAITING, "sndbuf_us": SECOND * 0.9}),
        (Limit.SEND_BUFFER, {**BUSY, "wmem": 70_000, "sndbuf": 65_536}),
        (Limit.PACED, {**BUSY, **WAITING, "max_pacing_rate": 1_000_000}),
        (Limit.QUEUE, QUEUED),
        (Limit.LOSS, {**BUSY, **WAITING, "retransmitted": 3}),
        # The receiver had them already: late, not lost.
        (Limit.BANDWIDTH, {**BUSY, **WAITING, "retransmitted": 3, "dsacks": 3}),
        (Limit.BANDWIDTH, {**BUSY, **WAITING}),
        (Limit.BANDWIDTH, {**BUSY, "unacked": 90}),
        (Limit.SENDER, {"bytes_received": 1_000_000, "bytes_sent": 1000}),
        (Limit.LOST_BEFORE, {"bytes_received": 1_000_000, "out_of_order": 5}),
        (Limit.READS_SLOWLY, {"bytes_received": 1_000_000, "rqueue": 200_000}),
        (Limit.READS_SLOWLY, {"rqueue": 200_000}),
        # Data that has just come.
        (Limit.SENDER, {"bytes_received": 10_000_000, "rqueue": 100_000}),
        (Limit.READS_SLOWLY, {"info_bytes": 0, "state": 7, "drops": 5}),
        # The receiver's whole window waits in the queue: a larger one would make it longer.
        (Limit.QUEUE, {**FULL, "unacked": 170, "send_window": 250_000, "bytes_sent": 2_500_000}),
        # The last data left a moment ago.
        (
            Limit.QUEUE,
            {
                **FULL,
                "state": 4,
                "notsent": 0,
                "unacked": 17,
                "send_window": 250_000,
                "bytes_sent": 2_500_000,
            },
        ),
        # A slow reader answers late, with a small window or nothing on the way.
        (Limit.RECEIVER, {**FULL, "unacked": 0, "send_window": 0, "bytes_sent": 2_500_000}),
        (Limit.RECEIVER, {**FULL, "unacked": 20, "send_window": 30_000, "bytes_sent": 300_000}),
        (Limit.RECEIVER, {**FULL, "unacked": 170, "send_window": 250_000, "bytes_sent": 300_000}),
        (Limit.QUEUE, {**FULL, "rwnd_us": 0, "sndbuf_us": SECOND}),
        (Limit.NO_ANSWER, {**BUSY, **WAITING, "retries": 2, "rtt_us": 90_000}),
        (Limit.LOSS, {**BUSY, **WAITING, "retries": 1, "retransmitted": 1}),
        (Limit.NO_ANSWER, {"state": 2, "retries": 1, "unacked": 1}),
        (Limit.UNKNOWN, {"state": 2, "unacked": 1}),
        (Limit.UNKNOWN, {"info_bytes": 0, "state": 7}),
        (Limit.UNKNOWN, {"state": 10, "rqueue": 128}),
        (Limit.UNKNOWN, {**QUEUED, "found": False}),
    ],
)
def test_the_numbers_of_a_second_decide(limit: Limit, now: dict[str, Any]) -> None:
    found = Followed().step(**now)
    assert Limit(found["limit"]) is limit
    assert found["sent"] == (now.get("bytes_sent", 0) if now.get("found", True) else 0)


def test_the_shares_and_differences_are_of_the_window() -> None:
    followed = Followed()
    followed.step(**BUSY)
    found = followed.step(**{**QUEUED, "rwnd_us": SECOND // 4, "retransmitted": 2})
    assert found["busy"] == 1
    assert found["rwnd"] == 0.25
    assert (found["sent"], found["segments"], found["retransmitted"]) == (1_000_000, 700, 2)
    assert found["queue_us"] == 20_000


def test_an_unknown_socket_has_no_verdict_until_the_next_window() -> None:
    limits = SocketLimits()
    first = limits.window(info(**QUEUED), 5.0, np.zeros(1, "u4"))[0]
    assert (first["limit"], first["limit_s"], first["sent"]) == (Limit.UNKNOWN, 0, 0)
    assert first["queue_us"] == 20_000


def test_all_counts_of_a_socket_that_was_opened_in_the_window_belong_to_it() -> None:
    limits, none = SocketLimits(), np.zeros(1, "u4")
    limits.window(info(1), 5.0, none)
    found = limits.window(info(2, **QUEUED), 6.0, none, np.full(1, 4.0))[0]
    assert (found["limit"], found["limit_s"], found["sent"]) == (Limit.QUEUE, 1, 1_000_000)


def test_shares_of_the_first_window_are_of_the_life_of_the_connection() -> None:
    limits, none = SocketLimits(), np.zeros(1, "u4")
    limits.window(info(1), 5.0, none)
    full = {**FULL, "unacked": 170, "send_window": 250_000, "bytes_sent": 625_000}
    young = full | {"busy_us": SECOND // 4, "rwnd_us": SECOND // 4}
    found = limits.window(info(2, **young), 6.0, none, np.full(1, 5.75))[0]
    assert (found["limit"], found["busy"], found["rwnd"]) == (Limit.QUEUE, 1, 1)


def test_one_unusual_window_changes_no_verdict_and_the_begin_is_known() -> None:
    followed = Followed()
    for _ in range(6):
        followed.step(**QUEUED)
    odd = followed.step(**BUSY)
    assert (odd["limit"], odd["limit_s"]) == (Limit.QUEUE, 7)
    followed.step(**BUSY)
    switched = followed.step(**BUSY)
    assert (switched["limit"], switched["limit_s"]) == (Limit.APPLICATION, 3)


def test_a_loss_counts_for_five_seconds() -> None:
    followed, sends = Followed(), {**BUSY, **WAITING}
    followed.step(**sends, retransmitted=1)
    found = [followed.step(**sends)["limit"] for _ in range(11)]
    assert found[:5] == [Limit.LOSS] * 5
    assert found[-1] == Limit.BANDWIDTH


def test_another_source_knows_the_floor_of_a_connection_that_begins_in_a_queue() -> None:
    followed = Followed()
    values = {**BUSY, **WAITING, "rtt_us": 90_000, "min_rtt_us": 80_000}
    assert followed.step(**values)["limit"] == Limit.BANDWIDTH
    found = Followed().step(floor=10_000, **values)
    assert (found["limit"], found["queue_us"]) == (Limit.QUEUE, 80_000)


def test_counters_of_32_bits_wrap() -> None:
    limits, none = SocketLimits(), np.zeros(1, "u4")
    limits.window(info(segments_out=0xFFFFFFF0, retransmitted=0xFFFFFFFF), 1.0, none)
    found = limits.window(info(segments_out=16, retransmitted=1), 2.0, none)[0]
    assert (found["segments"], found["retransmitted"]) == (32, 2)


def test_a_slow_reader_that_once_had_a_larger_window_stays_one() -> None:
    followed = Followed()
    followed.step(**BUSY, **WAITING, send_window=400_000)
    full = {**FULL, "unacked": 70, "send_window": 100_000, "bytes_sent": 1_000_000}
    found = [followed.step(**full)["limit"] for _ in range(6)]
    assert found[-1] == Limit.RECEIVER


def test_a_connection_that_close_resets_has_no_differences() -> None:
    """close() with a linger time of 0 sets counters to 0: they once gave 4294986738 segments."""
    limits, none = SocketLimits(), np.zeros(1, "u4")
    counts = {"bytes_sent": 30_000_000, "segments_out": 19_442, "retransmitted": 12}
    limits.window(info(**counts), 1.0, none)
    limits.window(info(9, bytes_received=5000, retransmitted=3), 1.5, none)
    found = limits.window(many([info(state=7), info(9, state=7)]), 2.0, np.zeros(2, "u4"))
    for name in ("sent", "received", "segments", "retransmitted"):
        assert found[name].tolist() == [0, 0], name


def test_rows_keep_their_order_and_may_share_a_socket() -> None:
    limits = SocketLimits()
    rows = many([info(9), info(3), info(0, found=False), info(9)])
    limits.window(rows, 1.0, zero(rows))
    later = many([info(9, **QUEUED), info(3), info(0, found=False), info(9, **QUEUED)])
    found = limits.window(later, 2.0, zero(later))
    assert found["limit"].tolist() == [Limit.QUEUE, Limit.IDLE, Limit.UNKNOWN, Limit.QUEUE]
    assert found["sent"].tolist() == [1_000_000, 0, 0, 1_000_000]


def test_a_socket_that_nobody_asked_about_for_a_minute_begins_anew() -> None:
    limits, none = SocketLimits(), np.zeros(1, "u4")
    limits.window(info(1), 0.0, none)
    limits.window(info(2), 50.0, none)
    assert limits.window(info(1, **BUSY), 55.0, none)[0]["sent"] == 1_000_000
    limits.window(info(2), 116.0, none)
    assert limits.window(info(1, bytes_sent=2_000_000), 117.0, none)[0]["sent"] == 0


def test_the_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probes.sockets.limits._MOST_KNOWN", 4)
    limits = SocketLimits()
    for begin in (1, 4):
        rows = many([info(cookie) for cookie in range(begin, begin + 3)])
        limits.window(rows, float(begin), zero(rows))
    rows = many([info(cookie, bytes_sent=5) for cookie in range(1, 7)])
    sent = limits.window(rows, 5.0, zero(rows))["sent"].tolist()
    assert sum(sent[:3]) == 5
    assert sent[3:] == [5, 5, 5]
    rows["bytes_sent"] = 9
    assert np.count_nonzero(limits.window(rows, 6.0, zero(rows))["sent"]) == 4


def _address(*numbers: int) -> Array:
    rows = np.zeros((len(numbers), 16), "u1")
    rows[:, 3] = numbers
    return rows


def test_a_floor_is_the_least_time_of_all_and_ages() -> None:
    floors = Floors()
    floors.note(_address(1, 2, 1), np.array([500, 900, 300]), 10.0)
    floors.note(_address(1, 2), np.array([400, 0]), 20.0, netns=5)
    assert floors.of(_address(1, 2, 3)).tolist() == [300, 900, 0]
    assert floors.of(_address(1, 2), 5).tolist() == [400, 0]
    floors.note(_address(1), np.array([800]), 400.0)
    assert floors.of(_address(1)).tolist() == [300]
    floors.note(_address(1), np.array([800]), 800.0)
    assert floors.of(_address(1)).tolist() == [800]


def _socket(limit: Limit, **values: Any) -> Any:
    row = np.zeros(1, SOCKET)
    row["limit"] = limit
    for name, value in values.items():
        row[name] = value
    return row[0]


@pytest.mark.parametrize(
    ("limit", "values", "text"),
    [
        (Limit.UNKNOWN, {}, ""),
        (Limit.IDLE, {}, "idle"),
        (Limit.APPLICATION, {}, "application"),
        (Limit.APPLICATION, {"segments": 1000, "retransmitted": 21}, "application, loses 2.1 %"),
        # The far end had them already.
        (Limit.APPLICATION, {"segments": 1000, "retransmitted": 21, "needless": 20}, "application"),
        (Limit.APPLICATION, {"segments": 3, "retransmitted": 3}, "application"),
        (Limit.RECEIVER, {"rwnd": 0.98}, "peer's window 98.0 %"),
        (Limit.RECEIVER, {}, "peer's window"),
        (Limit.NO_ANSWER, {"segments": 30, "retransmitted": 3}, "no answer"),
        (Limit.REFUSED, {}, "refused"),
        (Limit.SEND_BUFFER, {}, "send buffer"),
        (Limit.PACED, {"delivery_rate": 1_000_000}, "paced 8.00 Mbit/s"),
        (Limit.QUEUE, {"queue_us": 80_000}, "queue +80.0 ms"),
        (Limit.LOSS, {"segments": 1000, "retransmitted": 12}, "loss 1.2 %"),
        (Limit.LOSS, {}, "loss"),
        (Limit.BANDWIDTH, {"delivery_rate": 2_375_000}, "bandwidth 19.0 Mbit/s"),
        (Limit.READS_SLOWLY, {"rqueue": 353_000}, "reads slowly, 345 KiB wait"),
        (Limit.READS_SLOWLY, {"drops": 4}, "reads slowly, 4 dropped"),
        (Limit.LOST_BEFORE, {}, "lost before here"),
        (Limit.SENDER, {}, "peer sends no faster"),
    ],
)
def test_a_verdict_reads_as_words(limit: Limit, values: dict[str, Any], text: str) -> None:
    assert limit_text(_socket(limit, **values)) == text


def test_every_limit_has_words_and_meaning() -> None:
    rows = np.zeros(len(Limit), SOCKET)
    rows["limit"] = np.arange(len(Limit))
    assert all(map(limit_text, rows[1:]))
    assert all(each.about for each in Limit if each)
    assert set(LIMITED.names or ()) <= set(SOCKET.names or ())
