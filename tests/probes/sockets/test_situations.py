"""Verdicts of real connections, each limited by something else, all at the same time."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pytest

from probes.sockets.limits import SocketLimits
from probes.sockets.records import Limit
from tests.probes.sockets.situations import (
    Link,
    Options,
    Situation,
    Situations,
    answer,
    ask,
    bulk,
    chunks,
    read,
    read_nothing,
    read_slowly,
)

SETTLE_S, WINDOW_S, WINDOWS = 1.2, 0.25, 5
QUEUE = Link(10, "tbf rate 10mbit burst 4k latency 200ms")
SITUATIONS = (
    Situation("writes seldom", (Limit.APPLICATION,), chunks(20000, 0.1), read, Link(2)),
    Situation(
        "answers", (Limit.APPLICATION,), ask(20000), answer(20000, 0.02), Link(5), far_sends=True
    ),
    Situation("idle", (Limit.IDLE,), chunks(1000, 1000), read, Link(5)),
    Situation(
        "is read slowly", (Limit.RECEIVER,), bulk, read_slowly(1e6), Link(5),
        want_reading=(Limit.READS_SLOWLY,),
    ),
    Situation(
        "is not read", (Limit.RECEIVER,), bulk, read_nothing, want_reading=(Limit.READS_SLOWLY,)
    ),
    Situation(
        "small receive buffer", (Limit.RECEIVER,), bulk, read, Link(50), Options(rcvbuf=16384),
        want_reading=(Limit.SENDER,),
    ),
    Situation("send buffer", (Limit.SEND_BUFFER,), bulk, read, Link(50), Options(sndbuf=32768)),
    Situation("paced", (Limit.PACED,), bulk, read, Link(20), Options(pace=500_000)),
    Situation("queue", (Limit.QUEUE,), bulk, read, QUEUE),
    Situation(
        "loss", (Limit.LOSS,), bulk, read, Link(20, loss=2), want_reading=(Limit.LOST_BEFORE,)
    ),
)  # fmt: skip


Verdicts = tuple[list[Limit], list[Limit]]
"""Of the sending and of the receiving end, in successive windows."""


def play(situations: Sequence[Situation]) -> dict[str, Verdicts]:
    """Return the verdicts of both ends of each situation, by its name."""
    found: dict[str, Verdicts] = {each.name: ([], []) for each in situations}
    with Situations(situations) as running:
        ends = SocketLimits(), SocketLimits()
        begin = time.monotonic() + SETTLE_S
        for window in range(-3, WINDOWS + 1):
            time.sleep(max(0.0, begin + window * WINDOW_S - time.monotonic()))
            for number, (limits, info) in enumerate(zip(ends, running.sample(), strict=True)):
                rows = limits.window(info, time.monotonic(), np.zeros(len(info), "u4"))
                for name, limit in zip(found, rows["limit"].tolist(), strict=True):
                    if window > 0:
                        found[name][number].append(Limit(limit))
    return found


def is_right(situation: Situation, verdicts: Verdicts) -> bool:
    """Whether at most one window of each end has a wrong verdict."""
    wanted = situation.want, situation.want_reading or tuple(Limit)
    return all(
        sum(each not in want for each in found) <= 1
        for want, found in zip(wanted, verdicts, strict=True)
    )


@pytest.fixture(scope="module")
def verdicts() -> dict[str, Verdicts]:
    return play(SITUATIONS)


@pytest.mark.slow
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: each.name)
def test_both_ends_know_what_limits_a_connection(
    situation: Situation, verdicts: dict[str, Verdicts]
) -> None:
    assert is_right(situation, verdicts[situation.name]), verdicts[situation.name]
