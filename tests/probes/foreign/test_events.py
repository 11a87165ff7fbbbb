"""Ring buffers as tables: each record of a program is a row."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import pytest

from bpf.compiler import CompileError, Compiler
from bpf.compiler.records import record_types
from bpf.errors import UsageError
from bpf.machine import online_cpus
from bpf.maps.ring import PAGES
from probes.config.model import parse
from probes.program.probe import ProgramProbe
from probes.snapshot import LossReason, Snapshot
from probes.tables.conversion import columns, flat_rows
from tests.probes.program.tools import (
    Loose,
    Traffic,
    config,
    direction,
    events,
    metric,
    replace,
    snapshots,
)
from tests.support.descriptors import open_fds

SOURCE = """\
#include <uapi/linux/bpf.h>
struct event {
    u64 number;
    __be32 saddr;
    u16 size;
    u8 kind : 3;
};
BPF_ARRAY(numbers, u64, 1);
BPF_RINGBUF_OUTPUT(written, PAGES);
BPF_RINGBUF_OUTPUT(reserved, PAGES);

int count(struct xdp_md *ctx) {
    u32 zero = 0;
    u64 *number = numbers.lookup(&zero);
    if (!number)
        return XDP_PASS;
    struct event event = {.number = __sync_fetch_and_add(number, 1), .saddr = bpf_htonl(0x7f000001),
                          .size = ctx->data_end - ctx->data, .kind = 3};
    written.ringbuf_output(&event, sizeof(event), 0);
    struct event *record = reserved.ringbuf_reserve(sizeof(struct event));
    if (record) {
        *record = event;
        reserved.ringbuf_submit(record, 0);
    }
    return XDP_PASS;
}
"""
ONE = re.sub(r"    struct event \*record.*?\n    }\n", "", SOURCE, flags=re.DOTALL)
"""With one ring, of 64 pages."""
ONE = ONE.replace("BPF_RINGBUF_OUTPUT(reserved, PAGES);", "").replace("PAGES", "64")
PERF = ONE.replace("RINGBUF_OUTPUT(written, 64)", "PERF_OUTPUT(written)").replace(
    "ringbuf_output(&event, sizeof(event), 0)", "perf_submit(ctx, &event, sizeof(event))"
)
NAMES = ("position", "value.number", "value.saddr", "value.size", "value.kind")
SIZE = 24
"""Bytes of a record with its header."""


@pytest.fixture
def loose(compiler: Compiler) -> Iterator[Loose]:
    with Loose(compiler) as hooks:
        yield hooks


def source(pages: int = 1) -> str:
    return SOURCE.replace("PAGES", str(pages))


def rows(table: Snapshot) -> list[tuple[Any, ...]]:
    assert table.schema is not None
    assert columns(table.schema, table.rows.dtype) == NAMES
    return list(flat_rows(table.schema, table.rows))


def test_each_record_is_a_row_of_one_window(loose: Loose) -> None:
    probe = loose.add(config(source(), metric("written"), metric("reserved", snapshot=True)))
    first = 0
    for sent in (3, 1, 0, 2):
        loose.send(sent) if sent else None
        truth = [(i, first + i, "127.0.0.1", 64, 3) for i in range(sent)]
        assert [rows(table) for table in snapshots(probe.export())] == [truth, truth]
        first += sent


def test_perf_events_are_rows(loose: Loose) -> None:
    os.sched_setaffinity(0, {0})  # each CPU has its own ring
    probe = loose.add(config(PERF, metric("written")))
    first = 0
    for sent in (3, 1, 0, 2):
        loose.send(sent) if sent else None
        (table,) = snapshots(probe.export())
        assert rows(table) == [(i, first + i, "127.0.0.1", 64, 3) for i in range(sent)]
        first += sent
    loose.send(20_000)
    (table,) = snapshots(probe.export())
    lost = table.losses[LossReason.TABLE_FULL].packets
    assert table.rows["value"]["number"].tolist() == [*range(6, 6 + 20_000 - lost)]
    assert PAGES * 4096 // 50 < 20_000 - lost < PAGES * 4096 // 32
    before = open_fds()
    loose.remove(probe)
    assert before - open_fds() >= 2 * len(online_cpus())


def test_records_that_do_not_fit_are_counted(loose: Loose) -> None:
    probe = loose.add(config(source(), metric("written"), metric("reserved")))
    loose.send(1000)
    written, reserved = snapshots(probe.export())
    room = 4096 // SIZE
    assert [row[1] for row in rows(written)] == [row[1] for row in rows(reserved)] == [*range(room)]
    assert written.losses[LossReason.TABLE_FULL].packets == 2 * (1000 - room)
    assert not reserved.losses
    assert written.occupancy == 1
    loose.send(1)
    assert [(len(each.rows), each.losses) for each in snapshots(probe.export())] == [(1, {})] * 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ring", "snapshot", "perf"])
def test_under_traffic_no_record_is_missing_or_there_twice(loose: Loose, kind: str) -> None:
    """Also when generations change, and come back."""
    text = PERF if kind == "perf" else ONE
    wanted = config(text, metric("written", snapshot=kind == "snapshot"))
    probe = loose.add(wanted)
    seen: list[int] = []
    lost = 0

    def take(items: Any) -> None:
        nonlocal lost
        for table in snapshots(items):
            seen.extend(table.rows["value"]["number"].tolist())
            lost += sum(loss.packets for loss in table.losses.values())

    with Traffic(loose.fd(), burst=2000) as traffic:
        turn = 0
        while traffic.sent < 200_000 or turn < 40:
            take(probe.export())
            if turn % 10 == 5:
                take(replace(probe, wanted))
            if turn == 30:
                take(probe.roll_back()[1])
            turn += 1
    take(probe.export())
    take(probe.export())
    assert len(seen) == len(set(seen)) > 20_000
    assert len(seen) + lost == traffic.sent


@pytest.mark.slow
@pytest.mark.parametrize("text", [ONE, PERF], ids=["ring", "perf"])
def test_records_of_another_size_are_left_out_and_told(loose: Loose, text: str) -> None:
    call = "perf_submit(ctx, &odd, sizeof(odd))" if text is PERF else "ringbuf_output(&odd, 8, 0)"
    odd = text.replace(
        "    written.",
        "    struct { u64 a; } odd = {};\n    if (event.number % 3 == 2)\n"
        f"        written.{call};\n    else\n    written.",
    )
    probe = loose.add(config(odd, metric("written", record="struct event")))
    told = []
    for turn in range(100):
        loose.send(30)
        items = probe.export()
        (table,) = snapshots(items)
        begin = 30 * turn
        truth = [n for n in range(begin, begin + 30) if n % 3 != 2]
        assert table.rows["value"]["number"].tolist() == truth
        told += [each.text for each in events(items)]
    assert told == ["written lacks 10 records of other sizes than 16 bytes"] * 100


def test_bytes_of_the_packet_behind_a_perf_event_are_cut_off(loose: Loose) -> None:
    text = PERF.replace(
        "written.perf_submit(ctx, &event, sizeof(event))",
        "written.perf_submit_skb(ctx, event.size, &event, sizeof(event))",
    )
    probe = loose.add(config(text, metric("written")))
    loose.send(3)
    (table,) = snapshots(probe.export())
    assert rows(table) == [(i, i, "127.0.0.1", 64, 3) for i in range(3)]


def test_a_record_of_another_type_starts_an_empty_ring(loose: Loose) -> None:
    probe = loose.add(config(source(), metric("written")))
    loose.send(2)
    wider = source().replace("    u64 number;\n", "    u64 number;\n    u64 more;\n")
    (last,) = snapshots(replace(probe, config(wider, metric("written"))))
    assert [row[1] for row in rows(last)] == [0, 1]
    loose.send(1)
    (table,) = snapshots(probe.export())
    assert table.rows["value"].dtype.names == ("number", "more", "saddr", "size", "kind")
    assert table.rows["value"]["number"].tolist() == [2]


HIDDEN = source().replace("sizeof(event)", "16")


@pytest.mark.parametrize(
    ("text", "given", "words"),
    [
        (HIDDEN, metric("written"), r"metrics\[0\].record: the type of the records of written is"),
        (HIDDEN, metric("numbers", record="u64"), r"metrics\[0\].record: numbers is a array, and"),
        (HIDDEN, metric("written", record="u64; int x"), "'u64; int x' is no C type"),
        (source(), metric("written", agg="sum"), "written is a ringbuf: it has one value an entry"),
    ],
)
def test_mistakes_of_records(loose: Loose, text: str, given: dict[str, Any], words: str) -> None:
    side = direction(text, given)
    with pytest.raises(UsageError, match=words):
        loose.add(parse({"name": "probe", "interval": 0, "ingress": side}, "test"))


def test_a_request_without_an_interface_is_told_its_key(loose: Loose) -> None:
    side = {"source": source(), "interface": ""}
    with pytest.raises(UsageError, match=r"request: ingress.interface: it is missing; one of .*lo"):
        loose.add(parse({"name": "probe", "ingress": side}, "request"))


def test_a_record_of_an_unknown_type_is_told_at_its_ring(loose: Loose) -> None:
    with pytest.raises(CompileError, match=r"records of written:1.*incomplete type 'struct oops'"):
        loose.add(config(HIDDEN, metric("written", record="struct oops")))


@pytest.mark.parametrize(
    ("calls", "found"),
    [
        ("r.ringbuf_reserve(sizeof(struct a))", "struct a"),
        ("r.ringbuf_reserve( sizeof ( u32 ) )", "u32"),
        ("r.ringbuf_reserve(sizeof(data_t))", "data_t"),
        ("struct a x = {}; r.ringbuf_output(&x, sizeof(x), 0)", "struct a"),
        ("struct a *x; x = r.ringbuf_reserve(sizeof(*x))", "struct a"),
        ("void f(union a *x) { r.ringbuf_output(x, sizeof *x, 0)", "union a"),
        ("other x; return x; r.ringbuf_output(&x, sizeof(x), BPF_RB_NO_WAKEUP)", "other"),
        ("struct a x; bpf_ringbuf_output(&r, &x, sizeof(x), 0)", "struct a"),
        ("struct a *x = bpf_ringbuf_reserve(&r, sizeof(*x), 0)", "struct a"),
        ("bpf_perf_event_output(c, &r, CPU, &x, sizeof(struct a))", "struct a"),
        ("bpf_ringbuf_output(&q, &x, sizeof(u8), 0)", ""),
        ("r.ringbuf_output(&x, 16, 0)", ""),
        ("r.ringbuf_output(&x, sizeof(x), 0)", ""),
        ("/* r.ringbuf_reserve(sizeof(u32)) */", ""),
    ],
)
def test_types_of_records_by_the_calls_that_write_them(calls: str, found: str) -> None:
    text = f"BPF_RINGBUF_OUTPUT( r , 8);\nBPF_RINGBUF_OUTPUT(q, 8);\n{calls};\n"
    assert record_types(text, {"r": ""}) == ({"r": found} if found else {})
    assert record_types(text, {"r": "struct b", "z": "u8"}) == {"r": "struct b"}


def test_a_ring_without_a_metric_has_a_warning(loose: Loose, compiler: Compiler) -> None:
    probe: ProgramProbe = loose.add(config(source(), metric("written")))
    (said,) = [each for each in _warnings(probe) if "ringbuf" in each]
    assert said.startswith("reserved (ringbuf) has no reader and fills up; make it a metric")


def _warnings(probe: ProgramProbe) -> list[str]:
    with probe.compile(probe.config) as compiled:
        return [each.text for _, result, _ in compiled.results() for each in result.diagnostics]
