"""The share of right verdicts about limits of connections, in real situations.

    python -I -m bench.sockets.limits [--seconds 12] [--only TEXT]

A window is a second. The first three of a situation are no steady state: buffers fill, and the
congestion window grows. Of all later windows at least 95 % must have the verdict that the situation
is built for, and no two wrong ones may follow each other; the same holds for the other end, if its
verdict is known. The situations of UNSEEN were not used to choose the rules.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from bench.support.report import Report
from probes.sockets.limits import SocketLimits
from probes.sockets.records import Limit
from tests.probes.sockets.situations import (
    End,
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

APP, RECEIVER, BUFFER, PACED = Limit.APPLICATION, Limit.RECEIVER, Limit.SEND_BUFFER, Limit.PACED
QUEUE, LOSS, BANDWIDTH = Limit.QUEUE, Limit.LOSS, Limit.BANDWIDTH
SLOW, BEFORE = (Limit.READS_SLOWLY,), (Limit.LOST_BEFORE,)
PLAIN, BBR = Options(), Options(congestion="bbr")
_SETTLE = 3
"""Windows before the steady state."""
_SHARE = 0.95


def tbf(rate: str, deep_ms: int, burst: str = "4k") -> str:
    return f"tbf rate {rate} burst {burst} latency {deep_ms}ms"


def sends(
    name: str, want: tuple[Limit, ...], link: Link, near: End = bulk, far: End = read,
    reading: tuple[Limit, ...] = (), options: Options = PLAIN,
) -> Situation:  # fmt: skip
    return Situation(name, want, near, far, link, options, want_reading=reading)


def answers(name: str, link: Link, size: int, think: float = 0) -> Situation:
    return Situation(name, (APP,), ask(size), answer(size, think), link, far_sends=True)


BATCHES = (
    (
        sends("application: 20 KB each 100 ms, rtt 2", (APP,), Link(2), chunks(20000, 0.1)),
        sends("application: 5 KB each 20 ms, rtt 50", (APP,), Link(50), chunks(5000, 0.02)),
        sends("application: 1 MB each second, rtt 20", (APP,), Link(20), chunks(1 << 20, 1)),
        answers("application: answers of 20 KB, rtt 10", Link(10), 20000),
        answers("application: answers of 500 B, rtt 10", Link(10), 500),
        answers("application: answers after 50 ms, rtt 2", Link(2), 20000, 0.05),
        sends("idle", (Limit.IDLE,), Link(20), chunks(1000, 1000)),
    ),
    (
        sends(
            "receiver: reads 1 MB/s, rtt 2",
            (RECEIVER,),
            Link(2),
            far=read_slowly(1e6),
            reading=SLOW,
        ),
        sends(
            "receiver: reads 1 MB/s, rtt 50",
            (RECEIVER,),
            Link(50),
            far=read_slowly(1e6),
            reading=SLOW,
        ),
        sends(
            "receiver: buffer of 16 KB, rtt 50",
            (RECEIVER,),
            Link(50),
            options=Options(rcvbuf=16384),
        ),
        sends(
            "receiver: reads nothing, rtt 2", (RECEIVER,), Link(2), far=read_nothing, reading=SLOW
        ),
    ),
    (
        sends("send buffer 32 KB, rtt 50", (BUFFER,), Link(50), options=Options(sndbuf=32768)),
        sends("send buffer 200 KB, rtt 50", (BUFFER,), Link(50), options=Options(sndbuf=200000)),
        sends(
            "send buffer 32 KB, rtt 50, BBR",
            (BUFFER,),
            Link(50),
            options=Options(sndbuf=32768, congestion="bbr"),
        ),
        sends("paced to 1 MB/s, rtt 20", (PACED,), Link(20), options=Options(pace=1000000)),
    ),
    (
        sends("queue: 20 Mbit/s, 200 ms deep, rtt 10", (QUEUE,), Link(10, tbf("20mbit", 200))),
        sends("queue: 20 Mbit/s, 30 ms deep, rtt 20", (QUEUE, LOSS), Link(20, tbf("20mbit", 30))),
        sends("queue: 5 Mbit/s, 500 ms deep, rtt 30", (QUEUE,), Link(30, tbf("5mbit", 500))),
        sends(
            "queue: 20 Mbit/s, rtt 20, BBR",
            (QUEUE, BANDWIDTH),
            Link(20, tbf("20mbit", 200)),
            options=BBR,
        ),
    ),
    (
        sends(
            "policer: 10 Mbit/s, 5 ms deep, rtt 20",
            (LOSS,),
            Link(20, tbf("10mbit", 5)),
            reading=BEFORE,
        ),
        sends("loss 0.1 %, rtt 20", (LOSS,), Link(20, loss=0.1)),
        sends("loss 1 %, rtt 20", (LOSS,), Link(20, loss=1), reading=BEFORE),
        sends("loss 5 %, rtt 20", (LOSS,), Link(20, loss=5), reading=BEFORE),
        sends(
            "loss 1 %, 300 KB each 100 ms, rtt 20",
            (LOSS,),
            Link(20, loss=1),
            chunks(300000, 0.1),
            reading=BEFORE,
        ),
    ),
    (sends("bandwidth: no limit, rtt 0", (APP, BANDWIDTH), Link()),),
    (sends("application: 100 KB each 20 ms, rtt 20", (APP,), Link(20), chunks(100000, 0.02)),),
    (sends("CPU: send buffer 64 KB, rtt 0", (APP, BUFFER), Link(), options=Options(sndbuf=65536)),),
    (sends("bandwidth: long and fat, rtt 100", (APP, BUFFER, BANDWIDTH, QUEUE), Link(100)),),
)
UNSEEN = (
    (
        sends("application: 300 B each 5 ms, rtt 40", (APP,), Link(40), chunks(300, 0.005)),
        sends("application: 200 KB each 60 ms, rtt 8", (APP,), Link(8), chunks(200000, 0.06)),
        answers("application: answers of 200 KB, rtt 30", Link(30), 200000),
    ),
    (
        sends(
            "receiver: reads 3 MB/s, rtt 20",
            (RECEIVER,),
            Link(20),
            far=read_slowly(3e6),
            reading=SLOW,
        ),
        sends(
            "receiver: reads 100 KB/s, rtt 100",
            (RECEIVER,),
            Link(100),
            far=read_slowly(1e5),
            reading=SLOW,
        ),
        sends(
            "receiver: buffer of 64 KB, rtt 100",
            (RECEIVER,),
            Link(100),
            options=Options(rcvbuf=65536),
        ),
        sends("paced to 500 KB/s, rtt 40", (PACED,), Link(40), options=Options(pace=500000)),
    ),
    (
        sends("queue: 50 Mbit/s, 100 ms deep, rtt 5", (QUEUE,), Link(5, tbf("50mbit", 100, "16k"))),
        sends("queue: 2 Mbit/s, 300 ms deep, rtt 60", (QUEUE,), Link(60, tbf("2mbit", 300))),
        sends(
            "send buffer 64 KB, rtt 100, BBR",
            (BUFFER,),
            Link(100),
            options=Options(sndbuf=65536, congestion="bbr"),
        ),
    ),
    (
        sends("loss 0.5 %, rtt 60", (LOSS,), Link(60, loss=0.5), reading=BEFORE),
        sends("loss 2 %, rtt 5", (LOSS,), Link(5, loss=2), reading=BEFORE),
        # BBR ignores losses: it sends as much as its buffer of 4 MB lets it.
        sends(
            "loss 1 %, rtt 20, BBR", (LOSS, BUFFER), Link(20, loss=1), reading=BEFORE, options=BBR
        ),
        sends(
            "policer: 30 Mbit/s, 3 ms deep, rtt 40",
            (LOSS,),
            Link(40, tbf("30mbit", 3, "8k")),
            reading=BEFORE,
        ),
    ),
)


class Score:
    """Right and wrong verdicts of one end of a situation."""

    def __init__(self, name: str, want: tuple[Limit, ...]) -> None:
        self.name, self.want = name, want
        self.verdicts: list[Limit] = []

    @property
    def wrong(self) -> list[bool]:
        return [verdict not in self.want for verdict in self.verdicts]

    @property
    def twice(self) -> bool:
        """Whether two wrong verdicts follow each other."""
        wrong = self.wrong
        return any(map(all, pairwise(wrong)))

    def __str__(self) -> str:
        names = Counter(each.label for each in self.verdicts)
        right = len(self.verdicts) - sum(self.wrong)
        told = ", ".join(f"{name} {count}" for name, count in names.most_common())
        return f"{right} of {len(self.verdicts)}: {told}"


def play(batch: Sequence[Situation], seconds: int) -> list[Score]:
    """Run situations at the same time; return the scores of senders, then of known receivers."""
    sending = [Score(each.name, each.want) for each in batch]
    reading = [Score(f"  other end of {each.name}", each.want_reading) for each in batch]
    with Situations(batch) as running:
        ends = (SocketLimits(), sending), (SocketLimits(), reading)
        begin = time.monotonic()
        for second in range(seconds + 1):
            time.sleep(max(0.0, begin + second - time.monotonic()))
            at = time.monotonic()
            for (limits, scores), info in zip(ends, running.sample(), strict=True):
                found = limits.window(info, at, np.zeros(len(info), "u4"))["limit"].tolist()
                for score, limit in zip(scores, found, strict=True):
                    if second > _SETTLE:
                        score.verdicts.append(Limit(limit))
    return [*sending, *(score for score in reading if score.want)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=12, help="of each situation")
    parser.add_argument("--only", default="", help="situations whose name has this text")
    chosen = parser.parse_args()
    report = Report("What limits a connection")
    right = total = 0
    for batch in BATCHES + UNSEEN:
        wanted = [each for each in batch if chosen.only in each.name]
        for score in play(wanted, chosen.seconds) if wanted else ():
            report.target(score.name, str(score), not score.twice)
            right += len(score.verdicts) - sum(score.wrong)
            total += len(score.verdicts)
    share = right / max(1, total)
    report.target("right windows", f"{right} of {total} ({share:.1%})", share >= _SHARE)
    report.end()


if __name__ == "__main__":
    main()
