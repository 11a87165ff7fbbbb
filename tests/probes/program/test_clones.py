"""Two clones of a program: private maps, shared maps, and the swap between them."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from bpf.attach import chain
from bpf.attach.attachment import Hook
from bpf.maps.map import Map
from bpf.programs import grace
from bpf.syscall import prog_array_set, prog_info
from tests.probes.program.tools import (
    COUNTER,
    PACKETS,
    TC_COUNTER,
    Loose,
    Traffic,
    config,
    direction,
    id_of,
    metric,
    only,
    snapshots,
    table,
    total,
)

MIXED = """\
BPF_ARRAY(window, u64, 1);
BPF_ARRAY(twin, u64, 1);
BPF_ARRAY(steady, u64, 1);
BPF_ARRAY(emptied, u64, 1);
BPF_ARRAY(hidden, u64, 1);
BPF_HASH(order, u64, u64, 64);

int count(struct xdp_md *ctx)
{
    u32 zero = 0;
    u64 *w = window.lookup(&zero), *t = twin.lookup(&zero), *s = steady.lookup(&zero);
    u64 *e = emptied.lookup(&zero), *h = hidden.lookup(&zero);
    if (!w || !t || !s || !e || !h)
        return XDP_ABORTED;
    lock_xadd(w, 1);
    lock_xadd(t, 1);
    lock_xadd(s, 1);
    lock_xadd(e, 1);
    u64 number = *h;
    u64 before = *w;
    *h = number + 1;
    order.update(&before, &number);
    return XDP_PASS;
}
"""
METRICS = (
    metric("window", snapshot=True),
    metric("twin", snapshot=True),
    metric("steady"),
    metric("emptied", init=True),
    metric("order", snapshot=True),
)


def value(exported: Sequence[object], name: str) -> int:
    return int(table(exported, name)[0])  # type: ignore[arg-type]


def test_windows_start_empty_and_shared_maps_go_on(loose: Loose) -> None:
    """S1.14, S1.21, S1.22: incremental where nothing else is asked, a window where it is."""
    probe = loose.add(config(MIXED, *METRICS))
    sent = 0
    for packets in (3, 5, 0, 7, 1):
        loose.send(packets) if packets else None
        sent += packets
        exported = probe.export()
        assert value(exported, "window") == value(exported, "twin") == packets
        assert value(exported, "emptied") == packets
        assert value(exported, "steady") == sent


def test_each_clone_has_the_maps_of_snapshot_metrics_and_shares_all_others(loose: Loose) -> None:
    """S1.13, S1.14: private are those maps alone."""
    probe = loose.add(config(MIXED, *METRICS))
    first, second = (clone.program for clone in only(probe).clones)
    own = {
        name
        for name in only(probe).declared
        if id_of(first.map_fd(name)) != id_of(second.map_fd(name))
    }
    assert own == {"window", "twin", "order"}
    assert first.info().id != second.info().id


def test_without_a_snapshot_metric_there_is_one_program(
    loose: Loose, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1.14: only a snapshot metric makes a clone."""
    probe = loose.add(config(MIXED, metric("steady"), metric("emptied", init=True)))
    assert len(only(probe).clones) == 1
    monkeypatch.setattr(chain, "prog_array_set", lambda *_: pytest.fail("swapped"))
    loose.send(4)
    exported = probe.export()
    assert (value(exported, "steady"), value(exported, "emptied")) == (4, 4)


def test_the_clone_does_what_the_program_does_in_the_same_order(loose: Loose) -> None:
    """S1.15: it is the same code; the private and the hidden map keep their places in it."""
    probe = loose.add(config(MIXED, *METRICS))
    first, second = (clone.program.fd for clone in only(probe).clones)
    assert prog_info(first).jited_bytes == prog_info(second).jited_bytes > 0
    for window in range(4):
        loose.send(5)
        # The window's own count beside the number of packets ever, as the code takes them.
        assert table(probe.export(), "order") == {n + 1: 5 * window + n for n in range(5)}


