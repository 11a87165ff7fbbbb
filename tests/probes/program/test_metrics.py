"""Metrics of maps: read by the best method, emptied, and never more than requested."""

from __future__ import annotations

import itertools
import os
import platform
import socket
import struct
from typing import Any

import pytest

from bpf.compiler import store
from bpf.errors import KernelError, ProbedeckError, UsageError
from bpf.maps import map as maps
from bpf.maps import readers
from bpf.maps.map import Map, ReadMethod
from probes.tables.conversion import objects
from tests.probes.program.tools import (
    Loose,
    config,
    events,
    metric,
    only,
    snapshots,
    table,
)
from tests.probes.running import Frame

KINDS = """\
struct key { u32 address; u32 kind; };
struct prefix { u32 length; u32 address; };

BPF_HASH(hash, struct key, u64, 64);
BPF_TABLE("lru_hash", struct key, u64, lru, 4096);
BPF_PERCPU_HASH(percpu_hash, struct key, u64, 64);
BPF_ARRAY(array, u64, 64);
BPF_PERCPU_ARRAY(percpu_array, u64, 64);
BPF_LPM_TRIE(trie, struct prefix, u64, 64);
BPF_QUEUE(queue, u64, 64);
BPF_STACK(stack, u64, 64);
BPF_HISTOGRAM(histogram);

int count(struct xdp_md *ctx)
{
    u32 size = ctx->data_end - ctx->data;
    u32 slot = size & 63;
    u64 zero = 0, one = 1, value = size;
    struct key key = {.address = size, .kind = 7};
    struct prefix prefix = {32, size};
    u64 *n;

    hash.increment(key);
    n = lru.lookup_or_try_init(&key, &zero);
    if (n)
        (*n)++;
    n = percpu_hash.lookup_or_try_init(&key, &zero);
    if (n)
        (*n)++;
    array.increment(slot);
    percpu_array.increment(slot);
    n = trie.lookup(&prefix);
    if (n)
        (*n)++;
    else
        trie.update(&prefix, &one);
    queue.push(&value, 0);
    stack.push(&value, 0);
    histogram.increment(bpf_log2l(size));
    return XDP_PASS;
}
"""
KIND_NAMES = (
    "hash", "lru", "percpu_hash", "array", "percpu_array", "trie", "queue", "stack", "histogram",
)  # fmt: skip
PREFERENCES = [
    tuple(ReadMethod),
    (ReadMethod.BATCH, ReadMethod.ITERATE, ReadMethod.POP),
    (ReadMethod.ITERATE, ReadMethod.POP),
]
TAKEN: list[dict[str, Any]] = [{"snapshot": True}, {"init": True}]


def contents(items: Any) -> dict[str, dict[Any, Any]]:
    """All tables; an array's without zeros."""
    found = {}
    for name in KIND_NAMES:
        rows = table(items, name)
        numbered = name in ("array", "percpu_array", "histogram")
        found[name] = {k: v for k, v in rows.items() if v or not numbered}
    return found


@pytest.mark.parametrize(("routines", "taken"), itertools.product(PREFERENCES, TAKEN))
def test_every_kind_is_read_and_emptied_by_whatever_routine_there_is(
    loose: Loose,
    monkeypatch: pytest.MonkeyPatch,
    routines: tuple[ReadMethod, ...],
    taken: dict[str, Any],
) -> None:
    """S1.7, S1.8, S1.12, S1.17, S1.19: the same tables, whichever routines work on a map."""
    working = {name: kind for name, kind in maps._READERS.items() if name in routines}
    monkeypatch.setattr(maps, "_READERS", working)
    metrics = [
        metric(name, agg="sum" if name.startswith("percpu") else "", **taken) for name in KIND_NAMES
    ]
    probe = loose.add(config(KINDS, *metrics))
    used = {
        name: only(probe).map_of(m, only(probe).clones[0]).routine
        for m in only(probe).metric_maps
        for name in [m.name]
    }
    assert set(used.values()) <= set(routines)
    for _ in range(3):
        for size in (70, 80, 70):
            loose.send(frame=bytes(size))
        assert contents(probe.export()) == {
            **{key: {(70, 7): 2, (80, 7): 1} for key in ("hash", "lru", "percpu_hash")},
            **{key: {6: 2, 16: 1} for key in ("array", "percpu_array")},
            "trie": {(32, 70): 2, (32, 80): 1},
            "queue": {0: 70, 1: 80, 2: 70},
            "stack": {0: 70, 1: 80, 2: 70},
            "histogram": {7: 3},
        }
    assert not any(contents(probe.export()).values())


