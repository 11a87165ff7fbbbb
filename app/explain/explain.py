"""From the tables of the last minute to the explanation of one conversation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from app.explain.material import Material, Silence, ends_of, gather
from app.explain.model import (
    ExplainedHop,
    ExplainedLimit,
    ExplainedLoss,
    ExplainedOwner,
    ExplainedPlace,
    Explanation,
    LimitSpan,
)
from app.explain.place import HopTimes, fault_of, queues_of, times_of
from app.explain.words import sentence
from app.outputs.networks import Describe, nothing_known
from bpf.arrays import Row
from bpf.quantities import age, duration
from bpf.sockets.diag import UDP
from probes.filter.hosts import address_text
from probes.path.analysis.round_trips.delays import side_of
from probes.path.analysis.statistics import quantiles
from probes.path.events.words import address_of, going_on, loop_text
from probes.path.records import (
    DESTINATION_HOP,
    MeasuredBy,
    PathRowKind,
    ProbeOutcome,
    QueueSide,
)
from probes.path.traced import NO_ROUTER
from probes.snapshot import Snapshot
from probes.sockets.limits import FIN, RST, resting, vain
from probes.sockets.records import SOCKET, By, Limit, Reason
from probes.sockets.words import limit_text, lost_share, retransmitted_share

_RESTS_S = 2.0
"""A conversation without a packet for so long rests."""
_ANSWER_S = 0.2
"""A shorter pause may be the machine's."""
_HALF = 0.5
"""Share of the time in which a conversation waits for the far end, and of the delay that the own
queue holds: from there on they decide."""
_SHARES = ("busy", "rwnd", "sndbuf")
_NO_QUEUE = "no queue at any hop that answers"
_NEAR = 2
"""A queue before the first hop seems to be at this one if the first one answers seldom."""
_HELD = (Limit.RECEIVER.label, Limit.SENDER.label, Limit.READS_SLOWLY.label)
"""The flow's own round trips hold time of the far end, or of a delayed acknowledgement."""
_BACKLOGS = 9
"""Windows whose queue on this host is compared: it is the median."""


def explain(
    conversation: Any,
    items: Iterable[Snapshot],
    describe: Describe = nothing_known,
    untraced: str = "",
) -> Explanation:
    """Explain a conversation, a row of dtype GROUP, by the tables of the last minute.

    `items` are windows of the probes flow, sockets, path and drops; missing ones leave their part
    empty. `describe` names routers. `untraced` is the reason why the path is not traced.
    """
    material = gather(conversation, items)
    flow, who, why = ends_of(material.conversation), _owner(material), _limit(material)
    where = _place_of(material, describe, why, untraced)
    seconds = max(material.seconds, 1e-9)
    return Explanation(
        sentence=sentence(flow, who, why, where),
        flow=flow,
        seconds=material.seconds,
        bits_in=float(material.conversation["in_bytes"]) * 8 / seconds,
        bits_out=float(material.conversation["out_bytes"]) * 8 / seconds,
        at_least=bool(material.lacks),
        who=who,
        why=why,
        where=where,
        lost=_losses(material),
        counts_drops=material.drops is not None,
    )


def _owner(material: Material) -> ExplainedOwner:
    if not len(material.sockets):
        return ExplainedOwner(reason=material.lacks_sockets)
    # The newest row may lack the owner: the socket closed, or was not asked for.
    owned = material.sockets[material.sockets["owner"] > 0]
    socket, owner = (owned if len(owned) else material.sockets)[-1], material.owner
    reason = Reason(int(socket["reason"]))
    if owner is None:
        return ExplainedOwner(reason="" if reason is Reason.OWNED else reason.about)
    texts = {
        name: owner[of].decode(errors="replace")
        for name, of in (
            ("process", "comm"), ("user", "user"), ("unit", "unit"),
            ("container", "container"), ("pod", "pod"),
        )
    }  # fmt: skip
    source = By(int(socket["by"])).about
    return ExplainedOwner(
        **texts,
        pid=int(owner["tgid"]),
        source=f"{source}; another one may own it" if reason is Reason.SEVERAL else source,
        holders=int(socket["holders"]),
    )


