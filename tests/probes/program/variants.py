"""Configurations that replace each other: maps of other sizes and kinds, and maps that stay."""

from __future__ import annotations

from probes.config.model import ProbeConfig
from probes.reports import Compatibility, Fate
from tests.probes.program.tools import (
    COUNTER,
    PACKETS,
    config,
    metric,
)


def variant(maps: str, body: str, *metrics: dict[str, object]) -> ProbeConfig:
    """Counts packets by `body`, and has other maps beside."""
    source = f"{maps}\nint count(struct xdp_md *ctx)\n{{\n    u32 zero = 0;\n{body}\n"
    return config(source + "    return XDP_PASS;\n}\n", *metrics)


ADD = "    u64 *n = packets.lookup(&zero);\n    if (n)\n        lock_xadd(n, 1);"
EXTRA = "    u32 size = ctx->data_end - ctx->data;\n    sizes.increment(size);"
HASHED = """\
    u64 start = 0, *n = packets.lookup_or_try_init(&zero, &start);
    if (n)
        lock_xadd(n, 1);"""
VARIANTS = (
    config(COUNTER, PACKETS),
    variant("BPF_ARRAY(packets, u64, 1000);", ADD, PACKETS),
    variant("BPF_PERCPU_ARRAY(packets, u64, 2);", ADD.replace("lock_xadd(n, 1)", "(*n)++"),
            metric("packets", snapshot=True, agg="sum")),
    variant("BPF_ARRAY(packets, u64, 1);\nBPF_HASH(sizes, u32, u64, 100000);", f"{ADD}\n{EXTRA}",
            PACKETS, metric("sizes", snapshot=True)),
    variant("BPF_ARRAY(packets, u64, 1);\nBPF_HASH(sizes, u32, u64, 10);", f"{ADD}\n{EXTRA}",
            PACKETS, metric("sizes")),
    variant("BPF_HASH(packets, u32, u64, 4);", HASHED, PACKETS),
    variant('BPF_TABLE("lru_hash", u32, u64, packets, 4096);', HASHED, PACKETS),
    variant("BPF_ARRAY(packets, u64, 1);\nBPF_QUEUE(queue, u64, 16);",
            f"{ADD}\n    u64 one = 1;\n    queue.push(&one, BPF_EXIST);",
            PACKETS, metric("queue", snapshot=True)),
)  # fmt: skip
"""The same feature in maps of every size and kind, with others beside it and without."""


KEPT = """\
BPF_ARRAY(total, u64, 1);
BPF_HASH(by_size, u32, u64, 64);
BPF_ARRAY(hidden, u64, 1);

int count(struct xdp_md *ctx)
{
    u32 zero = 0, size = ctx->data_end - ctx->data;
    u64 *t = total.lookup(&zero), *h = hidden.lookup(&zero);
    if (t && h) {
        (*t)++;
        (*h)++;
    }
    by_size.increment(size);
    return XDP_PASS;
}
"""
TOTALS = metric("total"), metric("by_size"), metric("hidden")


def fates(report: Compatibility) -> dict[str, Fate]:
    return {m.map: m.fate for m in report.maps}
