"""Packets that are in no table are an event: one as that begins, one with the sums after it."""

from __future__ import annotations

import struct

import numpy as np

from probes.control.builtin_probes import FLOW_PROBE
from probes.control.probe_runner import LossEvents
from probes.flow.options import FlowOptions
from probes.flow.records import FLOW
from probes.path.records import HOP, ProbeOutcome
from probes.snapshot import REMOVED, Event, Loss, LossReason, Snapshot
from tests.probes.deck import Deck, deck
from tests.support.sight import becomes

__all__ = ["deck"]

FULL, BROKEN = LossReason.TABLE_FULL, LossReason.MALFORMED


def window(number: int, counted: int = 1000, *, probe: str = "flow", **losses: int) -> Snapshot:
    rows = np.zeros(1, FLOW)
    rows["packets"] = counted
    lost = {LossReason[name.upper()]: Loss(packets) for name, packets in losses.items()}
    return Snapshot(probe, "eth0", number, 1, 0, 10**9, 10**9, rows, lost, 0.5, 0, 0)


def said(follower: LossEvents, *items: Snapshot | Event) -> list[tuple[str, str]]:
    return [(event.severity, event.text) for item in items for event in follower.take(item)]


def test_a_loss_is_two_events_however_many_windows_it_takes() -> None:
    follower = LossEvents()
    windows = [
        window(1),
        window(2, 420, table_full=570, malformed=10, not_ip=999),
        *(window(number, 100, table_full=900) for number in range(3, 40)),
        window(40, 1_000_000, table_full=5),
    ]
    assert said(follower, *windows) == [
        ("warning", "window 2 lacks 580 packets (58.0 %): 10 malformed, 570 table full")
    ]
    assert said(follower, *(window(number) for number in range(41, 50))) == [
        (
            "info",
            "windows are whole again; windows 2 to 39 lack 33885 packets: 10 malformed, 33875"
            " table full",
        )
    ]


def test_a_loss_that_comes_and_goes_is_one() -> None:
    follower = LossEvents()
    windows = [window(n, table_full=500 * (n % 3 == 0)) for n in range(1, 60)]
    assert len(said(follower, *windows)) == 1


def test_single_frames_and_small_shares_are_no_event() -> None:
    follower = LossEvents()
    quiet = [window(1, 0, malformed=9), window(2, 100_000, table_full=100), window(3, not_ip=900)]
    assert said(follower, *quiet, window(4, filtered=5000)) == []


def test_path_tracing_lacks_results_not_packets() -> None:
    rows = np.zeros(40, HOP)
    rows["outcome"][:10] = ProbeOutcome.OVERRUN
    lost = {LossReason.OVERRUN: Loss(10)}
    hops = Snapshot("path", "eth0", 3, 1, 0, 10**9, 10**9, rows, lost, 0.5, 0, 0)
    assert said(LossEvents(), hops) == [
        ("warning", "window 3 lacks 10 results (25.0 %): 10 overrun")
    ]  # fmt: skip


def test_probes_are_told_apart_and_a_removed_one_is_summed_up() -> None:
    follower = LossEvents()
    begun = said(follower, window(1, table_full=50), window(7, probe="mine", overrun=20))
    assert [text.partition(":")[0] for _, text in begun] == [
        "window 1 lacks 50 packets (4.8 %)", "window 7 lacks 20 packets (2.0 %)",
    ]  # fmt: skip
    assert said(follower, Event.now("info", "mine", REMOVED)) == [
        ("info", "window 7 lacks 20 packets: 20 overrun")
    ]
    assert said(follower, Event.now("info", "mine", REMOVED)) == []


def test_frames_that_the_program_cannot_parse(deck: Deck) -> None:
    """In the kernel: IPv4 headers of four bytes."""
    deck.controller.start(FLOW_PROBE, "right", FlowOptions(interval=0.05, ingress="xdp"))
    frame = bytes(12) + struct.pack("!H", 0x0800) + bytes((0x41,)) + bytes(19)
    deck.run(200, frame)
    assert becomes(lambda: any("whole again" in text for text in deck.said("info", "flow")))
    (begun,) = [text for text in deck.said("warning", "flow") if "lacks" in text]
    (ended,) = [text for text in deck.said("info", "flow") if "whole again" in text]
    assert " packets (100 %): " in begun
    assert ended.endswith(" 200 packets: 200 malformed")
