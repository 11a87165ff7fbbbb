"""An explanation as one page of text."""

from __future__ import annotations

from collections.abc import Iterator

from app.explain.model import ExplainedLimit, ExplainedOwner, Explanation
from app.explain.words import ABOUT
from bpf.quantities import MISSING, age, bit_rate, byte_size, duration, percent

_INDENT = "  "
_MOST = 36
"""Most characters of a router's name."""


def lines(explanation: Explanation) -> list[str]:
    """Return the lines of the page; the first one is the answer."""
    found = [explanation.sentence, "", traffic(explanation)]
    for title, part in parts(explanation):
        found += ["", title, *(f"{_INDENT}{line}" for line in part)]
    return found


def traffic(explanation: Explanation) -> str:
    """Return the ends of the conversation and its rates in one line."""
    flow, bound = explanation.flow, "at least " * explanation.at_least
    return (
        f"{flow} ({flow.service}): {bound}{bit_rate(explanation.bits_in)} in, "
        f"{bit_rate(explanation.bits_out)} out, over {age(explanation.seconds)}"
    )


def parts(explanation: Explanation) -> tuple[tuple[str, list[str]], ...]:
    """Return the title and the lines of each part."""
    return (
        ("Who", list(_who(explanation.who))),
        ("Why", list(_why(explanation.why))),
        ("Where", list(_where(explanation))),
        ("Lost on this host", list(_lost(explanation))),
    )


def _who(who: ExplainedOwner) -> Iterator[str]:
    if not (who.process or who.container or who.unit):
        yield who.reason or "no socket on this host"
        return
    facts = (
        ("process", f"{who.process}, pid {who.pid}" if who.pid else who.process),
        ("user", who.user), ("unit", who.unit), ("container", who.container), ("pod", who.pod),
        ("known by", who.source),
    )  # fmt: skip
    for name, value in facts:
        if value:
            yield f"{name:<10}{value}"
    if who.holders > 1:
        yield f"{'shared':<10}{who.holders} processes hold the socket"


def _why(why: ExplainedLimit) -> Iterator[str]:
    if not why.samples:
        yield "no numbers: only a socket of this host tells them"
        return
    if why.limit:
        yield f"{why.text}: {ABOUT[why.limit]}, since {age(max(why.since_s, 1))}"
    if len(why.minute) > 1:
        spans = ", ".join(f"{each.limit} {age(max(each.seconds, 1))}" for each in why.minute)
        yield f"last minute: {spans}"
    if not why.rtt_us:
        if why.answer_us:
            yield f"answers take {duration(why.answer_us / 1e6)}"
        return
    yield (
        f"round trip {duration(why.rtt_us / 1e6)}, {duration(why.queue_us / 1e6)} above the least "
        f"of {duration(why.floor_us / 1e6)}"
    )
    yield (
        f"sent {byte_size(why.sent)}, received {byte_size(why.received)}, retransmitted "
        f"{percent(why.retransmitted)} of {why.segments} segments"
    )
    yield (
        f"delivers {bit_rate(8 * why.delivery_rate)}, window {why.cwnd} segments, {why.unacked} on "
        f"the way, {byte_size(why.notsent)} not sent yet"
    )
    yield (
        f"had data {percent(why.busy)} of the time; waited for the receiver {percent(why.rwnd)}, "
        f"for the send buffer {percent(why.sndbuf)}"
    )


def _where(explanation: Explanation) -> Iterator[str]:
    where = explanation.where
    yield where.text
    for hop in where.hops:
        router = f"{hop.router or '*'} {hop.name}".strip()[:_MOST]
        time = duration(hop.rtt_ms / 1e3) if hop.rtt_ms is not None else MISSING
        queue = f"  queue {duration(hop.queue_ms / 1e3)}" if hop.queue_ms else ""
        lost = f"  {hop.lost} of {hop.lost + hop.answered} not answered" if hop.lost else ""
        beside = "  beside the flow" if hop.beside else ""
        yield f"{hop.hop:>2}  {router:<{_MOST}}  {time:>9}{queue}{lost}{beside}"


def _lost(explanation: Explanation) -> Iterator[str]:
    if not explanation.lost:
        yield "no packet" if explanation.counts_drops else "no packet that was counted"
    for each in explanation.lost:
        of = "of this flow" if each.of_flow else "of all flows"
        packets = "packet" if each.packets == 1 else "packets"
        yield f"{each.packets} {packets} {of}: {each.reason}"
    if not explanation.counts_drops:
        yield "drops of the kernel are not counted: run --drops or :drops.count counts them"
