"""Values of all CPUs, aggregated as a metric asks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bpf.machine import possible_cpus
from probes.tables.conversion import objects
from probes.tables.map_layout import aggregate
from tests.probes.program.tools import (
    CPUS,
    Loose,
    config,
    metric,
    on_cpu,
    snapshots,
)

PER_CPU = """\
struct deep { u32 large; u16 pair[2]; };
struct value { s32 below; struct deep in; u64 bytes; };

BPF_PERCPU_ARRAY(scalar, u32, 1);
BPF_PERCPU_HASH(record, u32, struct value, 8);
BPF_TABLE("lru_percpu_hash", u32, u64, lru, 1024);

int count(struct xdp_md *ctx)
{
    u32 zero = 0, size = ctx->data_end - ctx->data;
    struct value empty = {};
    u64 nothing = 0;

    u32 *n = scalar.lookup(&zero);
    if (n)
        *n += size << 24;
    struct value *v = record.lookup_or_try_init(&zero, &empty);
    if (v) {
        v->below -= size;
        v->in.large += size << 24;
        v->in.pair[0] += size << 8;
        v->in.pair[1] += 1;
        v->bytes += size;
    }
    u64 *l = lru.lookup_or_try_init(&zero, &nothing);
    if (l)
        *l += size;
    return XDP_PASS;
}
"""
SIZES = (0xC0, 0x80)
"""Of the frame on each of two CPUs: large enough that 32 bits don't hold the sum of both."""


def fields(size: int) -> dict[str, int]:
    """A CPU's counters after one frame."""
    return {"below": -size, "large": size << 24, "pair0": size << 8, "pair1": 1, "bytes": size}


def values_of(value: dict[str, Any]) -> dict[str, float]:
    inner = value["in"]
    return {
        "below": value["below"],
        "large": inner["large"],
        "pair0": inner["pair"][0],
        "pair1": inner["pair"][1],
        "bytes": value["bytes"],
    }


OPERATIONS: dict[str, Any] = {
    "sum": sum,
    "avg": lambda values: sum(values) / len(values),
    "min": min,
    "max": max,
}


@pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")
@pytest.mark.parametrize("snapshot", [False, True])
def test_values_of_all_cpus_are_aggregated_as_asked(loose: Loose, snapshot: bool) -> None:
    """S1.11, on scalars, and on each field of nested structs and arrays; S1.10 their names."""
    metrics = [
        metric(f"{name}_{agg or 'none'}", name, agg=agg, snapshot=snapshot)
        for name in ("scalar", "record", "lru")
        for agg in ("", *OPERATIONS)
    ]
    probe = loose.add(config(PER_CPU, *metrics))
    sizes = [0] * possible_cpus()
    for cpu, size in zip(CPUS, SIZES, strict=False):
        sizes[cpu] = size
        with on_cpu(cpu):
            loose.send(frame=bytes(size))
    exported = {s.metric: s for s in snapshots(probe.export())}
    for name in ("scalar", "record", "lru"):
        apart = exported[f"{name}_none"]
        assert apart.schema
        (entry,) = objects(apart.schema, apart.rows)
        expected: list[Any] = [
            fields(size) if size else dict.fromkeys(fields(0), 0) for size in sizes
        ]
        if name == "record":
            assert [values_of(value) for value in entry["value"]] == expected
        else:
            shift = 24 if name == "scalar" else 0
            assert entry["value"] == [size << shift for size in sizes]
        for agg, operation in OPERATIONS.items():
            taken = exported[f"{name}_{agg}"]
            assert taken.schema
            (entry,) = objects(taken.schema, taken.rows)
            if name == "record":
                assert values_of(entry["value"]) == {
                    field: operation([each[field] for each in expected]) for field in fields(0)
                }
            else:
                assert entry["value"] == operation([size << shift for size in sizes])


def test_sums_keep_their_signs_and_floats() -> None:
    """S1.11: of types that a program in the kernel can't have counted with, too."""
    values = np.array([[(-(2**31), 0.5, 2**64 - 1)], [(3, 1.5, 1)]], "i4, f4, u8")
    assert aggregate(np.hstack([values, values]), "sum").tolist() == [
        (-(2**32), 1.0, 2**64 - 2),  # what its parts don't fit in either, wraps
        (6, 3.0, 2),
    ]
    assert aggregate(np.array([[1, 2]], "u1"), "avg").tolist() == [1.5]
