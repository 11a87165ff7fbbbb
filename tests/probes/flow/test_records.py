"""From records to rows of flows; tables within a limit of memory, for CPUs that come later, too."""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bpf.arrays import Array
from bpf.attach.attachment import Hook
from bpf.attach.interface import Interface
from bpf.errors import KernelError, UsageError
from bpf.machine import online_cpus
from bpf.maps.kinds import map_memory
from bpf.syscall import prog_test_run
from probes.flow import probe as flow_probe
from probes.flow import records as module
from probes.flow.clock import TickClock
from probes.flow.filter import FlowFilter
from probes.flow.records import RECORD, FlowDirection, TableSizes, hash_keys, key_words, rows_of
from probes.snapshot import Event, Item, Loss, LossReason, Snapshot
from tests.probes.conftest import LooseProbe, MakeProbe
from tests.probes.flow.test_windows import frame
from tests.probes.program.tools import Traffic, held_ids, on_cpu
from tests.support.descriptors import open_fds

ETH = Interface("eth0", 2, ethernet=True)


@pytest.fixture(scope="module")
def clock() -> Iterator[TickClock]:
    ticks = TickClock()
    yield ticks
    ticks.close()


def packets_of(records: int) -> Array:
    """Packets of each of `records` records, all different."""
    return np.arange(1, records + 1, dtype="u8") << np.uint64(33)


def some_records(numbers: Array) -> Array:
    """Records: equal numbers mean the same flow."""
    made = np.zeros(len(numbers), RECORD)
    made["key"][:, 0] = numbers
    made["key"][:, 4] = 6 << 32
    made["packets"] = packets_of(len(numbers))
    made["bytes"] = 100
    made["tos"] = np.arange(len(numbers)) % 251
    made["tcp_flags"] = 1 << (np.arange(len(numbers)) % 8)
    return made


def check_merge(numbers: Array, clock: TickClock) -> None:
    given_ = some_records(numbers)
    now = clock._jiffies
    given_["first"] = now - 10 - (numbers + np.arange(len(numbers), dtype="u8") * 7) % 5
    given_["last"] = now - np.arange(len(numbers))
    rows = rows_of([given_[:7], given_[7:]], FlowDirection.EGRESS, clock, ETH)
    assert len(rows) == len(np.unique(numbers))
    for row in rows:
        of_flow = numbers == int.from_bytes(row["source"].tobytes()[:8], "little")
        mine = given_[of_flow]
        assert row["packets"] == packets_of(len(numbers))[of_flow].sum()
        assert row["bytes"] == 100 * of_flow.sum()
        assert row["tcp_flags"] == np.bitwise_or.reduce(mine["tcp_flags"])
        assert row["first_ns"] == clock.monotonic_ns(mine["first"]).min()
        assert row["tos"] in mine["tos"][mine["first"] == mine["first"].min()]
        assert row["last_ns"] == clock.monotonic_ns(mine["last"]).max()
        assert row["direction"] == FlowDirection.EGRESS
        assert row["protocol"] == 6


@settings(suppress_health_check=[HealthCheck.too_slow])  # other tests run beside it
@given(numbers=arrays("u8", st.integers(0, 60), elements=st.integers(0, 20)))
def test_records_of_one_flow_become_one_row(clock: TickClock, numbers: Array) -> None:
    check_merge(numbers, clock)


def test_flows_whose_hashes_collide_stay_apart(
    clock: TickClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "hash_keys", lambda keys: keys[:, 0] % np.uint64(3))
    check_merge(np.arange(40, dtype="u8") % 13, clock)


def test_a_flow_has_one_key_whatever_its_flags(clock: TickClock) -> None:
    both = some_records(np.zeros(1, "u8")), some_records(np.zeros(1, "u8"))
    both[1]["tcp_flags"] = both[1]["tos"] = 0xFF
    first, second = (key_words(rows_of([r], FlowDirection.INGRESS, clock, ETH)) for r in both)
    assert np.array_equal(first, second)
    out = key_words(rows_of([both[0]], FlowDirection.EGRESS, clock, ETH))
    assert not np.array_equal(first, out)
    assert hash_keys(first) != hash_keys(out)