def _limit(material: Material) -> ExplainedLimit:
    sockets, spans = material.sockets, material.spans
    last = sockets[-1] if len(sockets) else np.zeros(1, SOCKET)[0]
    seconds: dict[str, float] = {}
    for limit, span_s in zip(sockets["limit"].tolist(), spans.tolist(), strict=True):
        if label := Limit(limit).label:
            seconds[label] = seconds.get(label, 0.0) + span_s
    longest = sorted(seconds.items(), key=lambda each: -each[1])
    total = max(float(spans.sum()), 1e-9)
    busy, rwnd, sndbuf = (float((sockets[name] * spans).sum() / total) for name in _SHARES)
    counts = {name: int(sockets[name].sum()) for name in ("segments", "sent", "received")}
    now = {
        name: int(last[name])
        for name in (
            "rtt_us", "queue_us", "delivery_rate", "cwnd", "unacked", "notsent", "rqueue",
        )
    }  # fmt: skip
    answer_us, unanswered = _answers(material)
    verdict, since_s, rest = _verdict(material, last, told=answer_us + unanswered > 0)
    return ExplainedLimit(
        limit=verdict.label,
        since_s=int(since_s),
        text=material.lacks
        if rest == "cut"
        else limit_text(last)
        if verdict == last["limit"]
        else verdict.label,
        minute=tuple(LimitSpan(label, round(each, 3)) for label, each in longest),
        floor_us=max(0, now["rtt_us"] - now["queue_us"]),
        retransmitted=retransmitted_share(sockets),
        lost=lost_share(sockets),
        unacked_bytes=int(last["unacked"]) * int(last["mss"]),
        samples=len(sockets),
        answer_us=answer_us,
        unanswered=unanswered,
        rest=rest,
        busy=busy,
        rwnd=rwnd,
        sndbuf=sndbuf,
        **now,
        **counts,
    )


def _verdict(material: Material, last: Row[SOCKET], *, told: bool) -> tuple[Limit, float, str]:
    """Return the verdict, the seconds since when it holds, and why no packet comes.

    `last` is the last row of dtype SOCKET, zero without one. `told`: times of answers are known, or
    that there are none. A conversation that rests, or waits for answers, has another verdict than
    its last window with packets.
    """
    sockets, flags, back = material.sockets, material.flags, material.flags_back
    verdict, since_s = Limit(int(last["limit"])), float(last["limit_s"])
    pause = material.pauses[-1] if material.pauses else Silence(0.0, False, False)
    ended = "reset" if back & RST else "closed" if flags & (FIN | RST) else ""
    silent_s = max(pause.seconds, material.uncounted_s if ended else 0.0)
    rests = silent_s >= _RESTS_S
    alone = not material.conversation["in_packets"] and not material.lacks
    failed = Limit(int(vain(*(np.array([each]) for each in (flags, back, alone, rests)))[0]))
    if failed or not len(sockets):  # Hardly anybody looks while such a socket is open.
        verdict = failed
    life_s = float(material.conversation["last_ns"] - material.conversation["first_ns"]) / 1e9
    waited = sum(_waits_s(material)) >= max(_HALF * life_s, _ANSWER_S)
    row = np.array([last])
    row["limit"] = verdict
    lately = np.array([sockets["received"].any()]), sockets["segments"].sum(keepdims=True)
    quiet = Limit(int(resting(row, *lately)[0]))
    if material.conversation["protocol"] == UDP and told:
        return verdict, since_s, ""
    if material.uncounted_s and not (rests and quiet):
        return Limit.UNKNOWN, material.uncounted_s, "cut"
    if rests and quiet and not (waited and ended == "closed"):
        rest = ended or ("asked" if quiet is Limit.SENDER else "idle")
        return Limit.IDLE if ended else quiet, silent_s, rest
    if waited and verdict in (Limit.UNKNOWN, Limit.APPLICATION, Limit.IDLE):
        verdict = Limit.SENDER
    return verdict, since_s, ""


def _answers(material: Material) -> tuple[int, int]:
    """Return the usual time until an answer, us, 0 if unknown, and the DNS queries without one."""
    queries = material.hops[material.hops["measured_by"] == MeasuredBy.DNS]
    took, lost = _waits_s(material), 0
    if material.conversation["protocol"] == UDP and len(queries):
        answered = queries[queries["received_ns"] > 0]
        took = ((answered["received_ns"] - answered["sent_ns"]) / 1e9).tolist()
        lost = int((queries["outcome"] == ProbeOutcome.UNANSWERED).sum())
    return (round(float(quantiles(np.array(took), (0.5,))[0]) * 1e6) if took else 0), lost


def _waits_s(material: Material) -> list[float]:
    """Return the times, s, until the far end answered data of this host after a pause."""
    waits = [each.seconds for each in material.pauses if each.asked and each.answered]
    return [each for each in waits if each >= _ANSWER_S]


