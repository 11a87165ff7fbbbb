"""Maps that operators write: allow lists, rules, limits."""

from __future__ import annotations

from typing import Any

import pytest

from bpf.errors import ProbedeckError, UsageError
from bpf.machine import possible_cpus
from bpf.syscall import prog_test_run
from probes.config.model import ProbeConfig, parse
from probes.reports import Fate
from tests.probes.program.tools import CPUS, Loose, metric, on_cpu, replace, snapshots
from tests.probes.running import Frame

ALLOW = """\
#include "packet.h"
BPF_HASH(allow, u32, u32, 4);
BPF_ARRAY(passed, u64, 1);

int f(CONTEXT *ctx) {
    struct packet packet = {};
    if (parse_packet(ctx, &packet) != PARSED)
        return VERDICT_PASS;
    u32 source = 0;
    bpf_xdp_load_bytes(ctx, 26, &source, 4);
    if (!allow.lookup(&source))
        return VERDICT_DROP;
    passed.increment(0);
    return VERDICT_PASS;
}
"""
TYPED = {"key": "ipv4"}
RULES = """\
enum action { LET = 2, BLOCK = 1 };
struct rule {
    u32 saddr;
    __be16 port;
    u8 mac[6];
    u16 limits[2];
    u8 low:3, high:5;
    s8 shift;
    enum action action;
    char note[8];
    struct { u8 a; bool b; } flags;
};
struct trie { u32 length; u32 addr; };
BPF_HASH(rules, u64, struct rule, 8);
BPF_ARRAY(limits, u32, 4);
BPF_LPM_TRIE(nets, struct trie, u8, 8);
BPF_PERCPU_HASH(percpu, u32, u64, 8);
BPF_QUEUE(queue, u32, 8);
int f(struct xdp_md *ctx) {
    struct trie key = {.length = 32};
    u64 zero = 0;
    u32 first = 1, *limit = limits.lookup(&first);
    if (nets.lookup(&key) || rules.lookup(&zero) || (limit && *limit > 1000))
        return XDP_DROP;
    return XDP_PASS;
}
"""


def probe(source: str = ALLOW, maps: Any = None, *metrics: Any, **more: Any) -> ProbeConfig:
    side = {"interface": "lo", "source": source, "metrics": list(metrics)}
    options = {"allow": {"writable": True, "types": TYPED}} if maps is None else maps
    return parse({"name": "probe", "interval": 0, "ingress": side, "maps": options, **more}, "test")


def verdict(loose: Loose, source: str) -> int:
    return prog_test_run(loose.fd(), bytes(Frame(source))).verdict


def test_an_allow_list_decides_from_the_next_packet_on(loose: Loose) -> None:
    running = loose.add(probe(ALLOW))
    drop, let = 1, 2
    assert verdict(loose, "192.0.2.1") == drop
    running.set_entry("allow", "192.0.2.1", 1)
    assert (verdict(loose, "192.0.2.1"), verdict(loose, "192.0.2.2")) == (let, drop)
    running.set_entry("allow", "192.0.2.1", 7)
    assert running.entries("allow") == [{"key": "192.0.2.1", "value": 7}]
    assert running.delete_entry("allow", "192.0.2.1")
    assert not running.delete_entry("allow", "192.0.2.1")
    assert (verdict(loose, "192.0.2.1"), running.entries("allow")) == (drop, [])


def test_entries_survive_a_replacement_if_the_map_does(loose: Loose) -> None:
    source = ALLOW
    given = {
        "allow": {"writable": True, "types": TYPED, "entries": [{"key": "192.0.2.9", "value": 1}]}
    }
    running = loose.add(probe(source, given))
    assert running.entries("allow") == [{"key": "192.0.2.9", "value": 1}]
    running.set_entry("allow", "192.0.2.1", 1)
    running.delete_entry("allow", "192.0.2.9")
    replace(running, probe(source + "// new\n", given))
    assert running.entries("allow") == [{"key": "192.0.2.1", "value": 1}], "not put there again"
    assert verdict(loose, "192.0.2.1") == 2
    larger = probe(source.replace("u32, u32, 4", "u32, u32, 8"), given)
    with running.compile(larger) as compiled:
        (fate,) = [each for each in running.compare(compiled).maps if each.map == "allow"]
        assert (fate.fate, fate.reason) == (Fate.EMPTY, "size 8, was 4")
        running.replace(compiled)
    assert running.entries("allow") == [{"key": "192.0.2.9", "value": 1}]
    running.roll_back()
    assert running.entries("allow") == [{"key": "192.0.2.1", "value": 1}]