def test_ticks_become_monotonic_time(clock: TickClock) -> None:
    before = time.monotonic_ns()
    clock.update()
    after = time.monotonic_ns()
    now = np.array([clock._jiffies], "u4")
    tolerance = clock.tick_ns + 10**7
    assert before - tolerance < int(clock.monotonic_ns(now)[0]) < after + tolerance
    wrapped = np.array([0xFFFFFFF0], "u4")
    ago = (clock._jiffies - 0xFFFFFFF0) % 2**32
    assert int(clock.monotonic_ns(wrapped)[0]) == int(clock.monotonic_ns(now)[0]) - (
        ago * clock.tick_ns
    )


MIB = 1 << 20
LAST = online_cpus()[-1]
FEW = TableSizes(512, cpus=1, ring=256 << 10)
"""Tables of CPU 0 alone."""
several = pytest.mark.skipif(LAST == 0, reason="needs a second CPU")


@pytest.mark.parametrize("cpus", [1, 2, 3, 8, 64, 128, 512])
@pytest.mark.parametrize("memory", [24, 48, 192, 768])
def test_sizes_stay_within_the_limit_and_use_it(cpus: int, memory: int) -> None:
    try:
        sizes = TableSizes.within(memory * MIB, cpus)
    except UsageError:
        assert cpus * 512 * 68 * 4 > memory * MIB * 0.7
        return
    assert sizes.memory <= memory * MIB
    assert sizes.records & sizes.records - 1 == 0
    assert sizes.ring & sizes.ring - 1 == 0
    assert sizes.ring >= mmap.PAGESIZE
    more = TableSizes(2 * sizes.records, cpus, sizes.ring)
    assert sizes.records == 131072 or more.memory > memory * MIB


