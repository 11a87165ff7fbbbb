"""Values of a report as short texts, for tables that people read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from app.outputs.networks import RouterFacts
from app.outputs.report.model import (
    OwnProbes,
    PathReport,
    ReportedDestination,
    ReportedEvent,
    ReportedHop,
    ReportedLoss,
    ReportedRouter,
    ReportedTimes,
    ReportedTrips,
)
from app.outputs.view import iso
from bpf.quantities import MISSING, counted, milliseconds, percent

TITLES = ("loss %", "95 %", "sent", "last", "med", "min", "p95", "max", "jit")
"""Columns of numbers; times are in milliseconds."""
UNITS = "Times are in ms; 95 %: limits of the loss rate; med: median; jit: jitter."
_SELDOM = 0.1
"""A router that leaves more than this share of probes unanswered answers seldom."""
_MANY = 8
"""Most routers of one hop that are listed."""


class ReportLine(NamedTuple):
    """One line of a destination's table."""

    hop: str
    label: str
    name: str
    """Of the address in `label`; may be empty."""
    numbers: tuple[str, ...]
    """As TITLES."""
    remarks: tuple[str, ...]


def lines(destination: ReportedDestination) -> Iterator[ReportLine]:
    """Lines of all hops and of the destination."""
    for hop in destination.hops:
        yield from _hop(hop)
    for trips in destination.trips:
        yield _trips(destination, trips)
    if destination.hops and not destination.trips:
        numbers = ("-", "-", "", *_times(ReportedTimes()))
        name = destination.facts.name
        yield ReportLine("end", destination.address, name, numbers, (destination.arrival,))


def _hop(hop: ReportedHop) -> Iterator[ReportLine]:
    marks = [*hop.changes]
    if hop.beside:
        marks.append("UDP: measured beside the flow")
    if hop.is_stateful:
        marks.append("NAT or firewall behind it")
    if hop.cleared and hop.routers:
        seldom = (hop.loss.share or 0) > _SELDOM
        marks.append("answers seldom" if seldom else "some of its answers are missing")
    counts = (*_loss(hop.loss), str(hop.sent))
    if not hop.routers:
        numbers = (*counts, *_times(ReportedTimes()))
        yield ReportLine(str(hop.hop), "no answer", "", numbers, tuple(marks))
    for place, router in enumerate(hop.routers[:_MANY]):
        share = [_share(router)] if len(hop.routers) > 1 else []
        remarks = (*share, *_about(router.facts), *_labels(router), *(marks if not place else ()))
        numbers = (*(counts if not place else ("", "", "")), *_times(router.times))
        number = "" if place else str(hop.hop)
        yield ReportLine(number, router.address, router.facts.name, numbers, remarks)
    if len(hop.routers) > _MANY:
        more = f"and {len(hop.routers) - _MANY} more"
        yield ReportLine("", more, "", ("",) * len(TITLES), ())


def _trips(destination: ReportedDestination, trips: ReportedTrips) -> ReportLine:
    numbers = (*_loss(trips.loss), str(trips.loss.ended), *_times(trips.times))
    method = f"measured by {trips.measured_by.label}"
    return ReportLine("end", destination.address, destination.facts.name, numbers, (method,))


def _about(facts: RouterFacts) -> list[str]:
    return [facts.network] if facts.network else []


def _labels(router: ReportedRouter) -> list[str]:
    return [f"MPLS {' '.join(router.labels)}"] if router.labels else []


def _share(router: ReportedRouter) -> str:
    return f"{percent(router.share)} of answers, {counted(router.flows, 'flow')}"


def _loss(loss: ReportedLoss) -> tuple[str, str]:
    if loss.share is None:
        return "-", "-"
    return _percent(loss.share), f"{_percent(loss.low)}-{_percent(loss.high)}"


def _percent(share: float) -> str:
    return percent(share).removesuffix(" %")


def _times(times: ReportedTimes) -> tuple[str, ...]:
    values = (
        times.last_ns, times.median_ns, times.min_ns, times.p95_ns, times.max_ns, times.jitter_ns,
    )  # fmt: skip
    return tuple(MISSING if each < 0 else milliseconds(each / 1e9) for each in values)


def title(destination: ReportedDestination) -> str:
    """Address, name and network of the destination."""
    name = f" ({destination.facts.name})" if destination.facts.name else ""
    return ", ".join([f"{destination.address}{name}", *_about(destination.facts)])


def summary(destination: ReportedDestination) -> str:
    """The counts of a destination in a sentence."""
    many = "more than " if destination.more_flows else ""
    flows = f"{many}{counted(destination.flows, 'flow')}"
    own = f", with an own flow ({destination.own_flow})" if destination.own_flow else ""
    return f"{counted(destination.packets, 'packet')} of applications, {flows} probed{own}"


def probes(own: OwnProbes) -> str:
    """Probes and answers in a line."""
    parts = [
        f"{own.sent} sent{_bytes(own.sent_bytes)}",
        f"{own.answered} answered{_bytes(own.answered_bytes)}",
        f"{own.lost} lost",
    ]
    rare = {
        "unanswered without loss": own.cleared,
        "in flight at the end": own.in_flight,
        "beyond the path": own.beyond_path,
        "dropped by this host": own.dropped,
        "echo requests for hidden hops": own.finder,
        "altered on the way": own.altered,
        f"unmatched answer{'' if own.unmatched == 1 else 's'}": own.unmatched,
    }
    return ", ".join([*parts, *(f"{count} {what}" for what, count in rare.items() if count)])


def heading(report: PathReport) -> str:
    """Interface and time of the whole report."""
    start, end = (
        iso(each)[:19].replace("T", " ") for each in (report.start_utc_ns, report.end_utc_ns)
    )
    if start[:10] == end[:10]:
        end = end[11:]
    return f"Paths by {report.interface}, {start} to {end} UTC"


def clock(event: ReportedEvent, report: PathReport) -> str:
    """`12:30:05`; with a date if the run lasts beyond midnight."""
    text = iso(event.utc_ns)[:19].replace("T", " ")
    same_day = iso(report.start_utc_ns)[:10] == iso(report.end_utc_ns)[:10]
    return text[11:] if same_day else text


def _bytes(count: int) -> str:
    return f" ({counted(count, 'byte')})" if count else ""
