"""Replacing a program by another while packets pass, going back, and moving to another hook."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest

from app.lab.netns import inside
from bpf.attach import chain
from bpf.attach.attachment import Hook
from bpf.compiler import Compiler
from bpf.errors import UsageError
from bpf.syscall import prog_fd_by_id
from probes.reports import Fate
from probes.snapshot import Item
from tests.probes.program.tools import (
    COUNTER,
    PACKETS,
    TC_COUNTER,
    Loose,
    Traffic,
    config,
    direction,
    events,
    held_ids,
    metric,
    only,
    replace,
    snapshots,
    table,
    total,
)
from tests.probes.program.variants import KEPT, TOTALS, VARIANTS, fates
from tests.support.veth import End, veth_pair


def test_however_a_program_is_replaced_each_packet_is_counted_once(loose: Loose) -> None:
    """S1.26: 80 changes under traffic: grown, shrunk, other maps, back; exports in between."""
    draw = random.Random(1)
    probe = loose.add(VARIANTS[0])
    items: list[Item] = []
    replacements = 0
    compiled = [probe.compile(variant_) for variant_ in VARIANTS]
    with Traffic(loose.fd()) as traffic:
        for _ in range(120):
            time.sleep(0.001)
            what = draw.random()
            if what < 0.6:
                items += probe.replace(draw.choice(compiled))
                replacements += 1
            elif what < 0.75 and probe.previous:
                items += probe.roll_back()[1]
                replacements += 1
            else:
                items += probe.export()
    items += probe.export()
    for each in compiled:
        each.close()
    assert replacements >= 80
    assert not events(items) or all("is full" in e.text for e in events(items))
    assert total(items) == traffic.sent > 0
    counting = [s for s in snapshots(items) if s.metric == "packets"]
    assert [s.window for s in counting] == list(range(1, 122))
    assert [s.generation for s in counting] == sorted(s.generation for s in counting)
    assert counting[-1].generation == replacements + 1
    assert sum(bool(s.rows["value"].any()) for s in counting) > 15


def test_maps_of_the_same_layout_keep_what_is_in_them(loose: Loose) -> None:
    """S1.26: also maps without a metric; maps declared to start empty do."""
    probe = loose.add(config(KEPT, *TOTALS[:2]))
    loose.send(5)
    larger = KEPT.replace("by_size, u32, u64, 64", "by_size, u32, u64, 128")
    with probe.compile(config(larger, *TOTALS)) as compiled:
        assert fates(probe.compare(compiled)) == {
            "total": Fate.KEPT,
            "hidden": Fate.KEPT,
            "by_size": Fate.EMPTY,
        }
        ended = probe.replace(compiled)
    assert table(ended, "by_size") == {64: 5}, "its last window comes before it is lost"
    assert {s.generation for s in snapshots(ended)} == {1}
    loose.send(2)
    exported = probe.export()
    assert table(exported, "total") == table(exported, "hidden") == {0: 7}
    assert table(exported, "by_size") == {64: 2}


def test_the_last_window_of_a_metric_that_vanishes_is_exported(loose: Loose) -> None:
    probe = loose.add(config(KEPT, *TOTALS))
    loose.send(5)
    with probe.compile(config(COUNTER, PACKETS)) as compiled:
        report = probe.compare(compiled)
        ended = probe.replace(compiled)
    gone = dict.fromkeys(("total", "by_size", "hidden"), Fate.GONE)
    assert fates(report) == gone | {"packets": Fate.NEW}
    assert report.lost_metrics == ("ingress.total", "ingress.by_size", "ingress.hidden")
    assert report.new_metrics == ("ingress.packets",)
    assert table(ended, "total") == {0: 5}
    assert table(ended, "by_size") == {64: 5}


def test_a_roll_back_brings_the_maps_as_they_were(loose: Loose) -> None:
    """The report says so, and they are."""
    probe = loose.add(config(KEPT, *TOTALS))
    loose.send(5)
    other = KEPT.replace("by_size, u32, u64, 64", "by_size, u32, u64, 128").replace(
        "BPF_ARRAY(hidden", "BPF_ARRAY(other, u64, 1);\nBPF_ARRAY(hidden"
    )
    replace(probe, config(other, *TOTALS[:2]))
    assert (probe.generation, probe.previous) == (2, 1)
    loose.send(3)
    report, ended = probe.roll_back()
    assert fates(report) == {
        "total": Fate.KEPT,
        "hidden": Fate.KEPT,
        "by_size": Fate.AS_IT_WAS,
        "other": Fate.GONE,
    }
    assert (report.lost_metrics, report.new_metrics) == ((), ("ingress.hidden",))
    assert table(ended, "by_size") == {64: 3}
    assert (probe.generation, probe.previous) == (3, 2)
    exported = probe.export()
    assert table(exported, "by_size") == {64: 5}
    assert table(exported, "total") == table(exported, "hidden") == {0: 8}
    assert {s.generation for s in snapshots(exported)} == {3}
    # Back is a change like any other: there is a way back from it.
    report, _ = probe.roll_back()
    assert fates(report)["by_size"] is Fate.AS_IT_WAS
    assert fates(report)["other"] is Fate.AS_IT_WAS
    assert table(probe.export(), "by_size") == {64: 3}


def test_a_map_that_was_gone_comes_back_as_it_was(loose: Loose) -> None:
    probe = loose.add(config(KEPT, *TOTALS))
    loose.send(5)
    replace(probe, config(COUNTER, PACKETS))
    loose.send(3)
    report, ended = probe.roll_back()
    names = ("total", "by_size", "hidden")
    assert fates(report) == dict.fromkeys(names, Fate.AS_IT_WAS) | {"packets": Fate.GONE}
    assert total(ended) == 3
    assert table(probe.export(), "total") == {0: 5}


def test_there_is_nothing_to_go_back_to_at_first(loose: Loose) -> None:
    probe = loose.add(config(COUNTER, PACKETS))
    assert probe.previous is None
    with pytest.raises(UsageError, match="probe probe has no generation to go back to"):
        probe.roll_back()


@pytest.mark.slow
def test_nothing_is_left_of_generations_before_the_last(loose: Loose) -> None:
    """After 100 replacements only the programs and maps of two generations remain."""
    probe = loose.add(VARIANTS[0])
    with probe.compile(VARIANTS[3]) as one, probe.compile(VARIANTS[5]) as two:
        for compiled in (one, two, one, two):
            probe.replace(compiled)
            loose.send()
            probe.export()
        maps, programs, fds = held_ids()
        for compiled in (one, two) * 50:
            probe.replace(compiled)
            probe.export()
        now = held_ids()
    assert (len(now[0]), len(now[1]), now[2]) == (len(maps), len(programs), fds)
    (other,) = probe._previous.sides if probe._previous else ()
    running = {c.program.info().id for s in (only(probe), other) for c in s.clones}
    assert running <= now[1]
    gone = programs - now[1]
    assert len(gone) >= len(running)
    for prog_id in gone:
        with pytest.raises(FileNotFoundError):
            prog_fd_by_id(prog_id)


def test_a_removed_probe_leaves_nothing(compiler: Compiler) -> None:
    before = held_ids()
    with Loose(compiler) as loose:
        probe = loose.add(VARIANTS[3])
        loose.send()
        replace(probe, VARIANTS[2])
        probe.export()
        assert held_ids() != before
        loose.remove(probe)
        assert held_ids() == before
        assert not loose.hooks.in_use()


@pytest.fixture
def pair() -> Iterator[tuple[End, End]]:
    with veth_pair() as ends:
        yield ends


def test_a_probe_moves_to_another_interface_and_back(
    compiler: Compiler, pair: tuple[End, End]
) -> None:
    """S1.26: what it counted goes with it where its maps are kept; the report warns."""
    left, _ = pair
    with inside(left.ns), Loose(compiler) as loose:
        probe = loose.add(config(KEPT, metric("by_size", snapshot=True), *TOTALS[:1]))
        stays = loose.add(config(COUNTER, PACKETS, name="stays"))
        loose.send(5)
        there = config(KEPT, metric("by_size", snapshot=True), *TOTALS[:1], interface="left")
        with probe.compile(there) as compiled:
            assert probe.compare(compiled).warnings == ("ingress moves from lo, xdp to left, xdp",)
            ended = probe.replace(compiled)
        assert [(s.interface, s.rows["value"].sum()) for s in snapshots(ended)] == [
            ("lo", 5),
            ("lo", 5),
        ]
        loose.send(100)
        loose.send(7, interface="left")
        assert probe.interfaces[0].name == "left"
        exported = probe.export()
        assert table(exported, "by_size") == {64: 7}
        assert table(exported, "total") == {0: 12}
        report, ended = probe.roll_back()
        assert report.warnings == ("ingress moves from left, xdp to lo, xdp",)
        assert {s.interface for s in snapshots(ended)} == {"left"}
        loose.send(1000, interface="left")
        loose.send(2)
        exported = probe.export()
        assert table(exported, "by_size") == {64: 2}
        assert table(exported, "total") == {0: 14}
        assert total(stays.export()) == 107
        # Two replacements on, nothing of it is on that interface.
        replace(probe, config(COUNTER, PACKETS))
        assert {p.interface.name for p in loose.hooks.in_use()} == {"lo"}


def test_a_direction_comes_and_goes(loose: Loose) -> None:
    """S1.2: the other one misses nothing."""
    both = config(COUNTER, PACKETS, egress=direction(TC_COUNTER, PACKETS))
    probe = loose.add(config(COUNTER, PACKETS))
    loose.send(1)
    replace(probe, both)
    loose.send(2)
    loose.send(20, hook=Hook.TC_EGRESS)
    with probe.compile(config(COUNTER, PACKETS)) as compiled:
        report = probe.compare(compiled)
        ended = probe.replace(compiled)
    assert report.warnings == ("egress is no longer watched",)
    assert ("egress", "packets", Fate.GONE) in {(m.side, m.map, m.fate) for m in report.maps}
    assert report.lost_metrics == ("egress.packets",)
    assert {s.side: int(s.rows["value"][0]) for s in snapshots(ended)} == {
        "ingress": 2,
        "egress": 20,
    }
    loose.send(400, hook=Hook.TC_EGRESS)
    loose.send(4)
    _, ended = probe.roll_back()
    assert total(ended) == 4
    loose.send(8)
    loose.send(80, hook=Hook.TC_EGRESS)
    assert total(probe.export()) == 88


def test_probes_come_and_go_and_the_others_miss_nothing(loose: Loose) -> None:
    """First, middle and last of a chain, under traffic: the counts of the rest are exact."""
    names = ["a", "b", "c", "d", "e"]
    probes = {name: loose.add(config(COUNTER, PACKETS, name=name)) for name in names}
    stays = loose.add(config(COUNTER, PACKETS, name="stays"))
    sums = dict.fromkeys(names, 0)
    with Traffic(loose.fd()) as traffic:
        for number in range(15):
            name = ("a", "c", "e")[number % 3]
            sums[name] += total(probes[name].export())
            loose.remove(probes[name])
            stays_so_far = loose.add(config(COUNTER, PACKETS, name=name))
            probes[name] = stays_so_far
    assert total(stays.export()) == traffic.sent > 0
    assert total(probes["b"].export()) == total(probes["d"].export()) == traffic.sent
    for name in ("a", "c", "e"):
        assert 0 < sums[name] + total(probes[name].export()) < traffic.sent


def test_a_chain_takes_32_probes_and_the_next_is_refused(
    compiler: Compiler, loose: Loose, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain, "MAX_PROBES", 3)
    compiler.unconfined()  # the helper runs, and holds its descriptors, for a minute
    probes = [loose.add(config(COUNTER, PACKETS, name=f"p{number}")) for number in range(3)]
    held = held_ids()
    with pytest.raises(UsageError, match="a hook takes at most 3 probes"):
        loose.add(config(COUNTER, PACKETS, name="more"))
    assert held_ids() == held
    loose.send(3)
    assert [total(probe.export()) for probe in probes] == [3, 3, 3]
    loose.remove(probes[1])
    loose.add(config(COUNTER, PACKETS, name="more"))
    loose.send(2)
    assert [total(probe.export()) for probe in loose.probes] == [2, 2, 2]
