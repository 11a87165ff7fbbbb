"""Explanations of made-up windows."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from socket import htons, inet_aton
from typing import Any

import numpy as np
import pytest

from app.explain import Explanation, choose, explain, lines
from app.explain.model import ExplainedLimit, ExplainedLoss
from app.explain.page import parts
from app.outputs.networks import RouterFacts
from bpf.errors import TextError
from probes.flow.records import FlowDirection
from probes.path.records import MeasuredBy, PathRowKind
from probes.snapshot import Loss, LossReason, Snapshot
from probes.sockets.records import By, Limit, Reason
from probes.tables.conversion import TableKind, TableSchema
from probes.tables.field_types import MAPPED
from tests.app.explain.made import FAR, NEAR, OTHER, QUEUED, finding, probes, upload, window
from tests.support.console.owners import POSTGRES, WEB, Process
from tests.support.paths import packed

NEAR_MS = [0.4, 1.1, 3.0]
STANDS = [*NEAR_MS, 88.0, 90.0, 91.0]
"""A queue before hop 4 that stood when tracing began; the floor of the connection is 12 ms."""
LEAST = [*NEAR_MS, 70.0, 72.0, 73.0]


def explained(*items: Snapshot, text: str = "dport:443", **more: Any) -> Explanation:
    choice = choose(items, text)
    assert choice.conversation is not None
    return explain(choice.conversation, items, **more)


def test_the_first_sentence_says_who_why_where_and_since_when() -> None:
    found = explained(*upload(), *probes(12, STANDS, LEAST))
    assert found.sentence == (
        "nginx (web.service) is limited by the network: 80.0 ms of queue at hop 4, since 12 s"
    )
    assert lines(found)[0] == found.sentence


def test_the_page_has_who_why_where_and_the_losses() -> None:
    lost = {LossReason.TABLE_FULL: Loss(7, 700)}
    text = "\n".join(lines(explained(*upload(losses=lost), *probes(12, STANDS, LEAST))))
    for part in (
        "tcp 10.0.0.5:40001 - 192.0.2.9:443 (https): 400 kbit/s in, 20.0 Mbit/s out, over 12 s",
        "process   nginx, pid 812", "user      www-data", "unit      web.service",
        "known by  the process has a descriptor of the socket",
        "queue +80.0 ms: packets wait in a queue of the network, since 12 s",
        "round trip 92.0 ms, 80.0 ms above the least of 12.0 ms",
        "retransmitted 0.2 % of 12000 segments",
        "at hop 4, between 198.51.100.3 and 198.51.100.4",
        f"84 packets of all flows: {LossReason.TABLE_FULL.about}",
    ):  # fmt: skip
        assert part in text, text


def test_times_of_answers_stand_in_for_round_trips_of_udp() -> None:
    why = ExplainedLimit(samples=3, answer_us=318_000)
    assert dict(parts(replace(explained(*upload()), why=why)))["Why"] == ["answers take 318 ms"]


def test_the_page_says_that_an_owner_is_not_sure() -> None:
    numbers = {**QUEUED, "by": By.LISTENER, "reason": Reason.SEVERAL}
    text = "\n".join(lines(explained(*upload(numbers=numbers))))
    assert "process   nginx, pid 812" in text
    assert "listening socket of the connection's port; another one may own it" in text


def dropped(
    source: str, port: int, destination: str, to: int, packets: int, tracing: int = 0
) -> Any:
    """A row of the probe of drops, for reason 6."""
    key = [("source", "u4", (4,)), ("destination", "u4", (4,)), ("source_port", "u2"),
           ("destination_port", "u2"), ("tracing", "u1"), ("reason", "u4")]  # fmt: skip
    row = np.zeros(1, [("key", key), ("value", [("packets", "u8"), ("bytes", "u8")])])
    for name, address in (("source", source), ("destination", destination)):
        row["key"][name] = np.frombuffer(MAPPED + inet_aton(address), "u4")
    row["key"]["source_port"], row["key"]["destination_port"] = htons(port), htons(to)
    row["key"]["reason"], row["value"]["packets"] = 6, packets
    row["key"]["tracing"] = tracing
    return row


def test_drops_of_the_kernel_are_losses_of_the_conversation() -> None:
    """Of both directions and several windows; other flows' and probes of the path do not count."""
    rows = np.concatenate([
        dropped(NEAR, 40001, FAR, 443, 5), dropped(FAR, 443, NEAR, 40001, 7),
        dropped(NEAR, 1, FAR, 443, 100), dropped(NEAR, 40001, FAR, 443, 60, tracing=1),
    ])  # fmt: skip
    schema = TableSchema(TableKind.HASH, names={"key.reason": {6: "no_socket"}})
    windows = [
        replace(window(second, rows, probe="drops", metric="drops"), schema=schema)
        for second in (11, 12)
    ]
    found = explained(*upload(), *windows)
    assert found.lost == (ExplainedLoss("the kernel dropped them (no_socket)", 24, True),)
    assert lines(found)[-1].strip() == (
        "24 packets of this flow: the kernel dropped them (no_socket)"
    )
    none = replace(windows[0], rows=rows[2:])
    assert lines(explained(*upload(), none))[-1].strip() == "no packet"