def test_a_queue_gives_the_oldest_first_and_a_stack_the_newest(loose: Loose) -> None:
    """S1.8, S1.17."""
    probe = loose.add(config(KINDS, metric("queue", init=True), metric("stack", snapshot=True)))
    for size in range(60, 80):
        loose.send(frame=bytes(size))
    taken = probe.export()
    assert list(table(taken, "queue").values()) == list(range(60, 80))
    assert list(table(taken, "stack").values()) == list(range(79, 59, -1))


def test_routines_are_found_by_trying_and_when_the_program_is_loaded(
    loose: Loose, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1.19: not by the kernel's version. S1.20: once, not at each export."""
    tried: list[str] = []
    for kind in set(maps._READERS.values()):
        supports = kind.supports

        def trying(fd: int, spec: Any, supports: Any = supports, kind: Any = kind) -> bool:
            tried.append(kind.__name__)
            return bool(supports(fd, spec))

        monkeypatch.setattr(kind, "supports", staticmethod(trying))
    # A stored program names the kernel that has verified it.
    monkeypatch.setattr(store, "kernel_id", lambda: "this kernel")
    for module, name in ((platform, "release"), (platform, "version"), (os, "uname")):
        monkeypatch.setattr(module, name, lambda: pytest.fail("asks for the version"))
    probe = loose.add(config(KINDS, *(metric(name, snapshot=True) for name in KIND_NAMES)))
    assert {"Mapping", "Drain", "Batched"} <= set(tried)
    tried.clear()
    for _ in range(4):
        loose.send()
        probe.export()
    assert not tried


def test_a_map_is_emptied_in_the_pass_that_reads_it(
    loose: Loose, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1.12: and read once where two metrics show it."""
    passes: list[tuple[str, bool]] = []
    read = Map.read

    def reading(self: Map, *, clear: bool = False) -> Any:
        passes.append((self.spec.name, clear))
        return read(self, clear=clear)

    metrics = [
        metric("sum", "percpu_hash", agg="sum", init=True),
        metric("all", "percpu_hash", init=True),
        metric("kept", "hash"),
    ]
    probe = loose.add(config(KINDS, *metrics))
    loose.send(5)
    monkeypatch.setattr(Map, "read", reading)
    monkeypatch.setattr(Map, "clear", lambda _: pytest.fail("a second pass"))
    taken = probe.export()
    assert sorted(passes) == [("hash", False), ("percpu_hash", True)]
    assert table(taken, "sum") == {(64, 7): 5}
    assert sum(table(taken, "all")[64, 7]) == 5
    assert table(probe.export(), "sum") == {}
    assert table(probe.export(), "kept") == {(64, 7): 5}


@pytest.mark.parametrize("taken", TAKEN)
def test_what_is_only_emptied_is_never_read(
    loose: Loose, monkeypatch: pytest.MonkeyPatch, taken: dict[str, Any]
) -> None:
    """S1.16, S1.18."""
    names = [name for name in KIND_NAMES if name not in ("queue", "stack")]
    metrics = [metric(name, export=False, **taken) for name in names]
    probe = loose.add(config(KINDS, *metrics))
    loose.send(5)
    side = only(probe)
    clone = side.clones[side.active]
    with monkeypatch.context() as patch:
        patch.setattr(Map, "read", lambda *_, **__: pytest.fail("read"))
        patch.setattr(readers, "map_lookup", lambda *_: pytest.fail("an entry is read"))
        patch.setattr(readers.Batched, "_look_up", lambda *_: pytest.fail("a batch is read"))
        assert probe.export() == ()
    for metric_map in side.metric_maps:
        values = side.map_of(metric_map, clone).read().values
        assert not values.view("u1").any(), metric_map.name


def test_a_map_that_no_metric_names_is_not_even_opened(
    loose: Loose, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1.9."""
    opened: list[str] = []
    init = Map.__init__

    def opening(self: Map, fd: int, spec: Any, *more: Any, **options: Any) -> None:
        opened.append(spec.name)
        init(self, fd, spec, *more, **options)

    monkeypatch.setattr(Map, "__init__", opening)
    probe = loose.add(config(KINDS, metric("trie")))
    loose.send()
    assert [s.metric for s in snapshots(probe.export())] == ["trie"]
    assert set(opened) == {"trie"}


def test_a_metric_has_the_name_of_its_own_and_its_help(loose: Loose) -> None:
    """S1.3, S1.10: an address where the configuration says so."""
    shown = metric("sizes", "hash", help="frames by size", types={"key.address": "ipv4"})
    probe = loose.add(config(KINDS, shown))
    loose.send(frame=bytes(64))
    (snapshot,) = snapshots(probe.export())
    assert (snapshot.probe, snapshot.side, snapshot.metric) == ("probe", "ingress", "sizes")
    assert snapshot.schema
    assert snapshot.schema.help == "frames by size"
    (entry,) = objects(snapshot.schema, snapshot.rows)
    address = socket.inet_ntoa(struct.pack("=I", 64))
    assert entry == {"key": {"address": address, "kind": 7}, "value": 1}


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("map", "packet", "declares no map 'packet'; did you mean packets?"),
        ("agg", "sum", "packets is a array: it has one value an entry"),
        ("types", {"valu": "ipv4"}, "packets has no such field; did you mean value?"),
    ],
)
def test_a_metric_that_its_map_cannot_give_is_named(
    loose: Loose, key: str, value: Any, said: str
) -> None:
    """S1.6, S1.11, S1.25: with the configuration, the key and the nearest match."""
    with pytest.raises(UsageError) as caught:
        loose.add(config(metrics_source(), metric("packets") | {key: value}))
    assert str(caught.value).startswith("test: ingress.metrics[0].")
    assert said in str(caught.value)
    assert not loose.hooks.in_use()


def metrics_source() -> str:
    return "BPF_ARRAY(packets, u64, 1);\nint count(struct xdp_md *ctx) { return XDP_PASS; }\n"


def test_a_map_that_cannot_be_read_is_an_event_and_the_others_are_exported(
    loose: Loose, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = loose.add(config(KINDS, metric("hash"), metric("trie")))
    loose.send(frame=bytes(Frame(payload=30)))
    read = Map.read

    def failing(self: Map, *, clear: bool = False) -> Any:
        if self.spec.name == "hash":
            raise OSError(5, "no luck")
        return read(self, clear=clear)

    monkeypatch.setattr(Map, "read", failing)
    exported = probe.export()
    assert [s.metric for s in snapshots(exported)] == ["trie"]
    (said,) = events(exported)
    assert said.severity == "error"
    assert said.text == "window 1 is not whole: map hash cannot be read: no luck"


def test_where_nothing_can_read_a_map_the_probe_is_refused(
    loose: Loose, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maps, "_READERS", {})
    with pytest.raises(KernelError, match=r"map hash \(HASH\) cannot be read by any"):
        loose.add(config(KINDS, metric("hash")))
    assert not loose.hooks.in_use()
    assert issubclass(KernelError, ProbedeckError)
