"""The first sentence of an explanation, and the sentences about its parts."""

from __future__ import annotations

from collections.abc import Callable

from app.explain.model import ExplainedEnds, ExplainedLimit, ExplainedOwner, ExplainedPlace
from bpf.quantities import age, bit_rate, byte_size, duration, percent
from probes.path.records import QueueSide
from probes.snapshot import NOT_COUNTED, NOT_SENT
from probes.sockets.records import Limit
from probes.sockets.words import loses

_NETWORK = (Limit.QUEUE, Limit.LOSS)
_BACK = QueueSide.BACK.words
_DNS = 53


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
    """`nginx (web.service) is limited by the network: 80.0 ms of queue at hop 4, since 12 s`."""
    name = name_of(who, flow)
    if why.rest == "cut":
        return f"{name} {_RESTS[why.rest].format(text=why.text)}, since {age(max(why.since_s, 1))}"
    if not why.limit:
        return f"{name} {_without(flow, who, why, where)}"
    limit = _LIMITS[why.limit]
    text = f"{name} {_SENTENCES[limit](flow, why)}"
    if why.rest:
        text = f"{name} {_RESTS[why.rest].format(far=flow.far)}"
    elif limit is Limit.QUEUE and where.own:
        text += f" in this host's own {where.own}"
    elif limit in _NETWORK and where.hop:
        text += f" at hop {where.hop}" + (f" {where.side}" if where.side == _BACK else "")
    elif limit is Limit.SENDER and why.answer_us:
        text += _answers(flow.far, why, where)
    elif limit in (Limit.SENDER, Limit.LOST_BEFORE) and where.queue_ms:
        text += f"; {where.text}"
    elif limit is Limit.NO_ANSWER and where.fault:
        text += f": {where.fault}"
    text += f", since {age(max(why.since_s, 1))}"
    if loses(limit, why.lost):
        text += f"; it loses {percent(why.lost)} of its segments"
    return text


def _answers(far: str, why: ExplainedLimit, where: ExplainedPlace) -> str:
    """`: answers take 801 ms, the path 13 ms`."""
    last = next((each for each in reversed(where.hops) if each.rtt_ms), None)
    path, path_us = "the path", float(why.floor_us)
    if not path_us and last and last.rtt_ms:
        path, path_us = path if last.router == far else f"hop {last.hop}", last.rtt_ms * 1e3
    beside = f", {path} {duration(path_us / 1e6)}" if path_us else ""
    return f": answers take {duration(why.answer_us / 1e6)}{beside}"


def _without(
    flow: ExplainedEnds, who: ExplainedOwner, why: ExplainedLimit, where: ExplainedPlace
) -> str:
    """Return the end of the sentence without a verdict."""
    if flow.protocol == "udp" and flow.far_port == _DNS and why.answer_us:
        lost = f"; {why.unanswered} queries got no answer" if why.unanswered else ""
        return f"waits for the DNS server {flow.far}{_answers(flow.far, why, where)}{lost}"
    if why.unanswered:
        return f"gets no answer from the DNS server {flow.far} to {why.unanswered} queries"
    if where.fault:
        return f"gets no answer from {flow.far}: {where.fault}"
    if why.answer_us:
        return f"waits for {flow.far}{_answers(flow.far, why, where)}"
    if who.reason in (NOT_COUNTED, NOT_SENT):
        return f"may have a socket on this host ({who.reason}): nothing tells what limits it"
    if who.reason and not who.process:
        return f"has no owner on this host: {who.reason}"
    if not why.samples:
        return "has no socket on this host: nothing tells what limits it"
    if flow.protocol != "tcp":
        return f"uses {flow.protocol}, which does not tell what limits it" + (
            f"; {where.text}" if where.queue_ms else ""
        )
    return "was not watched long enough to tell what limits it"


_RESTS = {
    "idle": "is idle: the flow sends nothing",
    "asked": "waits for {far}: it has not answered the last data",
    "closed": "is idle: the connection was closed",
    "reset": "has no connection any more: {far} reset it",
    "cut": "may send or rest: its packets are {text}",
}
_SENTENCES: dict[Limit, Callable[[ExplainedEnds, ExplainedLimit], str]] = {
    Limit.IDLE: lambda flow, why: _RESTS[why.rest or "idle"].format(far=flow.far),
    Limit.APPLICATION: lambda flow, why: (
        f"limits itself: it had data to send {percent(why.busy)} of the time, and less than the "
        "network takes"
    ),
    Limit.RECEIVER: lambda flow, why: (
        f"is limited by the receiver: the window of {flow.far} was full {percent(why.rwnd)} of "
        "the time"
    ),
    Limit.SEND_BUFFER: lambda flow, why: (
        f"is limited by its send buffer: {byte_size(why.unacked_bytes)} are on the way and fill it"
    ),
    Limit.PACED: lambda flow, why: f"is paced to {bit_rate(8 * why.delivery_rate)}",
    Limit.QUEUE: lambda flow, why: (
        f"is limited by the network: {duration(why.queue_us / 1e6)} of queue"
    ),
    Limit.LOSS: lambda flow, why: (
        f"is limited by the network: {percent(why.lost)} of its segments are lost"
    ),
    Limit.BANDWIDTH: lambda flow, why: (
        f"is limited by the network's bandwidth: {bit_rate(8 * why.delivery_rate)} without queue "
        "and loss"
    ),
    Limit.READS_SLOWLY: lambda flow, why: (
        f"reads slowly: {byte_size(why.rqueue)} wait in its receive buffer"
    ),
    Limit.LOST_BEFORE: lambda flow, why: (
        "is limited by the network: segments are lost before they reach this host"
    ),
    Limit.SENDER: lambda flow, why: (
        f"waits for {flow.far}" + ("" if why.answer_us else ": data comes no faster")
    ),
    Limit.NO_ANSWER: lambda flow, why: (
        f"gets no answer from {flow.far} to "
        + (f"{byte_size(why.unacked_bytes)} of data" if why.sent else "its SYNs")
    ),
    Limit.REFUSED: lambda flow, why: f"is refused: {flow.far} answers its SYN by a reset",
}  # fmt: skip
_LIMITS = {each.label: each for each in Limit if each}
ABOUT = {label: limit.about for label, limit in _LIMITS.items()}
"""Meanings of the labels of verdicts."""
