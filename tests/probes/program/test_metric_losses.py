"""Entries that a full map loses, counted once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from bpf.attach.attachment import Hook
from probes.snapshot import Loss, LossReason
from tests.probes.program.tools import (
    CPUS,
    FRAME,
    Loose,
    Traffic,
    config,
    events,
    metric,
    on_cpu,
    replace,
    snapshots,
)

FULL = """\
BPF_HASH(small, u32, u64, 4);
BPF_ARRAY(array, u64, 4);

int count(struct xdp_md *ctx)
{
    u32 size = ctx->data_end - ctx->data;
    small.increment(size);
    return XDP_PASS;
}
"""


def test_a_map_that_is_full_is_told_once(loose: Loose) -> None:
    probe = loose.add(config(FULL, metric("sizes", "small", snapshot=True), metric("array")))
    said = []
    for sizes in (3, 6, 6, 4, 2, 6):
        for size in range(60, 60 + sizes):
            loose.send(frame=bytes(size))
        exported = probe.export()
        occupancy = {s.metric: s.occupancy for s in snapshots(exported)}
        assert occupancy == {"sizes": min(sizes, 4) / 4, "array": 0}
        said.append([(e.severity, e.source, e.text) for e in events(exported)])
    full = ("warning", "probe", "the map of ingress.sizes is full: what did not fit is missing")
    assert said == [[], [full], [], [], [], [full]]


LOSING = """\
#include "probe.h"
BPF_ARRAY(seen, u64, 1);
BPF_ARRAY(more, u64, 1);

int count(CONTEXT *ctx)
{
    lose(LOSS_TABLE_FULL, packets_of(ctx), bytes_of(ctx));
    seen.increment(0);
    return VERDICT_PASS;
}
"""


@pytest.mark.parametrize("snapshot", [False, True])
def test_losses_are_told_once_a_window(loose: Loose, snapshot: bool) -> None:
    """Whatever the number of metrics, and whichever clone counted them, or generation."""
    metrics = metric("seen", snapshot=snapshot), metric("more")
    both = config(LOSING, *metrics, hook="xdp")
    egress = config(LOSING, *metrics).ingress
    probe = loose.add(both.model_copy(update={"egress": egress}))
    for round_ in range(1, 5):
        loose.send(round_)
        loose.send(2 * round_, hook=Hook.TC_EGRESS)
        exported = replace(probe, both) if round_ == 4 else probe.export()
        lost: dict[str, Any] = {"ingress": [], "egress": []}
        for snapshot_ in snapshots(exported):
            lost[snapshot_.side] += list(snapshot_.losses.items())
        for side, packets in (("ingress", round_), ("egress", 2 * round_)):
            assert lost[side] == [(LossReason.TABLE_FULL, Loss(packets, packets * len(FRAME)))], (
                side
            )


def test_losses_counted_while_windows_end_are_all_told(loose: Loose) -> None:
    """Other CPUs write the counter while it is read; clones and generations share it."""
    each = 500
    lose = "lose(LOSS_TABLE_FULL, packets_of(ctx), bytes_of(ctx));"
    source = LOSING.replace(lose, f"for (int i = 0; i < {each}; i++) {lose}")
    windows = config(source, metric("seen", snapshot=True), hook="xdp")
    probe = loose.add(windows)
    lost = 0

    def add(items: Sequence[object]) -> None:
        nonlocal lost
        for snapshot in snapshots(items):  # type: ignore[arg-type]
            lost += sum(loss.packets for loss in snapshot.losses.values())

    with on_cpu(CPUS[-1]), Traffic(loose.fd(), burst=10_000) as traffic, on_cpu(CPUS[0]):
        for number in range(300):
            add(replace(probe, windows) if number == 150 else probe.export())
    add(probe.export())
    assert lost == each * traffic.sent


def test_losses_before_there_is_a_table_to_tell_them_with_are_told_later(loose: Loose) -> None:
    silent = config(LOSING, metric("seen", export=False, init=True), hook="xdp")
    probe = loose.add(silent)
    loose.send(3)
    assert probe.export() == ()
    loose.send(4)
    replace(probe, config(LOSING, metric("seen"), hook="xdp"))
    loose.send(5)
    (snapshot,) = snapshots(probe.export())
    assert snapshot.losses[LossReason.TABLE_FULL].packets == 12
