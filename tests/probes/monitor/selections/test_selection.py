"""The kernel's classifier selects exactly the packets that the filters pass."""

from __future__ import annotations

import ipaddress
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import numpy as np
import pytest

from bpf.abi import ProgType
from bpf.arrays import Array
from bpf.compiler import Compiler
from bpf.errors import TextError, UsageError
from bpf.maps.map import Map
from bpf.programs.program import Program
from bpf.syscall import prog_test_run
from probes.flow.filter import FlowFilter
from probes.flow.records import FLOW, key_words
from probes.monitor import selection
from probes.monitor.selection import TABLES, Selections, conjunctions_of
from probes.program.metrics import open_map

PACKETS = 4096
PROGRAM = """
#include "select.h"

BPF_F_TABLE("array", u32, struct packet, packets, 4096, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, u64, results, 4096, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, u32, places, 1, BPF_F_MMAPABLE);

/* Classify the next packet. */
int classify(struct __sk_buff *ctx) {
    u32 zero = 0;
    u32 *place = places.lookup(&zero);
    if (!place)
        return 0;
    u32 at = (*place)++;
    struct packet *packet = packets.lookup(&at);
    u64 *result = results.lookup(&at);
    struct selector *selector = the_selector();
    if (packet && result && selector)
        *result = selections_of(selector, packet);
    return 0;
}
"""


class Classifier:
    """The classifier alone, in a program that a test runs."""

    def __init__(self, compiler: Compiler) -> None:
        with compiler.compile(
            PROGRAM,
            ProgType.SCHED_CLS,
            name="classify.c",
            cflags=["-DHOOK_TC_INGRESS=1", "-DLINK_ETHERNET=1"],
        ) as compiled:
            self.program = Program(compiled, "classify")
            fds = {name: self.program.map_fd(name) for name in compiled.maps}
            self._maps = {
                name: open_map(compiled.maps[name], fds[name])
                for name in ("packets", "results", "places", "selectors")
            }
            self.tries: dict[str, Map] = {
                name: open_map(compiled.maps[name], fds[name]) for name in TABLES[1:]
            }
            self.selections = Selections(compiled.maps, fds)
        self._views = {name: each.view() for name, each in self._maps.items()}

    def add(self, filters: Sequence[str]) -> int:
        """Select packets by another bit."""
        return self.selections.add_all(conjunctions_of(filters))

    def classify(self, rows: Array) -> Array:
        """Return the selections' bits, u8 (n,), of packets with the keys and flags of FLOW (n,)."""
        packets = self._views["packets"]
        words = key_words(rows)
        packets["key"]["source"][: len(rows)] = words[:, :2]
        packets["key"]["destination"][: len(rows)] = words[:, 2:4]
        packets["key"]["transport"][: len(rows)] = words[:, 4]
        packets["tcp_flags"][: len(rows)] = rows["tcp_flags"]
        self._views["places"][:] = 0
        prog_test_run(self.program.fd, bytes(64), repeat=len(rows))
        return np.array(self._views["results"][: len(rows)])

    def assert_exact(self, rows: Array, texts: Mapping[int, Sequence[str]]) -> None:
        """Each selection has the packets that one of its filters passes, and no others exist."""
        found = self.classify(rows)
        left = found.copy()
        for number, filters in texts.items():
            bit = np.uint64(1 << number)
            passed = [FlowFilter.parse(text).mask(rows) for text in filters]
            expected = np.logical_or.reduce(passed) if passed else np.ones(len(rows), bool)
            wrong = np.flatnonzero((found & bit).astype(bool) != expected)
            assert not len(wrong), f"{filters} and {rows[wrong[:3]]}"
            left &= ~bit
        assert not left.any()

    def port_classes(self) -> list[int]:
        """Return the number of classes of source ports and of destination ports."""
        (tables,) = self._views["selectors"]
        return [len(np.unique(tables[f"{end}_ports"])) for end in ("source", "destination")]

    def close(self) -> None:
        self._views.clear()
        self.selections.close()
        self.program.close()