def test_a_full_map_says_so(loose: Loose) -> None:
    running = loose.add(probe(ALLOW))
    for number in range(4):
        running.set_entry("allow", f"192.0.2.{number}", 1)
    with pytest.raises(
        ProbedeckError, match=r"map allow takes no more entries: .*; it has room for 4"
    ):
        running.set_entry("allow", "192.0.2.99", 1)


EVERY = {name: {"writable": True} for name in ("rules", "limits", "nets")}
RULE = {
    "saddr": "10.1.2.3",
    "port": 443,
    "mac": "02:00:00:00:00:01",
    "limits": [1, 65535],
    "low": 5,
    "high": 31,
    "shift": -3,
    "action": "BLOCK",
    "note": "web",
    "flags": {"a": 9, "b": True},
}


def test_what_is_exported_can_be_written(loose: Loose) -> None:
    running = loose.add(probe(RULES, EVERY))
    running.set_entry("rules", 1 << 40, RULE)
    assert running.entries("rules") == [{"key": 1 << 40, "value": RULE}]
    running.set_entry("rules", "0x10", {"port": "0x50", "action": 2})
    (one,) = [each["value"] for each in running.entries("rules") if each["key"] == 16]
    assert (one["port"], one["action"], one["saddr"]) == (80, "LET", "0.0.0.0")
    assert verdict(loose, "192.0.2.1") == 2
    running.set_entry("limits", 1, 2000)
    assert running.entries("limits")[1] == {"index": 1, "value": 2000}
    assert verdict(loose, "192.0.2.1") == 1
    assert running.delete_entry("limits", 1)
    assert verdict(loose, "192.0.2.1") == 2
    running.set_entry("nets", "0.0.0.0/8", 1)
    assert running.entries("nets") == [{"key": "0.0.0.0/8", "value": 1}]
    assert verdict(loose, "192.0.2.1") == 1
    assert running.delete_entry("nets", "0.0.0.0/8")
    assert verdict(loose, "192.0.2.1") == 2


MISTAKES = [
    ("rules", "x", {}, "key: 'x' is no whole number"),
    ("rules", -1, {}, "key: -1 is none of 0 to 18446744073709551615"),
    ("rules", 1.5, {}, "key: '1.5' is no whole number"),
    ("rules", 1, 7, "value: it has fields, such as {saddr, port,"),
    ("rules", 1, {"sadr": 1}, "value: no field 'sadr'; did you mean saddr?"),
    ("rules", 1, {"saddr": "10.1.2"}, "value.saddr: '10.1.2' is not of type ipv4, 4 bytes"),
    ("rules", 1, {"saddr": 3}, "value.saddr: '3' is not of type ipv4"),
    ("rules", 1, {"port": 70000}, "value.port: '70000' is not of type be"),
    ("rules", 1, {"mac": "02:00"}, "value.mac: '02:00' is not of type mac, 6 bytes"),
    ("rules", 1, {"limits": [1]}, "value.limits: it is a list of 2"),
    ("rules", 1, {"low": 8}, "value.low: 8 is none of 0 to 7"),
    ("rules", 1, {"shift": 128}, "value.shift: 128 is none of -128 to 127"),
    (
        "rules",
        1,
        {"action": "BLOK"},
        "value.action: 'BLOK' is no whole number; did you mean BLOCK?",
    ),
    ("rules", 1, {"note": "too long a note"}, "value.note: 'too long a note' is not of type text"),
    ("rules", None, {}, "key: 'None' is no whole number"),
    ("limits", 4, 1, "index: 4 is none of 0 to 3"),
    ("nets", "10.0.0.1/8", 1, "key: '10.0.0.1/8' is not of type prefix"),
    ("nets", "2001:db8::/32", 1, "key: '2001:db8::/32' is not of type prefix"),
]


@pytest.mark.parametrize(("name", "key", "value", "said"), MISTAKES)
def test_what_does_not_fit_is_told_by_its_field(
    loose: Loose, name: str, key: Any, value: Any, said: str
) -> None:
    running = loose.add(probe(RULES, EVERY))
    with pytest.raises(UsageError) as caught:
        running.set_entry(name, key, value)
    assert str(caught.value).startswith(f"map {name}: {said}")
    assert all(not each["value"] for each in running.entries(name))