def _place_of(
    material: Material, describe: Describe, why: ExplainedLimit, untraced: str
) -> ExplainedPlace:
    vain = why.limit == Limit.NO_ANSWER.label
    # Hops behind a break have answered before.
    times = times_of(material, why.since_s if vain and why.sent else 0)
    nothing = not material.conversation["in_packets"] and not material.lacks
    fault = fault_of(material, times) if vain or (nothing and not why.limit) else ""
    place = 0, ""
    if (loop := going_on(material.findings, PathRowKind.LOOP)) is not None:
        fault, place = loop_text(loop), (int(loop["hop"]), address_of(loop, "responder"))
    held = why.limit in _HELD
    queues = queues_of(material, times, held=held)
    hops = tuple(_hops(times, queues, int(material.conversation["version"]), describe))
    loss = going_on(material.findings, PathRowKind.LOSS)
    if fault or not times.last:
        silent_s = material.pauses[-1].seconds if material.pauses else 0.0
        unknown = "no answer from the path yet"
        if silent_s >= _RESTS_S:
            unknown = f"the flow has sent nothing for {age(silent_s)}"
        return ExplainedPlace(*place, fault=fault, text=fault or untraced or unknown, hops=hops)
    if why.limit == Limit.LOSS.label and loss is not None:
        hop = times.last if loss["hop"] == DESTINATION_HOP else int(loss["hop"])
        return _at(hop, 0.0, "packets are lost", hops)
    own = _own_queue(material) if why.limit == Limit.QUEUE.label else ""
    if own and (queues.argmax() <= _NEAR or queues.max() < _HALF * why.queue_us * 1e3):
        text = f"{duration(why.queue_us / 1e6)} of queue in this host's own {own}, before hop 1"
        return ExplainedPlace(1, queue_ms=why.queue_us / 1e3, own=own, text=text, hops=hops)
    if queues.any():
        subject = f"{duration(float(queues.max()) / 1e9)} of queue"
        side = side_of(times.trips)
        return _at(int(queues.argmax()), float(queues.max()) / 1e6, subject, hops, side)
    text = NO_ROUTER if times.arrived and times.last == 1 else _NO_QUEUE
    if not times.arrived:
        text += f"; the path behind hop {times.last} does not answer"
    return ExplainedPlace(text=text, hops=hops)


def _own_queue(material: Material) -> str:
    """Return the queue of this host's interface, such as `tbf of eth0`, if it holds most of the
    connection's delay; else an empty text."""
    rows = material.sockets[material.sockets["limit"] == Limit.QUEUE][-_BACKLOGS:]
    if len(rows):
        rate = max(int(rows["delivery_rate"][-1]), 1)
        if quantiles(rows["backlog"], (0.5,))[0] * 1e6 / rate >= _HALF * rows["queue_us"][-1]:
            return f"{rows['qdisc'][-1].decode()} of {material.interface}"
    return ""


def _at(
    hop: int, queue_ms: float, subject: str, hops: Sequence[ExplainedHop],
    side: QueueSide = QueueSide.EITHER,
) -> ExplainedPlace:  # fmt: skip
    routers = {each.hop: each.router for each in hops}
    before = next((routers[n] for n in range(hop - 1, 0, -1) if routers.get(n)), "")
    router = routers.get(hop, "")
    ends = f"between {before or 'this host'} and {router or 'the next router'}"
    way = side.words if side else ""
    beside = next(
        ("measured beside the flow" for each in hops if each.hop == hop and each.beside), ""
    )
    text = ", ".join(filter(None, (f"{subject} at hop {hop}", ends, way, beside)))
    return ExplainedPlace(hop, router, before, queue_ms, way, text=text, hops=tuple(hops))


def _hops(
    times: HopTimes, queues: np.ndarray[Any, Any], version: int, describe: Describe
) -> Iterable[ExplainedHop]:
    for hop in range(1, times.last + 1):
        raw, of = times.responders[hop], times.all[hop]
        router = address_text(raw.tobytes(), version) if raw.any() else ""
        facts = describe(router) if router else None
        median_ns = int(times.recent["median_ns"][hop])
        yield ExplainedHop(
            hop, router, (facts.name or facts.network) if facts else "",
            None if median_ns < 0 else round(median_ns / 1e6, 3),
            round(float(queues[hop]) / 1e6, 3),
            int(of["answered"]), int(of["lost"]), bool(times.beside[hop]),
        )  # fmt: skip


def _losses(material: Material) -> tuple[ExplainedLoss, ...]:
    of_socket = int(material.sockets["drops"].sum())
    found = [ExplainedLoss("the receive buffer was full", of_socket, True)] if of_socket else []
    found += [
        ExplainedLoss(reason.about, loss.packets, False)
        for reason, loss in material.losses.items()
        if reason.is_loss and loss.packets
    ]
    found += [
        ExplainedLoss(f"the kernel dropped them ({each.reason})", each.packets, True)
        for each in material.drops or ()
    ]
    return tuple(found)