def test_too_little_memory_is_refused_in_one_line() -> None:
    with pytest.raises(UsageError) as refusal:
        TableSizes.within(16 * MIB, 256)
    assert str(refusal.value) == (
        "the flow tables of 256 CPUs do not fit into 16 MiB of kernel memory; "
        "--memory must be at least 47 MiB"
    )
    TableSizes.within(47 * MIB * 3 // 4, 256)


@pytest.mark.parametrize("page", [16 << 10, 64 << 10])
def test_a_ring_has_bytes_not_pages(page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = TableSizes.within(192 * MIB, 4)
    monkeypatch.setattr(mmap, "PAGESIZE", page)
    assert TableSizes.within(192 * MIB, 4) == usual


def test_the_kernel_agrees(make_probe: MakeProbe) -> None:
    sizes = TableSizes(8192)
    probe = make_probe(sizes=sizes).probe
    # One hook of two.
    assert probe.memory() == pytest.approx(sizes.memory / 2, rel=0.03)


def test_the_compilers_own_tables_take_next_to_nothing(make_probe: MakeProbe) -> None:
    probe = make_probe(records=65536).probe
    compiled = probe.compile(probe.config)
    try:
        taken = sum(map_memory(m.fd) for c in compiled.sides.values() for m in c.maps.values())
    finally:
        compiled.close()
    assert taken < MIB // 8 < probe.memory() / 50


@pytest.mark.slow
def test_another_filter_or_source_takes_over_the_tables(make_probe: MakeProbe) -> None:
    probe = make_probe().probe
    for _ in range(2):
        probe.poll()  # each half opens its loss counters when it is first read
    maps = held_ids()[0]
    probe.reconfigure(FlowFilter.parse("udp"))
    assert held_ids()[0] == maps
    compiled = probe.compile(probe.config)
    probe.replace(compiled)
    compiled.close()
    assert held_ids()[0] == maps
    probe.roll_back()
    assert held_ids()[0] == maps


def send(loose: LooseProbe, packets: int, cpu: int, flows: int = 1) -> None:
    with on_cpu(cpu):
        for flow in range(flows):
            prog_test_run(loose.fd, frame(flow), repeat=packets)


def packets(items: Sequence[Item]) -> int:
    return sum(int(s.rows["packets"].sum()) for s in items if isinstance(s, Snapshot))


def texts(items: Sequence[Item]) -> list[tuple[str, str]]:
    return [(item.severity, item.text) for item in items if isinstance(item, Event)]


@several
def test_a_cpu_that_comes_later_loses_nothing_and_gets_tables(make_probe: MakeProbe) -> None:
    loose = make_probe(Hook.TC_INGRESS, sizes=FEW)
    send(loose, 10, cpu=0)
    send(loose, 1000, cpu=LAST)
    before = loose.probe.poll()
    assert packets([before]) == 1010
    assert len(before.rows) == 1
    assert before.losses == {}
    send(loose, 500, cpu=LAST, flows=3)
    items = loose.probe.export()
    told = f"CPU {LAST} is online: "
    assert [severity for severity, _ in texts(items)] == ["info"]
    assert texts(items)[0][1].startswith(told)
    assert f"512 records on each of {LAST + 1} CPUs" in texts(items)[0][1]
    send(loose, 200, cpu=LAST, flows=100)
    after = loose.probe.poll()
    assert after.occupancy == 100 / 512
    assert packets(items) == 1500
    assert packets([after]) == 20_000
    assert texts(loose.probe.export()) == []


@several
def test_a_cpu_that_comes_later_wakes_user_space(make_probe: MakeProbe) -> None:
    loose = make_probe(Hook.TC_INGRESS, sizes=FEW)
    with on_cpu(LAST):
        for _ in range(1000):  # in one jiffy of 16
            prog_test_run(loose.fd, frame(1), repeat=100)
            if woken(loose):
                return
    pytest.fail("user space was not woken")


def woken(loose: LooseProbe) -> bool:
    return bool(loose.probe._alarm.wait(0.002))


@several
def test_packets_that_the_ring_has_no_room_for_are_counted_as_lost(make_probe: MakeProbe) -> None:
    loose = make_probe(Hook.TC_INGRESS, sizes=FEW)
    send(loose, 100_000, cpu=LAST)
    window = loose.probe.poll()
    lost = window.losses[LossReason.TABLE_FULL]
    assert packets([window]) == (256 << 10) // 72
    assert lost == Loss(100_000 - packets([window]), lost.packets * len(frame(0)))


@several
def test_tables_grow_under_traffic_without_a_loss(make_probe: MakeProbe) -> None:
    loose = make_probe(Hook.TC_INGRESS, sizes=FEW)
    with Traffic(loose.fd, frame(1), burst=50_000) as traffic, on_cpu(LAST):
        items = [*loose.probe.export(), *loose.probe.export()]
    items.append(loose.probe.poll())
    assert len(texts(items)) == 1
    lost = [s.losses.get(LossReason.TABLE_FULL, Loss()) for s in items if isinstance(s, Snapshot)]
    assert packets(items) + sum(loss.packets for loss in lost) == traffic.sent


@several
def test_where_larger_tables_do_not_fit_a_line_says_so_and_all_runs_on(
    make_probe: MakeProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    loose = make_probe(Hook.TC_INGRESS, sizes=FEW, memory=FEW.memory)
    for _ in range(2):
        monkeypatch.setattr(flow_probe, "numbered_cpus", lambda: 64)
        send(loose, 1000, cpu=LAST)
        items = loose.probe.export()
        assert packets(items) == 1000
        if said := texts(items):
            (event,) = said
    assert event[0] == "warning"
    assert event[1].startswith("CPU 63 is online, and has no flow tables: the flow tables of 64")


@pytest.mark.parametrize("name", ["alarm", "datagrams"])
def test_a_map_that_the_kernel_refuses_is_named_and_leaves_nothing(
    make_probe: MakeProbe, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    before = open_fds()
    spec = getattr(flow_probe, f"_{name.upper()}")
    monkeypatch.setattr(flow_probe, f"_{name.upper()}", replace(spec, max_entries=0))
    with pytest.raises(KernelError, match=f"map {name} cannot be made: .*Invalid argument"):
        make_probe()
    assert open_fds() <= before
