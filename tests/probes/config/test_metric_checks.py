"""Metrics checked against the maps of a compiled source."""

from __future__ import annotations

from typing import Any

import pytest

from bpf.abi import ProgType
from bpf.compiler import Compiled, Compiler
from bpf.errors import UsageError
from probes.config.metric_checks import check_metrics
from probes.config.model import (
    parse,
)
from tests.probes.config.configurations import SOURCE

MAPS = """\
struct pair { u64 packets; u32 zone; };
struct named { char name[16]; u64 packets; };
struct flags { u64 packets; u32 syn:5; };
struct seen { u64 at:48; u32 hops[4]; };
union either { u64 packets; u32 bytes; };

BPF_PERCPU_HASH(sources, u32, struct pair);
BPF_PERCPU_ARRAY(names, struct named, 4);
BPF_PERCPU_ARRAY(either, union either, 4);
BPF_HASH(totals, u32, u64);
BPF_QUEUE(events, u64, 16);
BPF_PERCPU_HASH(flags, u32, struct flags);
BPF_HASH(seen, u32, struct seen);
BPF_HISTOGRAM(sizes);
BPF_PROG_ARRAY(next, 4);
BPF_RINGBUF_OUTPUT(ring, 1);

int f(struct xdp_md *ctx) { return XDP_PASS; }
"""


@pytest.fixture(scope="module")
def compiled(compiler: Compiler) -> Any:
    with compiler.compile(MAPS, ProgType.XDP) as result:
        yield result


def checked(compiled: Compiled, **keys: Any) -> None:
    metrics = [{"name": "fine", "map": "totals"}, {"name": "m", **keys}]
    data = {"name": "web", "ingress": {"source": SOURCE, "metrics": metrics}}
    check_metrics(parse(data, "web.toml"), "ingress", compiled.maps)


METRICS_WRONG: list[tuple[dict[str, Any], str]] = [
    ({"map": "source"}, "map: the source declares no map 'source'; did you mean sources?"),
    (
        {"map": "xyz"},
        "map: the source declares no map 'xyz'; there are either, events, flags, names, ring, "
        "seen, sizes, sources, totals",
    ),
    (
        {"map": "next"},
        "map: next is a prog array, whose contents mean nothing outside; "
        "export a hash, an array, a trie, a queue, a stack or a ring",
    ),
    (
        {"map": "ring"},
        "record: the type of the records of ring is not known; give it: struct event",
    ),
    (
        {"map": "totals", "agg": "sum"},
        "agg: totals is a hash: it has one value an entry, not one for each CPU; "
        "leave agg out, or declare a per-CPU map (BPF_PERCPU_HASH, BPF_PERCPU_ARRAY)",
    ),
    (
        {"map": "names", "agg": "max"},
        "agg: names has no max: value.name is a text; leave agg out: one value for each CPU",
    ),
    (
        {"map": "either", "agg": "sum"},
        "agg: either has no sum: value.bytes overlaps the field before (a union); "
        "leave agg out: one value for each CPU",
    ),
    (
        {"map": "flags", "agg": "sum"},
        "agg: flags has no sum: value.syn is a bit field; leave agg out: one value for each CPU",
    ),
    (
        {"map": "seen", "expire": {"field": "value.at", "seconds": 5}},
        "expire.field: value.at of seen is no u64; a time is one, nanoseconds of CLOCK_MONOTONIC",
    ),
    (
        {"map": "sources", "types": {"value.zona": "ipv4"}},
        "types.value.zona: sources has no such field; did you mean value.zone?",
    ),
    (
        {"map": "sizes", "types": {"slot": "linea"}},
        "types.slot: no type 'linea'; did you mean linear?",
    ),
    (
        {"map": "totals", "types": {"slot": "linear"}},
        "types.slot: totals has no such field; there are key, value",
    ),
    (
        {"map": "seen", "types": {"value.hops[]": "mac"}},
        "types.value.hops[]: can't be mac: that takes 6 bytes; it has 4 bytes",
    ),
]


@pytest.mark.parametrize(("keys", "words"), METRICS_WRONG)
def test_a_metric_that_its_map_cannot_give_is_told(
    compiled: Compiled, keys: dict[str, Any], words: str
) -> None:
    """S1.9, S1.11: held against what was compiled, before anything is changed."""
    with pytest.raises(UsageError) as refusal:
        checked(compiled, **keys)
    assert str(refusal.value) == f"web.toml: ingress.metrics[1].{words}"


@pytest.mark.parametrize(
    "keys",
    [
        {"map": "sources", "agg": "avg", "types": {"key": "ipv4", "value.zone": "hex"}},
        {"map": "names", "types": {"value.name": "text"}},
        {"map": "events"},
        {"map": "sizes", "types": {"slot": "linear"}},
        {"map": "seen", "types": {"value.hops[]": "ipv4"}},
        {"map": "either", "snapshot": True},
    ],
)
def test_a_metric_that_its_map_can_give_is_taken(compiled: Compiled, keys: dict[str, Any]) -> None:
    checked(compiled, **keys)
