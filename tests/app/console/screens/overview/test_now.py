"""Sentences about trouble: what they say, in which order, and where they lead."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.console.live.overview_feed import Pulse, Pulses
from app.console.live.paths import LivePaths
from app.console.live.state import LiveMonitor
from app.console.screens.overview.now import calm, ordinal, troubles
from app.console.screens.overview.trouble import Trouble, output_troubles
from app.console.screens.paths.hop import PathKey
from app.console.screens.paths.model import Paths
from app.console.screens.triggers.model import Triggers
from probes.drops.counted import Dropped
from probes.monitor.finding import Finding
from probes.monitor.state import PolicyState
from probes.path.records import DESTINATION_HOP, PATH, PathRowKind
from probes.reports import OutputState, OutputStatus
from probes.snapshot import Event, Loss, LossReason
from tests.app.console.fake_paths import LAB, FakePath, table
from tests.app.console.fake_triggers import FakeMonitor, Said, monitor, policy
from tests.app.console.screens.overview.traffic import FULL, SECOND_NS, pulse
from widgets.tones import Tone

START = 1000 * SECOND_NS


class Lab:
    """Eight seconds of probes of two flows, and findings about them."""

    def __init__(self) -> None:
        self.live = LivePaths()
        self.ways = [FakePath(LAB), FakePath(LAB, flow=FakePath(LAB).flow._replace(source_port=7))]
        self.now_ns = START
        for _ in range(8):
            self.passes(1)

    def passes(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now_ns += SECOND_NS
            for way in self.ways:
                self.live.add(table(way.second(self.now_ns - SECOND_NS), self.now_ns))

    def finds(self, kind: PathRowKind, hop: int, *, ways: int = 2, **values: object) -> None:
        values = {"since_ns": self.now_ns - SECOND_NS, "responder": "10.94.3.2"} | values
        rows = [way.change(kind, hop, self.now_ns, **values) for way in self.ways[:ways]]
        self.live.add(table(np.concatenate(rows, dtype=PATH), self.now_ns))

    @property
    def paths(self) -> Paths:
        paths = Paths()
        paths.take(self.live.view(), ())
        return paths


def found(
    paths: Paths | None = None, *, pulses: Pulses | None = None, silent: tuple[Pulse, ...] = (),
    ended: dict[str, str] | None = None, triggers: Triggers | None = None,
    events: tuple[Event, ...] = (), left_out: int = 0, others: tuple[Trouble, ...] = (),
) -> list[Trouble]:  # fmt: skip
    return troubles(
        pulses or Pulses(), silent, ended or {}, 12.0, left_out, paths or Paths(),
        triggers or Triggers(), events, 400 * SECOND_NS, others=others,
    )  # fmt: skip


def test_drops_of_the_kernel_are_told_with_reasons_while_their_probe_runs() -> None:
    dropped = Dropped("no_socket", 1200, 9000), Dropped("udp_csum", 3, 90)
    for came_at, count in ((11.0, 1), (5.0, 0)):
        probe = pulse(name="drops", came_at=came_at, side="event")
        told = found(pulses=Pulses({"drops": probe}, dropped=dropped))
        assert len(told) == count
    (one,) = found(pulses=Pulses({"drops": pulse(name="drops", came_at=11.5)}, dropped=dropped))
    text = "The kernel dropped 1203 packets in the last window: 1.20 k no_socket, 3 udp_csum"
    assert one.sentence(99) == text
    assert (one.screen, one.row) == ("programs", ("drops", "event"))


def test_a_queue_is_one_sentence_for_all_flows_until_it_is_over() -> None:
    lab = Lab()
    lab.finds(PathRowKind.QUEUE, 3, amount_ns=20_000_000)
    (one,) = found(lab.paths)
    assert one.sentence(99) == (
        "20.0 ms of queueing at hop 3 (10.94.3.2) towards 10.94.6.2, began 1 s ago, on 2 flows"
    )
    assert one.sentence(69).endswith("10.94.6.2")
    assert (one.screen, one.row) == ("paths", (PathKey("10.94.6.2"), 3))
    lab.passes(1)
    lab.finds(PathRowKind.QUEUE_OVER, 3, ways=1, amount_ns=25_000_000)
    assert len(found(lab.paths)) == 1
    lab.finds(PathRowKind.QUEUE_OVER, 3, amount_ns=25_000_000)
    assert not found(lab.paths)
    (over,) = lab.paths.spells(PathRowKind.QUEUE)
    assert (over.seconds(0), over.worst, over.now) == (2.0, 0.025, 0.0)
    lab.passes(2)
    lab.finds(PathRowKind.QUEUE, 3, ways=1, amount_ns=9_000_000)
    assert "2nd in a minute" in found(lab.paths)[0].sentence(200)
    # A queue ends with its flows, too.
    lab.live.add(table(lab.ways[0].second(0)[:0], lab.now_ns + 20 * SECOND_NS))
    assert not found(lab.paths)


def test_loss_on_a_path_comes_before_a_queue_and_may_be_at_its_end() -> None:
    lab = Lab()
    lab.finds(PathRowKind.QUEUE, 3, amount_ns=20_000_000)
    lab.finds(PathRowKind.LOSS, 6, ways=1, lost=5, answered=95, responder="10.94.6.2")
    loss, queue = found(lab.paths)
    assert loss.text == "5.0 % of packets lost at the last link before 10.94.6.2"
    assert loss.row == (PathKey("10.94.6.2"), DESTINATION_HOP)
    assert "queueing" in queue.text
    # The end of a loss may name another flow.
    lab.ways.reverse()
    lab.finds(PathRowKind.LOSS_OVER, 6, ways=1, lost=5, answered=195)
    assert len(found(lab.paths)) == 1


@pytest.mark.parametrize(
    ("changes", "said", "tone"),
    [
        ({"last": FULL, "losses": {**FULL, LossReason.NOT_IP: Loss(9)}},
         "Probe flow lost 7 packets in its last window: table full, 7 since the start", Tone.BAD),
        ({"poll": 0.3}, "Probe flow needs 300 ms of each 1.0 s to read tables", Tone.WARN),
        ({"poll": 0.9}, "Probe flow needs 900 ms of each 1.0 s to read tables", Tone.BAD),
        ({"occupancy": 0.7}, "The fullest table of probe flow is 70.0 % full", Tone.WARN),
    ],
)  # fmt: skip
def test_a_probe_in_trouble_is_a_sentence(
    changes: dict[str, object], said: str, tone: Tone
) -> None:
    one = pulse(**changes)
    (told,) = found(pulses=Pulses({one.name: one}))
    assert (told.sentence(99), told.tone) == (said, tone)
    assert (told.screen, told.row) == ("programs", ("flow", "ingress"))


def test_a_healthy_probe_a_lost_packet_of_old_and_no_probe_are_calm() -> None:
    one = pulse(generation=3, occupancy=0.06, losses=FULL)
    assert not found(pulses=Pulses({one.name: one}))
    assert calm(Pulses({one.name: one})).endswith("1 probe running, 7 packets lost before")
    assert calm(Pulses()).startswith("Starting")


def test_ended_probes_come_first_and_old_warnings_last() -> None:
    probes = {name: pulse(name=name) for name in ("flow", "path")}
    info = monitor(
        policy("busy: flows > 10 -> dns", PolicyState.ACTIVE),
        policy("held: flows > 10 -> dns", PolicyState.HOLD),
        policy("all: always -> dns", PolicyState.ACTIVE),
        policy("mine: flows > 9 -> dns", PolicyState.ACTIVE, forced=True),
    )
    live, fake = LiveMonitor(), FakeMonitor()
    for item in fake.window({"busy": Said(20, 10), "held": Said(3, 10)}):
        live.add(item)
    events = tuple(
        Event(at * SECOND_NS, severity, "x", text)
        for at, severity, text in [
            (390, "warning", "7 lost in 9"), (380, "error", "gone"), (370, "info", "fine"),
            (360, "warning", "8 lost in 9"), (50, "error", "long ago"),
        ]
    )  # fmt: skip
    told = found(
        pulses=Pulses(probes), silent=(probes["path"], probes["flow"]), ended={"flow": "no link"},
        triggers=Triggers(live.view(), info), events=events, left_out=3,
    )  # fmt: skip
    assert [one.text for one in told] == [
        "Probe flow has ended: no link",
        "Probe path is silent: no window for 12 s",
        "00:06:20 x: gone",
        "Policy busy fires: 20 now",
        "Policy held fired and holds",
        "3 flows are too many to show: Flows has the largest",
        "00:06:30 x: 7 lost in 9",
    ]
    assert [one.is_present for one in told] == [True] * 6 + [False]
    assert told[-1].clauses == ("2 times",)
    assert told[-1].row == events[0]


def test_a_policy_that_fires_says_who_and_no_formula() -> None:
    fake, live = FakeMonitor(), LiveMonitor()
    text = "10.77.0.2 -> 10.77.0.1, 300 ports by TCP SYN"
    who = Finding(f"{text}; 300 packets, 17 KiB in 1.0 s", "src:10.77.0.2", 300)
    armed, active = PolicyState.ARMED, PolicyState.ACTIVE
    for item in (*fake.window({"scan": Said(20, 10)}), fake.transition("scan", armed, active, "")):
        live.add(item)
    live.add(fake.transition("scan", armed, active, "flows 20", finding=who))
    info = monitor(policy("scan: flows > 10 -> dns", active))
    begin = Event(388 * SECOND_NS, "warning", "monitor", "scan", "policy scan", "begin")
    (told,) = found(triggers=Triggers(live.view(), info), events=(begin,))
    assert told.text == f"scan: {text}"
    assert told.clauses == ("since 00:06:28", "300 packets, 17 KiB in 1.0 s", "runs dns")


def test_events_about_a_present_trouble_are_no_second_sentence_and_others_go_on() -> None:
    lab = Lab()
    lab.finds(PathRowKind.QUEUE, 3, amount_ns=20_000_000)
    at = 390 * SECOND_NS
    events = (
        Event(at, "warning", "path", "queue", "10.94.6.2 hop 3 queue", "begin"),
        Event(at, "warning", "path", "another", "10.94.6.2 hop 2 queue", "begin"),
        Event(at, "info", "path", "over", "10.94.6.2 hop 1 queue", "end"),
        Event(at - 1, "warning", "path", "a third", "10.94.6.2 hop 1 queue", "begin"),
        Event(1, "warning", "monitor", "on", "policy old", "begin"),
    )
    told = found(lab.paths, events=events)
    assert [one.text.rpartition(" path: ")[2] for one in told] == [
        "20.0 ms of queueing at hop 3 (10.94.3.2) towards 10.94.6.2",
        "another",
        "00:00:00 monitor: on",
        "a third",
    ]
    assert [one.is_present for one in told] == [True, True, True, False]


def test_an_output_that_fails_is_a_sentence_with_what_is_undelivered() -> None:
    fails = OutputStatus(
        "main", "ipfix://there:1", OutputState.FAILING, "Connection refused", 388 * SECOND_NS, 7,
        9000, 40, {"queue full": 2310, "ended": 2}, 9,
    )  # fmt: skip
    fine = replace(fails, name="fine", state=OutputState.DELIVERING)
    held = replace(fails, name="held", undelivered={}, queued=1)
    others = output_troubles((fails, fine, held), 400 * SECOND_NS)
    begin = Event(388 * SECOND_NS, "warning", "output", "does not take records", "main", "begin")
    lost, waits = found(events=(begin,), others=tuple(others))
    assert lost.sentence(120) == (
        "Output main fails: Connection refused, 2.31 k records undelivered, since 00:06:28, "
        "7 records waiting"
    )
    assert lost.timeless.startswith("Output main fails: Connection refused, 2.31 k records")
    assert waits.sentence(99) == (
        "Output held fails: Connection refused, for 12 s, 1 record waiting"
    )
    assert (lost.tone, waits.tone) == (Tone.BAD, Tone.WARN)
    assert (lost.command, waits.command) == ("output.list", "output.list")
    assert lost.key != waits.key


def test_ordinals() -> None:
    said = [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 102, 111)]
    assert said == ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "102nd", "111th"]
