"""Policies that have captures written: the packets of before the alarm, to the packet."""

from __future__ import annotations

from typing import Any

import pytest

from bpf.attach.attachment import Hook
from bpf.errors import UsageError
from probes.control.builtin_probes import FLOW_PROBE
from probes.flow.options import FlowOptions
from probes.monitor.actions.capture import CaptureRequest
from probes.monitor.options import MonitorOptions
from probes.monitor.policy import Policy
from probes.monitor.state import PROBE
from probes.ring.options import PROBE as RING
from probes.ring.options import RingOptions
from probes.ring.service import Capture
from tests.probes.conftest import compiler as compiler
from tests.probes.deck import Deck
from tests.probes.deck import deck as deck
from tests.probes.monitor.bed import frame, tcp
from tests.support.waiting import wait_for

_FLOOD = "flood: packets on udp > 100 -> capture 10s{} on udp or tcp"


@pytest.fixture
def written(deck: Deck) -> list[Capture]:
    """The captures of a run with a monitor on one end of a veth."""
    found: list[Capture] = []

    def save(capture: Capture) -> str:
        found.append(capture)
        return f"{capture.name}.pcapng"

    deck.controller.packets.options, deck.controller.packets.save = RingOptions("1MiB"), save
    deck.controller.paths.configure("right", deck.controller.path_options)
    deck.controller.watch_metrics("right", MonitorOptions(bits=8, interval=300, ingress=Hook.XDP))
    return found


def set_policy(deck: Deck, text: str) -> None:
    deck.controller.set_policy(Policy.parse_short(text))


def fire(deck: Deck, *frames: tuple[bytes, int]) -> None:
    """Let packets arrive in a window that the monitor then ends."""
    for data, count in frames:
        deck.run(count, data)
    deck.controller.export(PROBE)


def names(deck: Deck) -> set[str]:
    return {each.name for each in deck.controller.probes()}


def test_the_packets_of_before_the_alarm_are_written(deck: Deck, written: list[Capture]) -> None:
    assert RING not in names(deck)
    set_policy(deck, _FLOOD.format(""))
    assert RING in names(deck)
    service = deck.controller.monitored()
    assert service
    find = service.probe.find

    def seek(*of: Any) -> Any:
        deck.run(50, frame())
        return find(*of)

    # Packets that come while the culprit is sought overwrite none of before the alarm.
    service.probe.find = seek
    fire(deck, (frame(), 300), (frame(layer=tcp()), 20))
    wait_for(lambda: written)
    (capture,) = written
    ledger = capture.ledger
    assert (capture.name, capture.filters) == ("flood", ("udp", "tcp"))
    assert (ledger.selected, ledger.written, ledger.paused, ledger.others) == (370, 320, 50, 0)
    assert ledger.missing == 50
    text = "320 packets of 370 in flood.pcapng: 50 came while the ring was frozen; whole from "
    wait_for(lambda: any(each.startswith(text) for each in deck.said("info", RING)))
    # The ring goes on, and ends with the last policy that needs it.
    deck.run(5, frame())
    (kept,) = deck.controller.ring().selections
    assert (kept.kept, kept.missed, kept.file) == (325, 50, "flood.pcapng")
    set_policy(deck, "flood: packets on udp > 100 -> accounting")
    assert RING not in names(deck)


def test_a_capture_of_the_culprit_has_its_packets_alone(deck: Deck, written: list[Capture]) -> None:
    deck.controller.start(FLOW_PROBE, "right", FlowOptions(interval=300, ingress="xdp"))
    set_policy(deck, _FLOOD.format(" culprit"))
    fire(deck, (frame(source="192.0.2.66"), 400), (frame(), 7), (frame(layer=tcp()), 3))
    wait_for(lambda: written)
    ledger = written[0].ledger
    assert (ledger.selected, ledger.written, ledger.others, ledger.missing) == (410, 400, 10, 0)
    sources = {each.tobytes()[:4] for each in written[0].packets.flows["source"]}
    assert sources == {bytes([192, 0, 2, 66])}


def test_an_operator_keeps_and_writes_packets(deck: Deck, written: list[Capture]) -> None:
    plane = deck.controller
    assert (plane.ring().interface, plane.kept_packets()) == ("", [])
    with pytest.raises(UsageError, match="the ring keeps no packets; choose their flows before"):
        plane.write_packets()
    with pytest.raises(UsageError, match="apples"):
        plane.keep_packets("apples:5")
    assert RING not in names(deck)
    assert plane.keep_packets("src:192.0.2.1").interface == "right"
    set_policy(deck, "p: operator -> capture 5s")
    deck.run(3, frame(size=90))
    newest = plane.kept_packets(2)
    assert [(each.interface, each.outgoing, each.length) for each in newest] == [
        ("right", False, 90), ("right", False, 90),
    ]  # fmt: skip
    assert bytes.fromhex(newest[0].data) == frame(size=90)
    assert plane.write_packets(seconds=5).ledger.written == 3
    plane.activate_policy("p")
    wait_for(lambda: len(written) == 2)
    assert (written[1].ledger.written, plane.ring().captures) == (3, 2)
    with pytest.raises(UsageError, match="the ring keeps no packets other"):
        plane.write_packets("other")
    plane.remove_policy("p")
    plane.read_only = "looked at"
    for change in (plane.keep_packets, plane.release_packets, plane.write_packets):
        with pytest.raises(UsageError, match="looked at"):
            change()
    plane.read_only = ""
    plane.release_packets()
    assert RING not in names(deck)


def test_a_capture_that_fails_is_an_event_and_the_ring_goes_on(
    deck: Deck, written: list[Capture]
) -> None:
    def refuse(capture: Capture) -> str:
        raise UsageError("cannot write x: No space left on device")

    deck.controller.packets.save = refuse
    set_policy(deck, _FLOOD.format(""))
    fire(deck, (frame(), 200))
    text = "no capture of policy flood: cannot write x: No space left on device"
    wait_for(lambda: text in deck.said("error", RING))
    deck.run(5, frame())
    status = deck.controller.ring()
    assert (status.selections[0].kept, status.captures, status.refused) == (205, 0, 1)
    assert not written


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        ("capture", CaptureRequest()),
        ("capture 30s", CaptureRequest(30)),
        ("capture culprit", CaptureRequest(10, True)),
        ("capture 1m culprit", CaptureRequest(60, True)),
    ],
)
def test_the_text_of_a_capture(text: str, request_: CaptureRequest) -> None:
    short = f"a: flows > 5 -> dns, {text}, limit 10pps on udp dport:53"
    policy = Policy.parse_short(short)
    assert policy.capture == request_
    assert policy.action
    assert policy.to_short() == short


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: flows > 5 -> capture 2h", "'2h' is longer than an hour (column 25)"),
        ("a: flows > 5 -> capture 5s 5s", "'5s' does not belong"),
        ("a: flows > 5 -> capture ten", "'ten' is not a time, such as 10s"),
        ("a: flows > 5 -> capture, capture 5s", "a policy has one capture"),
        ("a: always -> capture", "a capture needs a begin"),
        ("a: operator -> capture culprit", "a culprit needs a condition"),
        ("a: flows > 5 -> capture on unit:x", "a capture takes no owners"),
    ],
)
def test_a_mistake_in_a_capture(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        Policy.parse_short(text)
    assert said in str(caught.value)
