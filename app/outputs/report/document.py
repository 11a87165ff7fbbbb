"""A report as one JSON object. docs/paths.md describes its keys."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from app.outputs.networks import RouterFacts
from app.outputs.report.model import (
    PathReport,
    ReportedDestination,
    ReportedEvent,
    ReportedHop,
    ReportedLoss,
    ReportedRouter,
    ReportedTimes,
)
from app.outputs.view import iso

SCHEMA = "path-report/1"
"""The number counts changes of keys; new keys do not change it."""


def render(report: PathReport) -> str:
    """Return the report, with a line end."""
    return json.dumps(document(report), indent=2) + "\n"


def document(report: PathReport) -> dict[str, Any]:
    """Return the object."""
    return {
        "schema": SCHEMA,
        "interface": report.interface,
        "start": iso(report.start_utc_ns),
        "end": iso(report.end_utc_ns),
        "destinations": [_destination(each) for each in report.destinations],
        "events": [_event(each) for each in report.events],
        "forgotten_events": report.forgotten_events,
    }


def _destination(found: ReportedDestination) -> dict[str, Any]:
    own = found.probes
    return {
        "address": found.address,
        **_facts(found.facts),
        "packets": found.packets,
        "own_flow": found.own_flow or None,
        "flows": found.flows,
        "more_flows": found.more_flows,
        "hops": [_hop(each) for each in found.hops],
        "end_to_end": [
            {
                "measured_by": each.measured_by.label,
                "samples": each.loss.ended,
                **_loss(each.loss),
                **_times(each.times),
            }
            for each in found.trips
        ],
        "arrival": None if found.trips else found.arrival,
        "probes": {name: getattr(own, name) for name in own.__slots__},
        "path_mtu": asdict(found.path_mtu) if found.path_mtu else None,
        "notes": list(found.notes),
        "events": [_event(each) for each in found.events],
    }


def _hop(found: ReportedHop) -> dict[str, Any]:
    return {
        "hop": found.hop,
        "sent": found.sent,
        "answered": found.loss.ended - found.loss.lost,
        **_loss(found.loss),
        "cleared": found.cleared,
        "beside": found.beside,
        "stateful": found.is_stateful,
        "changes": list(found.changes),
        "routers": [_router(each) for each in found.routers],
    }


def _router(found: ReportedRouter) -> dict[str, Any]:
    return {
        "address": found.address,
        **_facts(found.facts),
        "answered": found.answered,
        "share": round(found.share, 6),
        "flows": found.flows,
        **_times(found.times),
        "labels": list(found.labels),
    }


def _facts(facts: RouterFacts) -> dict[str, Any]:
    return {
        "name": facts.name or None,
        "asn": facts.asn or None,
        "as_name": facts.as_name or None,
        "country": facts.country or None,
    }


def _loss(found: ReportedLoss) -> dict[str, Any]:
    share = None if found.share is None else round(found.share, 6)
    limits = {"loss_low": round(found.low, 6), "loss_high": round(found.high, 6)}
    return {"lost": found.lost, "loss": share, **limits}


def _times(times: ReportedTimes) -> dict[str, Any]:
    values = ((name, getattr(times, name)) for name in times.__slots__)
    return {name: None if value < 0 else value for name, value in values}


def _event(found: ReportedEvent) -> dict[str, Any]:
    return {"time": iso(found.utc_ns), "severity": found.severity, "text": found.text}