def test_a_swap_is_one_write_and_copies_no_map(
    loose: Loose, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1.13, S1.21."""
    written: list[int] = []
    probe = loose.add(config(MIXED, *METRICS))

    def writing(fd: int, index: int, prog_fd: int) -> None:
        written.append(id_of(prog_fd))
        prog_array_set(fd, index, prog_fd)

    monkeypatch.setattr(chain, "prog_array_set", writing)
    monkeypatch.setattr(Map, "update", lambda *_: pytest.fail("copies"))
    ids = [clone.program.info().id for clone in only(probe).clones]
    for _ in range(4):
        loose.send()
        probe.export()
    assert written == [ids[1], ids[0], ids[1], ids[0]]


def test_a_clone_is_read_and_emptied_when_no_packet_reaches_it(
    loose: Loose, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1.16, S1.24: swap, then the grace period, then the reading."""
    probe = loose.add(config(MIXED, *METRICS))
    side = only(probe)
    steps: list[str] = []
    wait, read = grace.wait, Map.read

    def reading(self: Map, *, clear: bool = False) -> object:
        idle = side.clones[1 - side.active].maps
        private = self in idle.values()
        assert private or self.spec.name in ("steady", "emptied")
        steps.append("read")
        return read(self, clear=clear)

    def swapping(fd: int, index: int, prog_fd: int) -> None:
        steps.append("swap")
        prog_array_set(fd, index, prog_fd)

    def waiting(*, preempted: bool = False) -> grace.Grace:
        steps.append("wait")
        return wait()

    monkeypatch.setattr(chain, "prog_array_set", swapping)
    monkeypatch.setattr(grace, "wait", waiting)
    monkeypatch.setattr(Map, "read", reading)
    loose.send(3)
    probe.export()
    assert steps == ["swap", "wait"] + ["read"] * 5


def test_probes_of_one_source_share_nothing(loose: Loose) -> None:
    """S1.14: a map belongs to its probe, whatever other map has its name."""
    metrics = [*METRICS[:4], metric("hidden")]
    first = loose.add(config(MIXED, *metrics, name="first"))
    loose.send(2)
    second = loose.add(config(MIXED, *metrics, name="second"))
    loose.send(3)
    for _ in range(2):
        one, two = first.export(), second.export()
        assert (value(one, "steady"), value(two, "steady")) == (5, 3)
        assert (value(one, "hidden"), value(two, "hidden")) == (5, 3)
    loose.send(1)
    assert value(first.export(), "window") == value(second.export(), "window") == 1
    held = [
        {id_of(c.program.map_fd(n)) for c in only(p).clones for n in only(p).declared}
        for p in (first, second)
    ]
    assert not held[0] & held[1]


def test_both_directions_are_swapped_and_each_has_its_own(loose: Loose) -> None:
    """S1.2, S1.4: ingress on XDP or TC, egress on TC."""
    both = config(COUNTER, PACKETS, egress=direction(TC_COUNTER, PACKETS))
    probe = loose.add(both)
    on_tc = loose.add(config(TC_COUNTER, PACKETS, name="tc", hook="tc"))
    for number in range(1, 4):
        loose.send(number)
        loose.send(10 * number, hook=Hook.TC_EGRESS)
        loose.send(100 * number, hook=Hook.TC_INGRESS)
        exported = {s.side: s for s in snapshots(probe.export())}
        assert exported["ingress"].rows["value"].tolist() == [number]
        assert exported["egress"].rows["value"].tolist() == [10 * number]
        assert exported["ingress"].window == exported["egress"].window == number
        assert total(on_tc.export()) == 100 * number


def test_snapshot_metrics_of_a_window_agree_with_each_other(loose: Loose) -> None:
    """S1.22, S1.24: consistent, to the packet, however often they are swapped under traffic."""
    source = MIXED.replace("order.update", "if (0) order.update")
    probe = loose.add(config(source, METRICS[0], METRICS[1]))
    taken: list[Sequence[object]] = []
    end = time.monotonic() + 30
    with Traffic(loose.fd()) as traffic:
        # On a busy machine many windows see no packet.
        while len(taken) < 200 or sum(value(each, "window") > 0 for each in taken) <= 50:
            assert time.monotonic() < end
            taken.append(probe.export())
    taken.append(probe.export())
    for exported in taken:
        assert value(exported, "window") == value(exported, "twin")
    assert sum(value(exported, "window") for exported in taken) == traffic.sent > 0