def test_a_page_without_the_probe_of_drops_says_so() -> None:
    found = explained(*upload())
    assert not found.counts_drops
    assert "drops of the kernel are not counted" in lines(found)[-1]


def test_the_document_is_json_with_numbers() -> None:
    found = explained(*upload(), *probes(12, STANDS, LEAST))
    document = json.loads(json.dumps(asdict(found)))
    assert document["who"]["pid"] == 812
    assert document["why"]["limit"] == "queue"
    assert document["where"]["hop"] == 4
    assert document["where"]["hops"][3]["queue_ms"] == pytest.approx(76, abs=1)
    assert document["bits_out"] == pytest.approx(20e6)


@pytest.mark.parametrize("hop", [1, 3, 6])
def test_a_queue_that_stood_before_tracing_is_found_at_its_hop(hop: int) -> None:
    base = [0.4, 1.1, 3.0, 5.0, 8.0, 11.0]
    times = [time + (80 if number >= hop else 0) for number, time in enumerate(base, 1)]
    least = [time + (60 if number >= hop else 0) for number, time in enumerate(base, 1)]
    assert explained(*upload(), *probes(6, times, least)).where.hop == hop


def test_a_router_that_is_slow_to_answer_is_no_queue() -> None:
    times = [0.4, 45.0, 3.0, 88.0, 90.0, 91.0]
    assert explained(*upload(), *probes(6, times, LEAST)).where.hop == 4
    calm = upload(numbers={**QUEUED, "limit": Limit.BANDWIDTH, "queue_us": 0, "rtt_us": 12_000})
    found = explained(*calm, *probes(6, [0.4, 45.0, 3.0, 5.0, 8.0, 11.0], [0.4, 1, 3, 5, 8, 11]))
    assert (found.where.hop, found.where.text) == (0, "no queue at any hop that answers")
    assert "bandwidth: 20.0 Mbit/s without queue and loss" in found.sentence


def test_hops_without_answers_are_named_and_the_end_counts() -> None:
    found = explained(*upload(), *probes(6, [0.4, None, 3.0, None, 90.0], [0.4, None, 3, None, 75]))
    assert (found.where.hop, found.where.before) == (5, "198.51.100.3")
    page = lines(found)
    assert any(line.split()[:2] == ["2", "*"] for line in page)
    far = explained(*upload(), *probes(6, [0.4, 1.1], arrives=False))
    assert "the path behind hop 2 does not answer" in far.where.text


