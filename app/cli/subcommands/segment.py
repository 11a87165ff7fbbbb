"""`probedeck segment`: loss and one-way delay between two hosts."""

from __future__ import annotations

import json
import math
import threading
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

from app.cli.command import GroupedCommand, argument, option, print_table
from app.cli.decorator import takes
from bpf.errors import UsageError
from probes.segment.options import ComparisonOptions, SegmentOptions

if TYPE_CHECKING:
    from app.api.address import Remote
    from app.fleet.segment_run import Delay, Passage, SegmentReport

EXAMPLES = """\b
Examples:
  probedeck segment http://10.0.0.1:8765 http://10.0.0.2:8765 'host:10.0.0.1 host:10.0.0.2'
  probedeck segment ams fra 'net:192.0.2.0/24 proto:tcp' --hosts hosts.toml --ratio 1/64 --for 60"""
_STEP_S = 0.25
_MOST_NAMES = 22
"""Characters of both hosts together that fit into the heads of the table."""


@click.command(cls=GroupedCommand, epilog=EXAMPLES)
@argument("first", "HOST_A", "URL of a controller, or the name of a host in the file of --hosts.")
@argument("second", "HOST_B", "The other one.")
@argument("filter", "FILTER", "Packets that pass both hosts; '' for all.")
@takes(SegmentOptions, ComparisonOptions)
@option("--hosts", metavar="FILE", help="File of a fleet with names, tokens and certificates.")
@option("--token", metavar="FILE", help="File with the token of both APIs.")
@option("--ca", metavar="FILE", usual="the system's", help="Certificates to trust.")
@option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def segment(
    options: SegmentOptions, comparison: ComparisonOptions, first: str, second: str,
    filter: str, hosts: str, token: str, ca: str, as_json: bool,  # noqa: A002
) -> None:  # fmt: skip
    """Measure loss, order and one-way delay between two hosts.

    Both controllers choose the same packets by a keyed hash, and record when the packets pass the
    watched interfaces. The difference is the loss of the path between them, exact to the packet.
    The path must not translate addresses (NAT), nor split packets.
    """
    comparison.check()
    # Imported here: other commands start without numpy.
    from app.api.client import RemoteController
    from app.fleet.segment_run import SegmentRun, with_key
    from app.run.item_loop import on_signals

    options = with_key(replace(options, capture=filter))
    options.check()
    ended = threading.Event()
    on_signals(ended.set)
    remotes = [_remote(each, hosts, token, ca) for each in (first, second)]
    with (
        RemoteController(remotes[0]) as one,
        RemoteController(remotes[1]) as other,
        SegmentRun((one, other), options, comparison.horizon) as run,
    ):
        end = time.monotonic() + comparison.seconds
        while (left := end - time.monotonic()) > 0 and not ended.wait(min(left, _STEP_S)):
            run.look_at_clocks()
            run.report()
        report = run.report()
    if as_json:
        print(json.dumps(_finite(asdict(report)), indent=2))
        return
    print_table(_table(report, first, second))
    for line in _notes(report, options.ratio, comparison.horizon, first, second):
        print(line)


def _remote(host: str, file: str, token: str, ca: str) -> Remote:
    from app.api.address import Remote
    from app.fleet.hosts import load

    if not file:
        return Remote(host, token, ca)
    known = {each.name: each.remote for each in load(file).hosts}
    if host not in known:
        raise UsageError(f"{file} has no host {host!r}", hint=f"it has {', '.join(known)}")
    return known[host]


def _finite(value: object) -> object:
    """JSON has neither NaN nor infinity."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _table(report: SegmentReport, first: str, second: str) -> list[tuple[str, ...]]:
    there, back = report.there, report.back
    one, other = there.counts, back.counts
    a, b = (first, second) if len(first + second) <= _MOST_NAMES else ("A", "B")
    rows: list[tuple[str, ...]] = [
        ("", f"{a} -> {b}", f"{b} -> {a}"),
        ("pass the filter", f"{there.sent_packets:,}", f"{back.sent_packets:,}"),
        ("chosen", f"{one.sent:,}", f"{other.sent:,}"),
        ("delivered", f"{one.delivered:,}", f"{other.delivered:,}"),
        ("lost", _share(one.lost, one.loss), _share(other.lost, other.loss)),
    ]
    for name, words in _RARE.items():
        numbers = getattr(one, name), getattr(other, name)
        if any(numbers):
            rows.append((words, *(f"{number:,}" for number in numbers)))
    error = 0.0 if report.one_clock else report.error_s
    rows.extend(
        (f"delay, {words}", *(_milliseconds(each, name, error) for each in (there, back)))
        for name, words in _DELAYS.items()
        if there.delay or back.delay
    )
    return rows


_RARE = {
    "unknown": "unknown",
    "in_flight": "in flight",
    "early": "not compared: early",
    "late": "not compared: late",
    "missing": "not recorded",
    "duplicated": "duplicated",
    "reordered": "reordered",
    "untold": "arrived, unknown",
    "unsent": "arrived, not sent",
}
"""Words of the counts that stand in the table only if one is more than 0."""
_DELAYS = {"least": "least", "median": "median", "p95": "95 %", "p99": "99 %", "most": "most"}


def _share(count: int, share: float) -> str:
    return f"{count:,}" if math.isnan(share) else f"{count:,} ({share:.3%})"


def _milliseconds(passage: Passage, name: str, error: float) -> str:
    delay: Delay | None = passage.delay
    if delay is None:
        return "-"
    text = f"{getattr(delay, name) * 1e3:.3f} ms"
    return f"{text} +- {error * 1e3:.3f}" if error else text


def _notes(report: SegmentReport, ratio: int, horizon: float, first: str, second: str) -> list[str]:
    notes = [f"A: {first}", f"B: {second}"] if len(first + second) > _MOST_NAMES else []
    if ratio > 1:
        notes.append(f"One of {ratio} packets is chosen; the counts are of chosen packets.")
    if report.one_clock:
        notes.append("Both hosts read one clock: delays are exact.")
    elif math.isfinite(report.error_s):
        offset, error = report.offset_s * 1e3, report.error_s * 1e3
        notes.append(f"The clocks differ by {offset:.3f} ms +- {error:.3f}; so do the delays.")
    else:
        notes.append("A clock was set during the measurement: delays are unknown.")
    for passage in (report.there, report.back):
        counts = passage.counts
        if counts.sent and not counts.delivered:
            notes.append(
                f"Of {counts.sent:,} packets none arrived within {horizon:g} s. Does the filter "
                "choose packets that pass both hosts, and does no NAT lie between them?"
            )
        if counts.early or counts.late:
            notes.append(
                "Not compared: early packets were sent before the other host recorded, late ones "
                f"in the last {horizon:g} s and in the window that was open at the end."
            )
        if counts.unknown or counts.missing or counts.untold:
            notes.append(
                "A host did not record everything: unknown packets are neither delivered nor lost."
            )
    return list(dict.fromkeys(notes))
