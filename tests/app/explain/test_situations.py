"""The first line, the place and the events of conversations with a known truth."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from probes.snapshot import NOT_COUNTED
from tests.app.explain import situations as made
from tests.app.explain.stage import Situation, playing, watch

# A busy machine takes long to start the network.
pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]
WATCH_S = 10
"""Longer than the route of `breaks` lasts, and than the first lost DNS query takes to be one."""
_NO_QUEUE = r"^no queue at any hop that answers|^\d\.\d\d ms of queue"
"""A busy machine delays packets by some milliseconds."""
_QUEUE = r"is limited by the network: \d+(\.\d+)? ms of queue"
OF_BUDGET = (
    "slow DNS", "DNS without answers", "refused", "loop", "broken route", "reset", "refused UDP",
    "slow server", "rests", "slow reader", "slow sender", "reads slowly", "queue", "loss",
)  # fmt: skip
"""Situations of the run with a budget of CPU: one of each kind of sentence."""
_PATH = r"(the path|hop [45]) \d+(\.\d+)? [mu]s"

SITUATIONS = (
    Situation("slow DNS", partial(made.dns, think=0.8),
              # One query a second: a busy machine has not measured the path yet.
              r"waits for the DNS server {far}: answers take [89]\d\d ms(, {path})?$",
              _NO_QUEUE, udp=True, port=53),
    Situation("DNS", partial(made.dns, think=0),
              r"waits for the DNS server {far}: answers take [12]\d\.\d ms, {path}",
              _NO_QUEUE, udp=True, port=53),
    Situation("DNS without answers", partial(made.dns, think=0, answers=False),
              r"gets no answer from the DNS server {far} to \d+ queries", udp=True, port=53),
    Situation("refused", made.refused, r"is refused: {far} answers its SYN by a reset, since",
              _NO_QUEUE, "refused"),
    Situation("unreachable", made.unreachable,
              r"gets no answer from {far} to its SYNs: .*(hop 2 does not answer|host unreachable)",
              r"hop 2 does not answer|10\.94\.2\.2 at hop 3 reports: host unreachable",
              "no-answer"),
    Situation("prohibited", made.prohibited,
              r"gets no answer from {far} to its SYNs: 10\.94\.1\.2 .*reports: prohibited",
              "10.94.1.2 .*reports: prohibited by a filter", "no-answer"),
    Situation("black hole", made.black_hole, r"gets no answer from {far} to its SYNs: the path "
              "behind hop 2 does not answer", "behind hop 2 does not answer", "no-answer"),
    Situation("loop", made.loops, r"gets no answer from {far} to its SYNs: routing loop between "
              r"10\.94\.2\.2 \(hop 3\) and 10\.94\.3\.2", "routing loop between", "no-answer"),
    Situation("full accept queue", made.backlog_full, r"gets no answer from {far} to its SYNs: "
              "the host answers probes, the port does not", "", "no-answer"),
    Situation("broken route", made.breaks, r"gets no answer from {far} to .*of data: "
              "the path behind hop 2 does not answer", "behind hop 2", "no-answer"),
    Situation("large packets vanish", made.large_packets_vanish,
              r"gets no answer from {far} to .*of data: .*perhaps larger ones do not arrive", "",
              "no-answer"),
    Situation("reset", made.resets, r"has no connection any more: {far} reset it", _NO_QUEUE,
              "idle"),
    Situation("one-way UDP", made.udp_one_way, "uses udp, which does not tell what limits it",
              _NO_QUEUE, udp=True),
    Situation("refused UDP", made.udp_refused,
              "gets no answer from {far}: {far} reports: port unreachable", udp=True),
    Situation("slow UDP answers", made.udp_answers,
              r"waits for {far}: answers take 6\d\d ms", _NO_QUEUE, udp=True),
    Situation("slow server", partial(made.asks, request=100, answer=3000, think=0.8),
              r"waits for {far}: answers take 8\d\d ms, {path}", _NO_QUEUE, "sender"),
    Situation("upload, then a slow answer", partial(made.asks, request=9000, answer=2, think=1),
              r"waits for {far}: answers take 1\.\d s, {path}", _NO_QUEUE, "sender",
              of_windows=("application",)),
    Situation("slow TLS", made.greets, r"waits for {far}: answers take 2\.\d s, {path}|"
              r"waits for {far}: it has not answered", _NO_QUEUE, "sender",
              of_windows=("application", "idle")),
    Situation("rests", made.rests, r"is idle: the flow sends nothing, since \d+ s", _NO_QUEUE,
              "idle"),
    Situation("not answered", made.is_not_answered,
              r"waits for {far}: it has not answered the last data, since \d+ s", _NO_QUEUE,
              "sender"),
    Situation("slow reader", made.slow_reader, r"is limited by the receiver: the window of {far} "
              "was full", _NO_QUEUE, "receiver"),
    Situation("slow reader beside", made.slow_reader, "is limited by the receiver",
              "^no router between: the same network$", "receiver", neighbour=True),
    Situation("small window", made.small_window, "is limited by the receiver", "", "receiver"),
    Situation("slow sender", made.slow_sender, "limits itself: it had data", _NO_QUEUE,
              "application"),
    Situation("reads slowly", made.reads_slowly, "reads slowly: .*wait in its receive buffer",
              _NO_QUEUE, "reads-slowly"),
    Situation("download", made.download, "waits for {far}: data comes no faster", _NO_QUEUE,
              "sender"),
    Situation("queue", made.queue_there, _QUEUE + " at hop 3",
              r"at hop 3, between 10\.94\.1\.2 and 10\.94\.2\.2", "queue", queued=True),
    Situation("queue of the window", made.queue_of_window,
              _QUEUE + " at hop 4",
              r"at hop 4, between 10\.94\.2\.2 and 10\.94\.3\.2", "queue", queued=True),
    Situation("own queue", made.own_queue, _QUEUE + " in this host's own htb of",
              "in this host's own htb of .*, before hop 1", "queue", queued=True),
    Situation("queue behind a translation", made.queue_behind_translation,
              r"uses udp, which does not tell what limits it; [\d.]+ ms of queue at hop 3",
              r"at hop 3, between 10\.94\.1\.2 and 10\.94\.2\.2, measured beside the flow",
              udp=True, queued=True),
    Situation("queue on the way back", made.queue_back, r"{far}|before they reach this host",
              r"at hop 3, between 10\.94\.1\.2 and 10\.94\.2\.2, on the way back",
              queued=True),
    Situation("loss", made.loses, "is limited by the network: .*segments are lost|"
              "paced to .*it loses"),
)  # fmt: skip


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    return explained("off", SITUATIONS)


def explained(cpu: str, situations: Sequence[Situation]) -> dict[str, Any]:
    """Return explanations by the name of the situation, with the address and the warnings, of a run
    with a budget of CPU."""
    with playing(situations) as stages:
        filters = {
            each.name: f"{'udp' if each.udp else 'tcp'} host:{stage.address} dport:{stage.port}"
            for each, stage in zip(situations, stages.values(), strict=True)
        }
        of_queue = stages["queue"]
        # A few lost acknowledgements change no verdict.
        rule = f"tcp sport {of_queue.port} limit rate 2/second burst 1 packets drop"
        of_queue.network.rules("client", "filter input 0", rule)
        found: dict[str, Any] = watch(stages, filters | {"none": "port:1"}, WATCH_S, cpu)
        for name, stage in stages.items():
            found["found"][name]["far"] = stage.address
    return found


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: each.name)
def test_a_situation_is_told_as_it_is(situation: Situation, told: dict[str, Any]) -> None:
    found = told["found"][situation.name]
    sentence, where, limit = found["sentence"], found["where"]["text"], found["why"]["limit"]
    far = found["far"]
    wanted = situation.sentence.replace("{far}", re.escape(far)).replace("{path}", _PATH)
    assert re.search(wanted, sentence), found
    assert re.search(situation.place, where), found
    assert limit == situation.limit or not situation.limit, found
    queues = [text for text in told["warnings"] if f"{far}:" in text and "queue" in text]
    assert situation.queued or not queues, queues


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: each.name)
def test_screens_tables_and_events_tell_the_same(situation: Situation, told: Any) -> None:
    found = told["found"][situation.name]
    where, limit, elsewhere = found["where"], found["why"]["limit"], found["elsewhere"]
    # UDP, and sockets of other conversations of the filter, have no verdict there.
    assert elsewhere["flows"] in ("", limit, *situation.of_windows), found
    # A table has the last window with packets.
    rests = found["why"]["rest"]
    assert elsewhere["table"] in ("", limit, *situation.of_windows) or rests, found
    if "loop" in where["text"]:
        assert elsewhere["paths"] == where["text"], found
    if "queueing" in elsewhere["paths"]:
        assert f"at hop {where['hop']}" in elsewhere["paths"], found
    for text in told["warnings"]:
        if f"{found['far']}:" in text and "queue of" in text:
            assert where["router"] in text, (text, found)


def test_the_drops_of_the_kernel_are_the_conversations_own(told: dict[str, Any]) -> None:
    found = told["found"]["queue"]
    assert found["why"]["floor_us"] > 0, found
    assert found["where"]["queue_ms"] > 10, found
    assert found["who"]["process"].startswith("python"), found
    drops = [each for each in found["lost"] if "netfilter_drop" in each["reason"]]
    assert [(each["of_flow"], each["packets"] > 0) for each in drops] == [(True, True)], found
    # Routers and the server are namespaces of this kernel, which drops the path's probes there.
    reasons = " ".join(each["reason"] for each in found["lost"])
    assert "ip_inhdr" not in reasons, found
    assert "tcp_flags" not in reasons, found
    assert found["counts_drops"]


def test_a_filter_that_nothing_passes_names_the_largest_conversations(told: dict[str, Any]) -> None:
    error = told["found"]["none"]["sentence"]
    assert "no conversation passes the filter 'port:1'" in error
    assert "tcp 10.94.0.1:" in error


def test_a_budget_leaves_a_situation_open_and_tells_none_wrongly() -> None:
    situations = [each for each in SITUATIONS if each.name in OF_BUDGET]
    told = explained("2%", situations)
    assert any("owners of flows only" in text for text in told["warnings"]), told["warnings"]
    wrong, is_open = {}, []
    for situation in situations:
        found = told["found"][situation.name]
        wanted = situation.sentence.replace("{far}", re.escape(found["far"]))
        if re.search(wanted.replace("{path}", _PATH), found["sentence"]):
            continue
        if NOT_COUNTED in found["sentence"] or "--cpu off" in found["sentence"]:
            is_open.append(situation.name)
        else:
            wrong[situation.name] = found["sentence"]
    print(f"{len(is_open)} of {len(situations)} are open, {len(wrong)} wrong")
    assert not wrong, (wrong, is_open, told["warnings"])