def test_the_path_of_another_flow_stands_in_and_its_routers_have_names() -> None:
    found = explained(
        *upload(), *probes(6, STANDS, LEAST, source_port=5),
        describe=lambda address: RouterFacts(name=f"r{address[-1]}.example"),
    )  # fmt: skip
    assert found.where.hop == 4
    assert found.where.hops[3].name == "r4.example"


def test_hops_that_are_measured_beside_the_flow_place_a_queue_where_probes_get_no_answer() -> None:
    unanswered = probes(6, [0.4, None, None, None, None, None])
    echoes = probes(6, STANDS, LEAST, by=MeasuredBy.ECHO_BESIDE_THE_FLOW)
    found = explained(*upload(), *unanswered, *echoes)
    assert found.where.text == (
        "76.0 ms of queue at hop 4, between 198.51.100.3 and 198.51.100.4, measured beside the flow"
    )
    assert [hop.beside for hop in found.where.hops] == [False, *[True] * 5]
    assert sum("beside the flow" in line for line in lines(found)) == 6  # with the sentence
    # Probes that are answered are the flow's own, and better.
    found = explained(*upload(), *probes(6, STANDS, LEAST), *echoes)
    assert not any(hop.beside for hop in found.where.hops)


def test_the_queue_of_this_host_is_named_if_it_holds_the_delay() -> None:
    own = {**QUEUED, "qdisc": b"tbf", "backlog": 190_000}  # 76 ms at the rate of the flow
    found = explained(*upload(numbers=own), *probes(6, NEAR_MS))
    assert found.sentence.endswith("80.0 ms of queue in this host's own tbf of eth0, since 12 s")
    assert (found.where.own, found.where.queue_ms) == ("tbf of eth0", 80)
    small = explained(*upload(numbers={**own, "backlog": 50_000}), *probes(6, NEAR_MS))
    assert small.where.own == ""


def test_a_place_of_loss_is_the_path_probes() -> None:
    numbers = {**QUEUED, "limit": Limit.LOSS, "retransmitted": 12, "queue_us": 0}
    begun = finding(5, kind=PathRowKind.LOSS, hop=3, other_hop=2)
    found = explained(*upload(numbers=numbers), *probes(12, STANDS), begun)
    assert found.sentence.startswith(
        "nginx (web.service) is limited by the network: 1.2 % of its segments are lost at hop 3"
    )
    over = finding(9, kind=PathRowKind.LOSS_OVER, hop=3, other_hop=2)
    assert explained(*upload(numbers=numbers), *probes(12, NEAR_MS), begun, over).where.hop == 0


def test_the_place_of_a_broken_route_is_its_loop() -> None:
    begun = finding(
        5, kind=PathRowKind.LOOP, hop=3, other_hop=4, amount=2,
        responder=packed("198.51.100.3"), previous=packed("198.51.100.4"),
    )  # fmt: skip
    found = explained(*upload(), *probes(12, STANDS), begun)
    assert found.where.text == (
        "routing loop between 198.51.100.3 (hop 3) and 198.51.100.4 (hop 4)"
    )
    assert found.where.hop == 3
    over = finding(9, kind=PathRowKind.LOOP_OVER, hop=3)
    assert "loop" not in explained(*upload(), *probes(12, STANDS), begun, over).where.text


@pytest.mark.parametrize(
    ("numbers", "part"),
    [
        ({"limit": Limit.IDLE}, "nginx (web.service) is idle"),
        ({"limit": Limit.APPLICATION, "busy": 0.12}, "it had data to send 12.0 % of the time"),
        (
            {"limit": Limit.RECEIVER, "rwnd": 0.98},
            f"window of {FAR} was full 98.0 % of the time",
        ),
        ({"limit": Limit.SEND_BUFFER, "unacked": 44, "mss": 1448}, "62.2 KiB are on the way"),
        ({"limit": Limit.PACED, "delivery_rate": 1_000_000}, "is paced to 8.00 Mbit/s"),
        ({"limit": Limit.READS_SLOWLY, "rqueue": 353_000}, "345 KiB wait in its receive buffer"),
        ({"limit": Limit.LOST_BEFORE}, "lost before they reach this host"),
        ({"limit": Limit.SENDER}, f"waits for {FAR}: data comes no faster"),
        ({}, "not watched long enough"),
        ({"limit": Limit.APPLICATION, "segments": 100, "retransmitted": 3}, "it loses 3.0 %"),
    ],
)
def test_each_verdict_has_its_sentence(numbers: dict[str, object], part: str) -> None:
    assert part in explained(*upload(numbers={"limit_s": 5, **numbers})).sentence