REFUSED: list[tuple[Any, Any, str]] = [
    (
        {"alow": {"writable": True}},
        (),
        "maps.alow: no source declares this map; did you mean allow?",
    ),
    (
        {"entries": {"writible": True}},
        (),
        "maps.entries.writible: no such key; did you mean writab",
    ),
    ({"allow": {"entries": [{"kye": 1}]}}, (), "maps.allow.entries[0].kye: no such key"),
    ({"allow": {"share": "a b"}}, (), "maps.allow.share: 'a b' is not a name"),
    ({"allow": {}}, (), "maps.allow: it is neither shared nor writable"),
    (
        {"allow": {"share": "probe", "types": TYPED}},
        (),
        "maps.allow.types: the map is not writable",
    ),
    (
        {"allow": {"writable": True}},
        (metric("allow", snapshot=True),),
        "ingress.metrics[0]: each window of a snapshot has a map of its own",
    ),
    (
        {"allow": {"writable": True}},
        (metric("allow", init=True),),
        "ingress.metrics[0]: init would take out what operators write",
    ),
    (
        {"allow": {"writable": True, "types": {"kye": "ipv4"}}},
        (),
        "map allow: types: kye: allow has",
    ),
    (
        {"allow": {"writable": True, "types": TYPED, "entries": [{"key": "x", "value": 1}]}},
        (),
        "maps.allow.entries[0]: key: 'x' is not of type ipv4",
    ),
]


@pytest.mark.parametrize(("maps", "metrics", "said"), REFUSED)
def test_options_that_cannot_be_are_refused_by_their_key(
    loose: Loose, maps: Any, metrics: Any, said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        loose.add(probe(ALLOW, maps, *metrics))
    assert said in str(caught.value)


def test_a_queue_cannot_be_written(loose: Loose) -> None:
    with pytest.raises(UsageError, match=r"maps.queue.writable: it is a queue; an operator can"):
        loose.add(probe(RULES, {"queue": {"writable": True}}))


def test_an_entry_of_a_per_cpu_map_is_written_for_every_cpu(loose: Loose) -> None:
    """Rules whose hits a program counts in the value, as many filters do: odd sizes, too."""
    source = """
struct rule { u32 hits; u8 flags; } __attribute__((packed));
BPF_PERCPU_HASH(rules, u32, struct rule, 8);
BPF_PERCPU_ARRAY(limits, u16, 2);
int f(struct xdp_md *ctx) {
    u32 one = 1;
    u16 *limit = limits.lookup((int *)&one);
    struct rule *rule = rules.lookup(&one);
    if (rule && limit && rule->flags == 5 && *limit == 700)
        rule->hits++;
    return XDP_PASS;
}
"""
    rule = {"key": 1, "value": {"hits": 10, "flags": 5}}
    limits = {"writable": True, "entries": [{"key": 1, "value": 700}]}
    maps = {"rules": {"writable": True, "entries": [rule]}, "limits": limits}
    running = loose.add(probe(source, maps, metric("rules")))
    for cpu in CPUS:
        with on_cpu(cpu):
            prog_test_run(loose.fd(), bytes(Frame()), repeat=3 + cpu)
    idle = possible_cpus() - len(CPUS)
    hits = [13 + cpu for cpu in CPUS] + [10] * idle
    (found,) = snapshots(running.export())
    assert sorted(found.rows["value"]["hits"][0].tolist()) == sorted(hits)
    assert found.rows["value"]["flags"][0].tolist() == [5] * possible_cpus()
    (entry,) = running.entries("rules")
    assert sorted(each["hits"] for each in entry["value"]) == sorted(hits)
    running.set_entry("rules", 1, {"hits": 0, "flags": 5})
    assert running.delete_entry("limits", 1)
    prog_test_run(loose.fd(), bytes(Frame()), repeat=3)
    (found,) = snapshots(running.export())
    assert found.rows["value"]["hits"].sum() == 0
    assert running.delete_entry("rules", 1)
    assert not running.entries("rules")


def test_only_writable_maps_are_seen(loose: Loose) -> None:
    running = loose.add(probe(ALLOW))
    for name in ("passed", "alow"):
        with pytest.raises(UsageError, match=f"probe probe has no writable map '{name}'"):
            running.entries(name)
