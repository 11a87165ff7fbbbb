"""The report of a trace: its sums, and the same for people and programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from app.outputs.networks import RouterFacts
from app.outputs.report import cells, document, markdown, text
from app.outputs.report.model import PathReport, build
from app.outputs.report.tally import MAX_EVENTS, MAX_FLOWS, PathTally, TimeTally
from probes.path.records import (
    DESTINATION_HOP,
    HOP,
    HOPS_TABLE,
    PATH,
    PATHS_TABLE,
    Altered,
    MeasuredBy,
    PathRowKind,
    ProbeOutcome,
)
from probes.path.traced import Traced
from probes.snapshot import Event, Snapshot
from tests.support import paths

MS = 1_000_000
ROUTER = "198.51.100.7"
OTHER = "198.51.100.9"
LONG = "2001:db8:1234:5678:9abc:def0:1234:5678"
FACTS = {
    ROUTER: RouterFacts("r7.example.net", 64500, "Example | Net", "DE"),
    "192.0.2.2": RouterFacts("www.example.org"),
}


def rows(
    hop: int, rtts: list[float], *, lost: int = 0, router: str = ROUTER, port: int = 40000,
    method: MeasuredBy = MeasuredBy.PROBE, start: int = 0,
) -> Any:  # fmt: skip
    """Answered probes with these times in milliseconds, 10 ms apart, then lost ones."""
    count = len(rtts) + lost
    made = paths.rows_of(HOP, count)
    made["hop"], made["source_port"], made["measured_by"] = hop, port, method
    made["sent_ns"] = paths.END - 10**9 + (start + np.arange(count)) * 10 * MS
    made["outcome"][len(rtts) :] = ProbeOutcome.UNANSWERED
    there = slice(0, len(rtts))
    made["received_ns"][there] = made["sent_ns"][there] + np.array(rtts) * MS
    made["responder"][there] = paths.packed(router)
    return made


def report(
    *parts: Any, events: tuple[Event, ...] = (), facts: Mapping[str, RouterFacts] = FACTS,
    **state: Any,
) -> PathReport:  # fmt: skip
    tally = PathTally()
    for part in parts:
        tally.add(part if isinstance(part, Snapshot) else paths.table(HOPS_TABLE, part))
    for event in events:
        tally.add(event)
    given = Traced("192.0.2.2", (), 0, (), (), 500, 100, 90)
    traced = Traced(**{name: getattr(given, name) for name in given.__slots__} | state)
    return build(tally, [traced], lambda address: facts.get(address, RouterFacts()))


def test_times_are_exact_to_a_thousandth() -> None:
    """Compared with numpy, for many orders of magnitude and in parts."""
    random = np.random.default_rng(1)
    times = (10 ** random.uniform(3, 10, 9000)).astype("i8")
    tally = TimeTally()
    for part in np.array_split(times, 7):
        tally.add(part, np.arange(len(part)), np.zeros(len(part), "i8"))
    assert (tally.count, tally.min_ns, tally.max_ns) == (9000, times.min(), times.max())
    for fraction in (0.0, 0.05, 0.5, 0.95, 1.0):
        exact = np.quantile(times, fraction, method="inverted_cdf")
        assert tally.quantile(fraction) == pytest.approx(exact, rel=1.0e-3)
    assert TimeTally().quantile(0.5) == TimeTally().jitter_ns == -1


def test_jitter_is_of_consecutive_packets_of_one_flow() -> None:
    tally = TimeTally()
    tally.add(np.array([10, 14, 12, 900]), np.array([1, 2, 3, 2]), np.array([0, 0, 0, 1]))
    assert tally.jitter_ns == 3
    assert tally.last_ns == 12


def test_a_hop_has_its_loss_and_its_times() -> None:
    made = report(rows(1, [1.0, 3.0, 2.0]), rows(1, [5.0], lost=1, start=3))
    (destination,) = made.destinations
    (hop,) = destination.hops
    (router,) = hop.routers
    assert (hop.hop, hop.sent, hop.loss.lost, hop.loss.ended) == (1, 5, 1, 5)
    assert hop.loss.low == pytest.approx(0.036, abs=1e-3)
    assert hop.loss.high == pytest.approx(0.624, abs=1e-3)
    assert (router.address, router.facts.asn, router.answered) == (ROUTER, 64500, 4)
    assert (router.share, router.flows) == (1.0, 1)
    times = router.times
    assert (times.last_ns, times.min_ns, times.max_ns) == (5 * MS, 1 * MS, 5 * MS)
    assert times.median_ns == pytest.approx(2 * MS, rel=1e-3)
    assert times.jitter_ns == 2 * MS
    assert (destination.packets, destination.flows) == (500, 1)
    own = destination.probes
    assert (own.sent, own.answered, own.lost, own.cleared) == (5, 4, 1, 0)


def test_routers_of_a_hop_share_it() -> None:
    parts = [rows(2, [1.0], port=port) for port in (1, 2, 3)]
    made = report(*parts, rows(2, [9.0], port=4, router=OTHER))
    (hop,) = made.destinations[0].hops
    assert [(each.address, each.share, each.flows) for each in hop.routers] == [
        (ROUTER, 0.75, 3), (OTHER, 0.25, 1),
    ]  # fmt: skip
    first, second, _ = cells.lines(made.destinations[0])
    assert first.remarks[:2] == ("75.0 % of answers, 3 flows", "AS64500 Example | Net, DE")
    assert (second.hop, second.label, second.remarks) == ("", OTHER, ("25.0 % of answers, 1 flow",))
    assert second.numbers[:3] == ("", "", "")


def test_many_routers_of_a_hop_are_cut_short() -> None:
    parts = [rows(2, [1.0], router=f"198.51.100.{n}") for n in range(12)]
    *_, last, _ = cells.lines(report(*parts).destinations[0])
    assert last.label == "and 4 more"


def test_silent_hops_belong_to_the_path_as_far_as_it_is_known() -> None:
    parts = rows(1, [1.0]), rows(2, [], lost=9), rows(3, [3.0]), rows(4, [], lost=9)
    assert [hop.hop for hop in report(*parts).destinations[0].hops] == [1, 2, 3]
    made = report(*parts, length=4)
    assert [hop.hop for hop in made.destinations[0].hops] == [1, 2, 3, 4]
    lines = list(cells.lines(made.destinations[0]))
    labels = [ROUTER, "no answer", ROUTER, "no answer", "192.0.2.2"]
    assert [line.label for line in lines] == labels
    assert lines[1].numbers == ("100", "70.1-100", "9", "-", "-", "-", "-", "-", "-")


def test_hops_beside_the_flow_are_marked_and_no_probes() -> None:
    """The first router is silent, and no later one answers UDP."""
    silent = rows(1, [], lost=9)
    silent["outcome"] = ProbeOutcome.BEYOND_PATH
    beside = rows(2, [2.0, 2.0], lost=1, method=MeasuredBy.ECHO_BESIDE_THE_FLOW)
    note = "the first router does not answer"
    (destination,) = report(silent, beside, notes=(note,)).destinations
    first, second, _ = cells.lines(destination)
    assert (first.label, first.numbers[:3], first.remarks) == ("no answer", ("-", "-", "9"), ())
    assert (second.label, second.numbers[0], second.numbers[2]) == (ROUTER, "33.3", "3")
    assert "UDP: measured beside the flow" in second.remarks
    assert (destination.probes.sent, destination.probes.answered) == (9, 0)
    assert f"note: {note}" in text.render(report(silent, beside, notes=(note,)))


def test_probes_beyond_the_path_or_never_sent_are_no_probes_of_a_hop() -> None:
    made = rows(1, [1.0, 1.0, 1.0, 1.0])
    made["outcome"][1:] = [ProbeOutcome.BEYOND_PATH, ProbeOutcome.DROPPED, ProbeOutcome.OVERRUN]
    (destination,) = report(made).destinations
    assert destination.hops[0].sent == 2  # one was overrun
    assert destination.hops[0].loss.ended == 1
    own = destination.probes
    assert (own.sent, own.beyond_path, own.dropped) == (3, 1, 1)


def test_the_destinations_own_row_clears_a_router_that_answers_seldom() -> None:
    """The last router's number never stands under the destination's name."""
    limited = rows(1, [1.0] * 20, lost=80)
    assert not report(limited).destinations[0].hops[0].cleared
    trips = rows(DESTINATION_HOP, [13.0] * 99, lost=1, method=MeasuredBy.TCP_ACK)
    more = rows(DESTINATION_HOP, [12.0], method=MeasuredBy.TCP_HANDSHAKE)
    (destination,) = report(limited, trips, more).destinations
    assert destination.hops[0].cleared
    assert (destination.probes.sent, destination.probes.cleared) == (100, 80)
    assert [(each.measured_by, each.loss.lost, each.loss.ended) for each in destination.trips] == [
        (MeasuredBy.TCP_HANDSHAKE, 0, 1), (MeasuredBy.TCP_ACK, 1, 100),
    ]  # fmt: skip
    hop, *_, end = cells.lines(destination)
    assert hop.remarks[-1] == "answers seldom"
    assert (end.hop, end.label, end.remarks) == ("end", "192.0.2.2", ("measured by tcp ack",))
    assert end.numbers[3:6] == ("13.0", "13.0", "13.0")


def test_answers_without_a_time_are_no_losses_and_no_times() -> None:
    """A segment that was sent again is answered, nobody knows when it was sent."""
    trips = rows(DESTINATION_HOP, [13.0] * 3, lost=1, method=MeasuredBy.TCP_ACK)
    trips["received_ns"][0] = 0
    (found,) = report(trips).destinations[0].trips
    assert (found.loss.lost, found.loss.ended) == (1, 4)
    assert found.times.min_ns == 13 * MS


def test_another_tracer_is_noted() -> None:
    assert report(notes=("NAT behind hop 2",), foreign=7).destinations[0].notes == (
        "NAT behind hop 2",
        "another tracer on this host sent 7 probes, which count nowhere",
    )


def test_changes_by_middleboxes_stand_at_their_hop() -> None:
    changes = paths.rows_of(PATH, 3)
    changes["kind"] = [PathRowKind.MARKING, PathRowKind.MARKING, PathRowKind.ALTERED]
    changes["hop"] = 2
    changes["amount"] = [184 << 8 | 2, 184 << 8 | 2, Altered.CHECKSUM]
    made = report(rows(1, [1.0]), rows(2, [1.0]), paths.table(PATHS_TABLE, changes))
    assert [hop.changes for hop in made.destinations[0].hops] == [
        (), ("DSCP 46 to 0, ECN 0 to 2", "checksum changed"),
    ]  # fmt: skip


def test_labels_are_those_of_the_last_answer() -> None:
    made = rows(1, [1.0, 1.0])
    made["label_count"][0], made["labels"][0, 0] = 1, 24001 << 12 | 1 << 8 | 1
    line, _ = cells.lines(report(made).destinations[0])
    assert line.remarks[-1] == "MPLS 24001:0:1:1"


def test_events_stand_with_their_destination() -> None:
    told = (
        Event.now("warning", "path", "192.0.2.2 hop 3: queue of 100 ms"),
        Event.now("info", "path", "192.0.2.2: no probes of tcp 1>2"),
        Event.now("info", "eth0", "tc egress: tcx"),
        Event.now("warning", "path", "probes are dropped"),
    )
    made = report(events=told)
    assert [each.text for each in made.destinations[0].events] == [
        "hop 3: queue of 100 ms", "no probes of tcp 1>2",
    ]  # fmt: skip
    assert [each.text for each in made.events] == ["probes are dropped"]
    many = report(events=told[:1] * (MAX_EVENTS + 3))
    assert many.forgotten_events == 3
    assert "3 earlier events are left out." in text.render(many)


def test_a_destination_that_answers_probes_is_the_end_and_no_hop() -> None:
    """It answers at every hop from its own on; a longer branch has further routers. Single probes
    to nearer hops had no answer before."""
    parts = [rows(hop, [1.0]) for hop in (1, 2)]
    ends = [rows(hop, [5.0], router="192.0.2.2") for hop in (5, 6, 7)]
    early = [rows(hop, [], lost=1) for hop in (3, 4)]
    (destination,) = report(*parts, *early, *ends, length=4).destinations
    assert [hop.hop for hop in destination.hops] == [1, 2]
    (*_, end) = cells.lines(destination)
    assert (end.hop, end.label, end.remarks) == ("end", "192.0.2.2", ("measured by probe",))
    assert end.numbers[:4] == ("0", "0-79.3", "1", "5.00")
    (destination,) = report(*parts, *ends, rows(6, [2.0], router=OTHER)).destinations
    assert [hop.hop for hop in destination.hops] == [1, 2, 6]


@pytest.mark.parametrize(
    ("lost", "remark"), [(40, "answers seldom"), (6, "some of its answers are missing")]
)
def test_a_router_that_answers_nearly_always_does_not_answer_seldom(lost: int, remark: str) -> None:
    parts = rows(1, [1.0] * (200 - lost), lost=lost), rows(2, [1.0] * 400)
    first, *_ = cells.lines(report(*parts).destinations[0])
    assert first.remarks[-1] == remark


@pytest.mark.parametrize(
    ("state", "remark"),
    [
        ({"end": 3, "heard": True}, "answers an echo request at hop 3"),
        ({"heard": True}, "sends packets to this host"),
        ({}, "nothing tells whether the path arrives"),
    ],
)
def test_without_a_round_trip_the_end_says_whether_the_path_arrives(
    state: dict[str, Any], remark: str
) -> None:
    made = report(rows(1, [1.0]), rows(2, [1.0]), **state)
    (*_, end) = cells.lines(made.destinations[0])
    assert (end.hop, end.remarks, set(end.numbers)) == ("end", (remark,), {"-", ""})
    assert json.loads(document.render(made))["destinations"][0]["arrival"] == remark
    assert len(list(cells.lines(report(length=0).destinations[0]))) == 0


def test_a_stateful_device_and_an_own_flow_are_named() -> None:
    parts = rows(1, [1.0]), rows(2, [2.0])
    (destination,) = report(*parts, stateful_hop=1, own_flow="udp:33434", finder=3).destinations
    first, second, _ = cells.lines(destination)
    assert first.remarks[-1] == "NAT or firewall behind it"
    assert "NAT" not in str(second.remarks)
    assert cells.summary(destination).endswith("1 flow probed, with an own flow (udp:33434)")
    assert "3 echo requests for hidden hops" in cells.probes(destination.probes)


def test_flows_are_counted_without_an_answer_too() -> None:
    made = rows(1, [], lost=3)
    made["source_port"], made["outcome"] = [1, 2, 3], ProbeOutcome.IN_FLIGHT
    overrun = rows(1, [], lost=1, port=0)
    overrun["outcome"] = ProbeOutcome.OVERRUN
    (destination,) = report(made, overrun).destinations
    assert (destination.flows, destination.probes.in_flight, destination.probes.sent) == (3, 3, 4)


def test_flows_beyond_the_limit_are_only_counted() -> None:
    one = rows(1, [1.0] * (MAX_FLOWS + 5))
    one["source_port"] = np.arange(len(one))
    (destination,) = report(one).destinations
    assert (destination.flows, destination.more_flows) == (MAX_FLOWS, True)
    assert cells.summary(destination).endswith(f"more than {MAX_FLOWS} flows probed")
    assert destination.hops[0].routers[0].answered == MAX_FLOWS + 5


def everything() -> PathReport:
    long = rows(2, [120.0] * 400, lost=30)
    long["version"] = 6
    for name, address in (
        ("source", "2001:db8::1"), ("destination", "2001:db8::2"), ("responder", LONG),
    ):  # fmt: skip
        long[name] = paths.packed(address)
    return report(
        rows(1, [0.018] * 1000),
        rows(1, [0.5] * 10, router=OTHER, port=7),
        rows(2, [], lost=30),
        rows(3, [13.4] * 60, router="198.51.100.100"),
        rows(DESTINATION_HOP, [14.1] * 20, method=MeasuredBy.DNS),
        long,
        events=(Event.now("warning", "path", "192.0.2.2 hop 3: queue of 103 ms since 1.5 s ago"),),
        notes=("NAT or firewall behind hop 3: probes are not answered, packets pass",),
        unmatched=4,
    )


def test_text_fits_eighty_columns_or_is_as_wide_as_it_needs() -> None:
    made = everything()
    narrow, wide = text.render(made, 80), text.render(made)
    assert max(map(len, narrow.splitlines())) <= 80
    assert max(map(len, wide.splitlines())) > 100
    for part in (
        LONG,
        ROUTER,
        "r7.example.net",
        "AS64500",
        "measured by dns",
        "4 unmatched answers",
    ):
        assert part in " ".join(narrow.split())
        assert part in wide
    # Wide lines are one a hop: for grep.
    (line,) = (line for line in wide.splitlines() if ROUTER in line)
    assert line.split()[:5] == ["1", ROUTER, "(r7.example.net)", "0", "0-0.4"]
    assert line.endswith("AS64500 Example | Net, DE")
    assert "note: NAT or firewall behind hop 3" in wide
    assert "warning: hop 3: queue of 103 ms" in wide


def test_markdown_has_rows_of_one_width() -> None:
    lines = markdown.render(everything()).splitlines()
    tables = [line.replace("\\|", "") for line in lines if line.startswith("|")]
    assert len(tables) == 5 + 2 + 4
    assert {line.count("|") for line in tables} == {13}
    assert lines.count("## 192.0.2.2 (www.example.org)") == 1


def test_json_has_every_value() -> None:
    found = json.loads(document.render(everything()))
    assert found["schema"] == "path-report/1"
    first, second = found["destinations"]
    assert (first["address"], first["name"], second["address"]) == (
        "192.0.2.2", "www.example.org", "2001:db8::2",
    )  # fmt: skip
    assert [hop["hop"] for hop in first["hops"]] == [1, 2, 3]
    router = first["hops"][0]["routers"][0]
    assert (router["asn"], router["country"], router["answered"]) == (64500, "DE", 1000)
    assert router["median_ns"] == pytest.approx(18_000, rel=1e-3)
    assert first["hops"][1]["loss"] == 1.0
    assert first["hops"][1]["routers"] == []
    (end,) = first["end_to_end"]
    assert (end["measured_by"], end["samples"], end["lost"]) == ("dns", 20, 0)
    assert first["probes"]["unmatched"] == 4
    assert first["events"][0]["severity"] == "warning"


def test_a_trace_without_a_packet_has_a_report() -> None:
    made = report()
    assert "0 packets of applications, 0 flows probed" in text.render(made, 80)
    assert json.loads(document.render(made))["destinations"][0]["hops"] == []
    assert "## 192.0.2.2" in markdown.render(made)
