"""From the tables of the last minute to the explanation of one conversation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from app.explain.material import Material, ends_of, gather
from app.explain.model import (
    ExplainedHop,
    ExplainedLimit,
    ExplainedLoss,
    ExplainedOwner,
    ExplainedPlace,
    Explanation,
    LimitSpan,
)
from app.explain.place import HopTimes, loss_of, queues_of, times_of
from app.explain.words import sentence
from app.outputs.routers import Describe, nothing_known
from probes.filter.network import address_text
from probes.path.events.words import address_of, going_on, loop_text
from probes.path.records import DESTINATION_HOP, PathRowKind
from probes.snapshot import Snapshot
from probes.sockets.records import By, Limit, Reason
from probes.sockets.words import limit_text, span


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
    where = _place(material, describe, why, untraced)
    seconds = max(material.seconds, 1e-9)
    return Explanation(
        sentence=sentence(flow, who, why, where),
        flow=flow,
        seconds=material.seconds,
        bits_in=float(material.conversation["in_bytes"]) * 8 / seconds,
        bits_out=float(material.conversation["out_bytes"]) * 8 / seconds,
        who=who,
        why=why,
        where=where,
        lost=_losses(material),
        counts_drops=material.drops is not None,
    )


def _owner(material: Material) -> ExplainedOwner:
    if not len(material.sockets):
        return ExplainedOwner()
    socket, owner = material.sockets[-1], material.owner
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
    sockets = material.sockets
    if not len(sockets):
        return ExplainedLimit()
    last, spans = sockets[-1], material.spans
    seconds: dict[str, float] = {}
    for limit, span_s in zip(sockets["limit"].tolist(), spans.tolist(), strict=True):
        if label := Limit(limit).label:
            seconds[label] = seconds.get(label, 0.0) + span_s
    longest = sorted(seconds.items(), key=lambda each: -each[1])
    total = max(float(spans.sum()), 1e-9)
    sent = max(1, int(sockets["segments"].sum()))
    busy, rwnd, sndbuf = (
        float((sockets[name] * spans).sum() / total) for name in ("busy", "rwnd", "sndbuf")
    )
    counts = {name: int(sockets[name].sum()) for name in ("segments", "sent", "received")}
    now = {
        name: int(last[name])
        for name in (
            "rtt_us", "queue_us", "delivery_rate", "cwnd", "unacked", "notsent", "rqueue",
        )
    }  # fmt: skip
    return ExplainedLimit(
        limit=Limit(int(last["limit"])).label,
        since_s=int(last["limit_s"]),
        text=limit_text(last),
        minute=tuple(LimitSpan(label, round(each, 3)) for label, each in longest),
        floor_us=max(0, now["rtt_us"] - now["queue_us"]),
        retransmitted=min(1.0, int(sockets["retransmitted"].sum()) / sent),
        unacked_bytes=int(last["unacked"]) * int(last["mss"]),
        samples=len(sockets),
        busy=busy,
        rwnd=rwnd,
        sndbuf=sndbuf,
        **now,
        **counts,
    )


def _place(
    material: Material, describe: Describe, why: ExplainedLimit, untraced: str
) -> ExplainedPlace:
    times = times_of(material)
    queues = queues_of(material, times)
    version = int(material.conversation["version"])
    hops = tuple(_hops(times, queues, version, describe))
    if not times.last:
        return ExplainedPlace(text=untraced or "no answer from the path yet")
    loop = going_on(material.findings, PathRowKind.LOOP)
    if loop is not None:
        router, hop = address_of(loop, "responder"), int(loop["hop"])
        return ExplainedPlace(hop, router, text=loop_text(loop), hops=hops)
    loss = loss_of(material)
    if why.limit == Limit.LOSS.label and loss is not None:
        hop = times.last if loss["hop"] == DESTINATION_HOP else int(loss["hop"])
        return _at(hop, 0.0, "packets are lost", hops)
    if queues.any():
        hop = int(queues.argmax())
        amount = span(float(queues[hop]) / 1e3)
        return _at(hop, float(queues[hop]) / 1e6, f"{amount} of queue", hops)
    text = "no queue at any hop that answers"
    if not times.arrived:
        text += f"; the path behind hop {times.last} does not answer"
    return ExplainedPlace(text=text, hops=hops)


def _at(hop: int, queue_ms: float, subject: str, hops: Sequence[ExplainedHop]) -> ExplainedPlace:
    routers = {each.hop: each.router for each in hops}
    before = next((routers[n] for n in range(hop - 1, 0, -1) if routers.get(n)), "")
    router = routers.get(hop, "")
    ends = f"between {before or 'this host'} and {router or 'the next router'}"
    return ExplainedPlace(
        hop, router, before, queue_ms, f"{subject} at hop {hop}, {ends}", tuple(hops)
    )


def _hops(
    times: HopTimes, queues: np.ndarray[Any, Any], version: int, describe: Describe
) -> Iterable[ExplainedHop]:
    for hop in range(1, times.last + 1):
        raw = times.responders[hop]
        router = address_text(raw, version) if raw else ""
        facts = describe(router) if router else None
        median = float(times.median_ns[hop])
        yield ExplainedHop(
            hop, router, (facts.name or facts.network) if facts else "",
            None if np.isnan(median) else round(median / 1e6, 3),
            round(float(queues[hop]) / 1e6, 3),
            int(times.answered[hop]), int(times.lost[hop]),
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