def test_the_last_minute_lists_other_verdicts() -> None:
    early = [item for item in upload(30, {"limit": Limit.APPLICATION}) if item.window <= 20]
    late = [item for item in upload(30) if item.window > 20]
    found = explained(*early, *late)
    assert [(each.limit, each.seconds) for each in found.why.minute] == [
        ("application", 20), ("queue", 10),
    ]  # fmt: skip
    assert any("last minute: application 20 s, queue 10 s" in line for line in lines(found))


def test_windows_older_than_a_minute_are_left_out() -> None:
    found = explained(*upload(90))
    assert (found.seconds, found.why.samples) == (60, 60)


@pytest.mark.parametrize(
    ("process", "name"),
    [
        (WEB, "nginx (web.service)"),
        (POSTGRES, "postgres (shop)"),
        (Process("curl", 5), "curl"),
        (Process("", 0, "web.service", ""), "web.service"),
    ],
)
def test_an_owner_is_named_by_its_nearest_place(process: Process, name: str) -> None:
    assert explained(*upload(processes=[process])).sentence.startswith(f"{name} is limited")


def test_a_flow_without_an_owner_has_the_reason() -> None:
    found = explained(*upload(numbers={}, owner=-Reason.FORWARDED))
    assert found.sentence == (
        f"tcp 10.0.0.5:40001 - {FAR}:443 has no owner on this host: {Reason.FORWARDED.about}"
    )
    alone = [item for item in upload() if item.probe == "flow"]
    assert "no socket on this host" in explained(*alone).sentence
    assert "no numbers" in "\n".join(lines(explained(*alone)))


def test_an_untraced_path_says_why() -> None:
    found = explained(*upload(), untraced="it is an address of this host")
    assert (found.where.text, found.where.hops) == ("it is an address of this host", ())
    assert "at hop" not in found.sentence


def test_the_choice_is_the_conversation_with_most_bytes() -> None:
    items = upload(3)
    assert explained(*items, text="port:443").flow.far == FAR
    assert explained(*items, text=f"host:{OTHER}").flow.far == OTHER
    assert choose(items, "port:443").passing == 2


def test_the_choice_knows_owners_and_names_what_passes_instead() -> None:
    items = upload(3)
    assert choose(items, "dport:443 proc:nginx").passing == 1
    assert choose(items, "limit:queue").conversation is not None
    missed = choose(items, "dport:443 proc:postgres")
    assert missed.conversation is None
    far = missed.others["far"].tolist()
    assert len(far) == 2
    assert missed.others["out_bytes"][0] == 7_500_000


def test_a_wrong_filter_is_an_error_and_no_windows_are_no_choice() -> None:
    with pytest.raises(TextError):
        choose([], "dport:")
    choice = choose([], "dport:443")
    assert choice.conversation is None
    assert len(choice.others) == 0
    assert np.array_equal(choice.others, choose([], "").others)


def test_packets_of_another_container_count_as_received() -> None:
    """All packets of two containers leave: those of the far end are a conversation of their own."""
    items = upload()
    for at, item in enumerate(items):
        if item.probe == "flow":
            rows = item.rows.copy()
            rows["direction"] = FlowDirection.EGRESS
            items[at] = replace(item, rows=rows)
    assert "400 kbit/s in, 20.0 Mbit/s out" in lines(explained(*items))[2]
