"""The first sentence of an explanation, and the sentences about its parts."""

from __future__ import annotations

from collections.abc import Callable

from app.explain.model import ExplainedEnds, ExplainedLimit, ExplainedOwner, ExplainedPlace
from probes.sockets.records import Limit
from probes.sockets.words import LOSES, percent, rate, size, span

_NETWORK = (Limit.QUEUE, Limit.LOSS)


def name_of(who: ExplainedOwner, flow: ExplainedEnds) -> str:
    """`nginx (web.service)`; without an owner the conversation."""
    name = who.process or who.container or who.unit or who.user
    if not name:
        return str(flow)
    place = next((each for each in (who.pod, who.container, who.unit) if each), "")
    return f"{name} ({place})" if place and place != name else name


def sentence(
    flow: ExplainedEnds, who: ExplainedOwner, why: ExplainedLimit, where: ExplainedPlace
) -> str:
    """`nginx (web.service) is limited by the network: 80 ms of queue at hop 4, since 12 s`."""
    name = name_of(who, flow)
    if not why.limit:
        return f"{name} {_without(flow, who, why)}"
    limit = _LIMITS[why.limit]
    text = f"{name} {_SENTENCES[limit](flow, why)}"
    if limit in _NETWORK and where.hop:
        text += f" at hop {where.hop}"
    text += f", since {seconds(why.since_s)}"
    if limit is not Limit.LOSS and why.retransmitted > LOSES:
        text += f"; it loses {percent(why.retransmitted)} of its segments"
    return text


def seconds(count: float) -> str:
    """`1 s` or less, `12 s`, `3 min`, `2 h`."""
    count = max(count, 1.0)
    for unit, length, most in (("s", 1, 120), ("min", 60, 120)):
        if count < length * most:
            return f"{count / length:.0f} {unit}"
    return f"{count / 3600:.0f} h"


def _without(flow: ExplainedEnds, who: ExplainedOwner, why: ExplainedLimit) -> str:
    """Return the end of the sentence without a verdict."""
    if who.reason and not who.process:
        return f"has no owner on this host: {who.reason}"
    if not why.samples:
        return "has no socket on this host: nothing tells what limits it"
    if flow.protocol != "tcp":
        return f"uses {flow.protocol}, which does not tell what limits it"
    return "was not watched long enough to tell what limits it"


def _busy(flow: ExplainedEnds, why: ExplainedLimit) -> str:
    return (
        f"limits itself: it had data to send {percent(why.busy)} of the time, and less than the "
        "network takes"
    )


def _receiver(flow: ExplainedEnds, why: ExplainedLimit) -> str:
    return f"is limited by the receiver: the window of {flow.far} was full {percent(why.rwnd)} of \
the time"


_SENTENCES: dict[Limit, Callable[[ExplainedEnds, ExplainedLimit], str]] = {
    Limit.IDLE: lambda flow, why: "is idle: it sends no data, and none waits",
    Limit.APPLICATION: _busy,
    Limit.RECEIVER: _receiver,
    Limit.SEND_BUFFER: lambda flow, why: (
        f"is limited by its send buffer: {size(why.unacked_bytes)} are on the way and fill it"
    ),
    Limit.PACED: lambda flow, why: f"is paced to {rate(why.delivery_rate)}",
    Limit.QUEUE: lambda flow, why: (
        f"is limited by the network: {span(why.queue_us)} of queue"
    ),
    Limit.LOSS: lambda flow, why: (
        f"is limited by the network: {percent(why.retransmitted)} of its segments are lost"
    ),
    Limit.BANDWIDTH: lambda flow, why: (
        f"is limited by the network's bandwidth: {rate(why.delivery_rate)} without queue and loss"
    ),
    Limit.READS_SLOWLY: lambda flow, why: (
        f"reads slowly: {size(why.rqueue)} wait in its receive buffer"
    ),
    Limit.LOST_BEFORE: lambda flow, why: (
        "is limited by the network: segments are lost before they reach this host"
    ),
    Limit.SENDER: lambda flow, why: f"waits for {flow.far}: data comes no faster",
}  # fmt: skip
_LIMITS = {each.label: each for each in Limit if each}
ABOUT = {label: limit.about for label, limit in _LIMITS.items()}
"""Meanings of the labels of verdicts."""