@pytest.fixture
def classifier(compiler: Compiler) -> Iterator[Classifier]:
    made = Classifier(compiler)
    yield made
    made.close()


POOL = {
    4: [ipaddress.ip_address(text) for text in ("10.0.0.1", "10.1.2.3", "10.128.0.9", "192.0.2.7")],
    6: [ipaddress.ip_address(text) for text in ("2001:db8::1", "2001:db8:8000::7", "fd00::1")],
}
PREFIXES = [
    "10.0.0.0/8", "10.0.0.0/9", "10.1.0.0/16", "10.1.2.3", "192.0.2.0/24", "0.0.0.0/0", "::/0",
    "2001:db8::/32", "2001:db8::/33", "2001:db8::1", "172.16.0.0/12",
]  # fmt: skip
ICMP = [3, 128, "echo-reply", "3/3", "unreachable/5", "time-exceeded"]
PORTS = [0, 3 << 8 | 3, 129 << 8, 22, 53, 80, 81, 443, 1024, 8000, 8100, 40000, 65535]


def packets(choose: random.Random, count: int = 1000) -> Array:
    """Flow rows as packets: a row is one packet, with its flags."""
    rows = np.zeros(count, FLOW)
    for row in rows:
        version = choose.choice((4, 4, 6))
        for end in ("source", "destination"):
            raw = choose.choice(POOL[version]).packed.ljust(16, b"\0")
            row[end] = np.frombuffer(raw, "u1")
            row[f"{end}_port"] = choose.choice(PORTS)
        row["version"], row["protocol"] = version, choose.choice((1, 6, 6, 17, 47, 58))
        row["vlan"] = choose.choice((0, 0, 1, 7, 4095))
        row["tcp_flags"] = choose.randrange(256) if row["protocol"] == 6 else 0
    return rows


def term(choose: random.Random) -> str:
    def some(values: Sequence[object]) -> str:
        return ",".join(map(str, choose.sample(values, choose.randint(1, min(3, len(values))))))

    low, high = sorted(choose.sample(PORTS, 2))
    port, end = choose.choice(["port", "sport", "dport"]), choose.choice(["src", "dst", "net"])
    sign = choose.choice([":", "=", "!="])
    return choose.choice(
        [
            f"proto:{some(['tcp', 'udp', 'icmp', 47, 200])}",
            f"{port}{sign}{some(PORTS)}",
            f"{port}{sign}{low}-{high}",
            f"{port}{choose.choice(['<', '>='])}{high}",
            f"{end}{sign}{some(PREFIXES)}",
            f"ip{sign}{some([4, 6])}",
            f"vlan{sign}{some([0, 1, '2-7', '5-4095'])}",
            f"flags{sign}{some(['S', 'SA', 'R', 'SE'])}",
            "flags=0",
            f"icmp{sign}{some(ICMP)}",
            f"id{sign}{low}-{high}",
        ]
    )


def expression(choose: random.Random, depth: int = 3) -> str:
    if not depth or choose.random() < 0.3:
        return choose.choice(["", "", "!"]) + term(choose)
    parts = [expression(choose, depth - 1) for _ in range(choose.randint(2, 3))]
    return choose.choice(["", "!"]) + f"({choose.choice([' ', ' or ']).join(parts)})"


@pytest.mark.slow
def test_packets_are_selected_exactly_while_selections_come_and_go(classifier: Classifier) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    choose = random.Random(seed)
    texts: dict[int, Sequence[str]] = {}
    most = changes = 0
    while changes < 120:
        if texts and choose.random() < 0.4:
            gone = choose.choice(list(texts))
            classifier.selections.remove(gone)
            del texts[gone]
        else:
            filters = [expression(choose) for _ in range(choose.choice((0, 1, 1, 1, 2)))]
            with suppress(UsageError):  # too many combinations
                number = classifier.add(filters)
                assert number not in texts
                texts[number] = filters
        most = max(most, len(texts))
        changes += 1
        if changes % 4 == 0:
            classifier.assert_exact(packets(choose), texts)
    assert most > 5
    for number in texts:
        classifier.selections.remove(number)
    assert not classifier.classify(packets(choose)).any()
    assert not any(len(trie.read()) for trie in classifier.tries.values())
    assert classifier.port_classes() == [1, 1]


