"""Snapshots can't be changed, and the history of them is bounded."""

from __future__ import annotations

import numpy as np
import pytest

from bpf.attach.attachment import Hook
from bpf.compiler import Compiler
from probes.snapshot import History, Loss, LossReason, Snapshot
from probes.tables.conversion import TableKind, TableSchema
from tests.probes.running import compile_for


def snapshot(window: int, rows: int = 1, **more: object) -> Snapshot:
    values: dict[str, object] = {
        "probe": "flow", "interface": "eth0", "window": window, "generation": 1,
        "start_ns": window * 10**9, "end_ns": (window + 1) * 10**9, "end_utc_ns": 10**18,
        "rows": np.zeros(rows, "u8"), "losses": {}, "occupancy": 0.0, "swap_ns": 0, "drain_ns": 0,
    }  # fmt: skip
    return Snapshot(**{**values, **more})  # type: ignore[arg-type]


def test_a_snapshot_is_immutable() -> None:
    taken = snapshot(1)
    with pytest.raises(ValueError, match="read-only"):
        taken.rows[0] = 7
    with pytest.raises(AttributeError):
        taken.window = 2  # type: ignore[misc]


def test_times_of_a_window() -> None:
    taken = snapshot(3)
    assert taken.seconds == 1
    assert taken.start_utc_ns == 10**18 - 10**9
    assert taken.utc_ns(taken.start_ns) == taken.start_utc_ns


def test_what_is_left_out_on_purpose_is_no_loss() -> None:
    losses = {
        LossReason.NOT_IP: Loss(1, 10),
        LossReason.FILTERED: Loss(2, 20),
        LossReason.MALFORMED: Loss(4, 40),
        LossReason.TABLE_FULL: Loss(8, 80),
    }
    assert snapshot(1, losses=losses).lost == Loss(12, 120)


def test_history_keeps_the_last_that_fit() -> None:
    # A snapshot takes memory beside its rows: those of small windows must not add up.
    history = History(max_bytes=5 * (1024 + 16))
    for window in range(20):
        history.append(snapshot(window, rows=2))
    assert [s.window for s in history.snapshots()] == [15, 16, 17, 18, 19]
    history.append(snapshot(20, rows=1000))
    assert [s.window for s in history.snapshots()] == [20]


def test_the_older_past_takes_a_quarter() -> None:
    history = History(max_bytes=4 << 20)
    for window in range(1000):
        history.append(snapshot(window, rows=1024))
    assert len(history.snapshots()) == (1 << 20) // (9 << 10)
    for window in range(1000, 1100):
        history.append(snapshot(window, rows=7 * 1024))
    # The last minute stays: it takes less than all bytes.
    assert [s.window for s in history.snapshots()] == list(range(1040, 1100))


def test_history_is_bounded_in_number_too() -> None:
    history = History(max_snapshots=3)
    for window in range(10):
        history.append(snapshot(window, rows=0))
    assert [s.window for s in history.snapshots()] == [7, 8, 9]


def test_the_history_of_a_metric_is_shorter_and_ends_with_its_probe() -> None:
    history = History()
    schema = TableSchema(TableKind.HASH)
    for window in range(1000):
        history.append(snapshot(window))
        history.append(snapshot(window, probe="mine", metric="hits", schema=schema))
    assert len(history.snapshots("flow")) == 1000
    assert [s.window for s in history.snapshots("mine")] == list(range(700, 1000))
    history.forget("mine")
    history.forget("flow")
    assert {s.probe for s in history.snapshots()} == {"flow"}


def test_the_reasons_are_those_of_the_header(compiler: Compiler) -> None:
    source = """\
#include "probe.h"

BPF_ARRAY(reasons, enum loss_reason, 1);

int pass(CONTEXT *ctx)
{
    return VERDICT_PASS;
}
"""
    with compile_for(compiler, source, Hook.XDP) as compiled:
        value = compiled.maps["reasons"].value_type
    assert value
    wanted = {f"LOSS_{reason.name}": int(reason) for reason in LossReason}
    assert value.enumerators == wanted | {"LOSS_REASONS": len(LossReason)}