def addressed(sources: Sequence[int]) -> Array:
    """UDP packets from IPv4 addresses."""
    rows = np.zeros(len(sources), FLOW)
    rows["version"], rows["protocol"] = 4, 17
    rows["source"][:, :4] = np.array(sources, ">u4").view("u1").reshape(-1, 4)
    return rows


@pytest.mark.slow
def test_ten_thousand_prefixes_nested_and_negated(classifier: Classifier) -> None:
    choose = random.Random(7)
    lists = [
        [
            ipaddress.ip_network((choose.getrandbits(28), choose.randint(20, 32)), strict=False)
            for _ in range(5000)
        ]
        for _ in range(2)
    ]
    # A filter has at most 8192 characters; a policy's list has any number of filters.
    inside, outside = ([f"src:{each}" for each in networks] for networks in lists)
    sources = [choose.getrandbits(28) for _ in range(1000)]
    for networks in lists:
        sources += [int(choose.choice(networks).network_address) for _ in range(500)]
    rows = addressed(sources)
    first = classifier.add(inside)
    excluded = " ".join(f"!{text}" for text in outside[:300])
    second = classifier.add([f"src:0.0.0.0/5 {excluded}"])
    third = classifier.add(outside)
    texts = {first: inside, second: [f"src:0.0.0.0/5 {excluded}"], third: outside}
    classifier.assert_exact(rows, texts)
    assert 9000 < len(classifier.tries["sources_v4"].read()) <= 10_002
    classifier.selections.remove(first)
    del texts[first]
    classifier.assert_exact(rows, texts)
    assert len(classifier.tries["sources_v4"].read()) < 5302
    assert not len(classifier.tries["destinations_v4"].read())


def test_users_of_the_same_packets_share_a_bit_except_for_policies(classifier: Classifier) -> None:
    rows, selections = packets(random.Random(5)), classifier.selections
    policy = classifier.add(["tcp"])
    shared = selections.add(["tcp"])
    assert (policy, shared) == (selections.add(["tcp"]), policy)
    other = classifier.add(["tcp"])
    assert other != policy
    selections.remove(policy)
    selections.remove(shared, alone=False)
    classifier.assert_exact(rows, {shared: ["tcp"], other: ["tcp"]})
    assert classifier.add(["tcp"]) == shared
    selections.remove(shared)
    selections.remove(shared, alone=False)
    classifier.assert_exact(rows, {other: ["tcp"]})


def test_a_selection_that_does_not_fit_changes_nothing(
    classifier: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = packets(random.Random(5))
    texts: dict[int, Sequence[str]] = {}

    def add(*filters: str) -> None:
        texts[classifier.add(filters)] = filters

    def refused(said: str, *filters: str) -> None:
        with pytest.raises(UsageError, match=said):
            classifier.add(filters)
        classifier.assert_exact(rows, texts)

    add("dport:53 proto:udp")
    with_bit = (",".join(str(n) for n in range(512) if n >> bit & 1) for bit in range(9))
    refused("256 classes of ports", *(f"sport:{p} ip:4 dport:{n}" for n, p in enumerate(with_bit)))
    monkeypatch.setattr(selection, "_PREFIXES", 100)
    refused("more than 100 prefixes", *(f"dst:10.{n}.1.0/24" for n in range(100)))
    with pytest.raises(TextError) as caught:
        classifier.add(["tcp", "udp rate>5"])
    assert caught.value.column == 5
    for number in range(31):
        add(f"sport:{number} dport:53")
        add()
    add("proto:udp sport:53")
    assert len(texts) == 64
    refused("at most 64 selections", "tcp")
    classifier.selections.remove(next(iter(texts)))
    del texts[next(iter(texts))]
    refused("66 combinations", *(f"sport:{n + 100} dport:{n}" for n in range(33)))
    add("tcp")
    classifier.assert_exact(rows, texts)
