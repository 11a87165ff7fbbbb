"""The monitor's counters against counting in Python, packet by packet."""

from __future__ import annotations

import itertools
import random
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from bpf.compiler import Compiler
from bpf.errors import UsageError
from probes.monitor.options import Input, MonitorOptions, Receiver
from probes.monitor.selected import OUT, UNITS, Estimate, SelectedMetric
from probes.monitor.selected_counters import MAX_SLOTS
from tests.probes.monitor.bed import ARP, Bed, frame, records

TCP, UDP, ICMP, SCTP, GRE = 6, 17, 1, 132, 47
FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10


class Sent(NamedTuple):
    """A packet of IPv4, or of IPv6 with the same numbers in its addresses."""

    version: int
    source: int
    destination: int
    protocol: int
    sport: int
    dport: int
    flags: int
    size: int

    def frame(self) -> bytes:
        ports = struct.pack("!HH", self.sport, self.dport)
        if self.protocol == TCP:
            ports += struct.pack("!IIBBHHH", 1, 1, 5 << 4, self.flags, 64, 0, 0)
        length = self.size - 14
        if self.version == 4:
            head = struct.pack("!BBHIBBHII", 0x45, 0, length, 0, 64, self.protocol, 0,
                               self.source, self.destination)  # fmt: skip
        else:
            head = struct.pack("!IHBBQQQQ", 6 << 28, length - 40, self.protocol, 64, 0x20010DB8,
                               self.source, 0x20010DB8, self.destination)  # fmt: skip
        kind = b"\x08\x00" if self.version == 4 else b"\x86\xdd"
        return (bytes(12) + kind + head + ports).ljust(self.size, b"\0")


def random_packets(number: int, seed: int = 1) -> list[Sent]:
    dice = random.Random(seed)
    return [
        Sent(
            dice.choice((4, 4, 6)),
            dice.randrange(40),
            dice.randrange(60),
            dice.choice((TCP, TCP, TCP, UDP, UDP, SCTP, GRE)),
            dice.randrange(1, 65536),
            dice.choice((53, 80, 443, 8080)),
            dice.randrange(256),
            dice.randrange(80, 200),
        )
        for _ in range(number)
    ]


@pytest.fixture
def bed(compiler: Compiler) -> Iterator[Bed]:
    with Bed(compiler, MonitorOptions(bits=10, seed="0")) as made:
        yield made


@pytest.mark.slow
def test_tcp_flags_and_protocols_are_counted_exactly(bed: Bed) -> None:
    """S2.6: whatever other bits byte 13 has, and whatever stands there in other protocols."""
    packets = random_packets(300)
    for packet in packets:
        bed.run(packet.frame())
    tagged = b"\x81\0\0\7"
    for operation, tag in ((1, b""), (2, tagged), (2, b""), (3, b""), (0, b"")):
        head = b"\x08\x06\0\1\x08\0\6\4\0" + bytes([operation])
        bed.run((bytes(12) + tag + head).ljust(60, b"\0"))
    (row,) = bed.window()["metrics"]
    flags = [packet.flags for packet in packets if packet.protocol == TCP]
    assert {name: row[name] for name in row.dtype.names[-8:]} == {
        "syn_packets": sum(each & (SYN | ACK) == SYN for each in flags),
        "syn_ack_packets": sum(each & (SYN | ACK) == SYN | ACK for each in flags),
        "fin_packets": sum(each & FIN == FIN for each in flags),
        "rst_packets": sum(each & RST == RST for each in flags),
        "fragment_packets": 0,
        "protocols": 4,
        "arp_request_packets": 1,
        "arp_reply_packets": 2,
    }
    assert (row["packets"], row["tcp_packets"] > 0) == (305, True), "and other frames"
    (row,) = bed.window()["metrics"]
    assert not any(row.tolist()), "each window counts for itself"


def count(bed: Bed, **wanted: str) -> None:
    """Have policies need these metrics: `NAME on FILTER, ...`."""
    for name, texts in wanted.items():
        metrics = [SelectedMetric(*each.split(" on ")) for each in texts.split(", ")]
        with bed.monitor.counters.changed(name, metrics):
            pass


def window(bed: Bed) -> dict[str, Estimate]:
    bed.window()
    return {str(metric): value for metric, value in bed.monitor.selected.items()}


INCOMING = [name for name in UNITS if not name.startswith(OUT)]
PASSES: dict[str, Callable[[Sent], bool]] = {
    "proto:tcp": lambda p: p.protocol == TCP,
    "proto:udp": lambda p: p.protocol == UDP,
    "proto:sctp": lambda p: p.protocol == SCTP,
    "": lambda p: True,
}
PARTS: dict[str, Callable[[Sent], object]] = {
    "flows": lambda p: p[:6],
    "sources": lambda p: (p.version, p.source),
    "destinations": lambda p: (p.version, p.destination),
    "ports": lambda p: p.dport,
    "source_ports": lambda p: p.sport,
}
LARGEST = {
    "top_source": "sources",
    "top_destination": "destinations",
    "top_port": "ports",
    "top_source_port": "source_ports",
}


def check(values: dict[str, Estimate], packets: list[Sent]) -> None:
    """Counts are exact, distinct values within the band, largest shares within their limits."""
    for select, passes in PASSES.items():
        chosen = [packet for packet in packets if passes(packet)]
        found = {n: values[str(SelectedMetric(n, select))] for n in INCOMING}
        assert found["packets"] == (len(chosen),) * 3
        assert found["bytes"] == (sum(packet.size for packet in chosen),) * 3
        for name, part in PARTS.items():
            ported = [p for p in chosen if "ports" not in name or p.protocol in (TCP, UDP, SCTP)]
            distinct = Counter(map(part, ported))
            assert found[name].low <= len(distinct) <= found[name].high, (name, select)
            for top in (top for top, of in LARGEST.items() if of == name):
                low, high = found[top].low, found[top].high
                share = max(distinct.values()) / len(chosen)
                assert low <= share * 1.0000001, (top, select)
                assert share <= high * 1.0000001, (top, select)
        flows = Counter(packet[:6] for packet in chosen)
        for name, most in (("single_flows", 1), ("short_flows", 2)):
            short = sum(number <= most for number in flows.values())
            assert found[name].low <= short <= found[name].high, (name, select)


def test_selections_are_counted_as_python_counts_them(bed: Bed) -> None:
    """S2.6, S2.7: in the windows that a selection was there for."""
    metrics = [f"{name} on {select}" for name in INCOMING for select in PASSES]
    bed.run(ARP)
    count(bed, p=", ".join(metrics))
    assert window(bed) == {}, "the first window had a packet before"
    for number in range(2):
        packets = random_packets(300, seed=number)
        for packet in packets:
            bed.run(packet.frame())
        values = window(bed)
        assert len(values) == len(metrics)
        check(values, packets)


def test_packets_that_only_count_are_counted_for_each_of_their_selections(bed: Bed) -> None:
    """S2.6: by one counter a combination of filters, or one by one."""
    ports = {f"dport:{port}": port for port in (53, 80, 443, 8080)}
    overlapping = "proto:tcp", "proto:udp", *ports, "sport>0"

    def numbers(packets: list[Sent]) -> dict[str, int]:
        return {
            "proto:tcp": sum(p.protocol == TCP for p in packets),
            "proto:udp": sum(p.protocol == UDP for p in packets),
            **{f"dport:{port}": 0 for port in ports.values()},
            **Counter(f"dport:{p.dport}" for p in packets),
            "sport>0": len(packets),
        }

    def send(seed: int) -> list[Sent]:
        packets = [p for p in random_packets(60, seed) if p.protocol in (TCP, UDP)]
        for packet in packets:
            bed.run(packet.frame())
        return packets

    def expect(packets: list[Sent]) -> dict[str, Estimate]:
        values = window(bed)
        for select, number in numbers(packets).items():
            assert values[f"packets on {select}"].value == number, select
        return values

    count(bed, p=", ".join(f"packets on {select}" for select in overlapping))
    expect(send(1))
    bed.monitor.counters.forget("p")
    count(bed, old="packets on sport>1", p=", ".join(f"packets on {each}" for each in overlapping))
    window(bed)
    before = send(2)
    bed.monitor.counters.forget("old")
    count(bed, new="packets on proto:tcp,udp")  # at the bits of the one before
    expect(before + send(3))
    both = send(4)
    count(bed, q="packets on dport:53, sources on dport:53")
    expect(both + send(5))
    assert expect(send(6))["sources on dport:53"].value > 1
    count(bed, r=", ".join(f"packets on sport:{port}" for port in range(1, 9)))
    count(bed, s="packets on sport>8")
    window(bed)
    expect(send(7))


def test_combinations_that_share_a_place_are_counted_to_the_packet(bed: Bed) -> None:
    """64 of them, each with another number of packets, in 256 places."""
    above = {f"{end}>{port}": port for end in ("sport", "dport") for port in range(1, 8)}
    count(bed, p=", ".join(f"packets on {select}" for select in above))
    window(bed)
    base = random_packets(1)[0]._replace(protocol=UDP, version=4)
    expected: Counter[str] = Counter()
    for sport, dport in itertools.product(range(1, 9), repeat=2):
        number = sport + 10 * dport
        bed.run(base._replace(sport=sport, dport=dport).frame(), repeat=number)
        for select, port in above.items():
            expected[select] += number * ((sport if select[0] == "s" else dport) > port)
    values = window(bed)
    assert {select: values[f"packets on {select}"].value for select in above} == expected


def ends(packet: Sent) -> tuple[bytes, bytes]:
    return packet.source.to_bytes(4), packet.destination.to_bytes(4)


@pytest.mark.slow
def test_selections_of_telemetry_are_counted_record_by_record(compiler: Compiler) -> None:
    """S2.3: and a switch's record has a flags byte for every protocol."""
    receiver = Receiver("192.0.2.1", 5000, "198.51.100.2", 6343)
    options = MonitorOptions(input=Input.TELEMETRY, receivers=(receiver,), seed="0")
    packets = [each._replace(version=4) for each in random_packets(90)]
    with Bed(compiler, options) as made:
        count(made, p=", ".join(f"{name} on {select}" for name in INCOMING for select in PASSES))
        for some in (packets[:44], packets[44:89], packets[89:]):
            told = (
                (
                    p.source.to_bytes(4),
                    p.destination.to_bytes(4),
                    p.sport,
                    p.dport,
                    p.protocol,
                    p.size,
                )
                for p in some
            )
            made.run(frame(layer=records(*told)))
        (row,) = made.window()["metrics"]
        check({str(metric): value for metric, value in made.monitor.selected.items()}, packets)
    tcp = sum(packet.protocol == TCP for packet in packets)
    assert (row["syn_packets"], row["rst_packets"], row["protocols"]) == (tcp, 0, 4)


def test_metrics_that_come_and_go_within_a_window(bed: Bed) -> None:
    """Values are of whole windows; a metric that another policy has goes on."""
    tcp, udp = (next(p for p in random_packets(99) if p.protocol == n) for n in (TCP, UDP))
    count(bed, a="packets on proto:tcp", b="packets on proto:tcp, sources on proto:udp")
    bed.run(tcp.frame())
    count(bed, a="bytes on proto:udp", b="packets on proto:tcp, top_port on proto:udp")
    bed.run(tcp.frame())
    bed.run(udp.frame())
    assert window(bed) == {"packets on proto:tcp": (2, 2, 2)}, "its selection and b's need stayed"
    bed.run(udp.frame())
    bed.monitor.counters.forget("b")
    assert window(bed) == {"bytes on proto:udp": (udp.size,) * 3}
    bed.run(tcp.frame())
    count(bed, b="packets on proto:tcp, sources on proto:udp")
    assert window(bed) == {"bytes on proto:udp": (0, 0, 0)}
    bed.run(udp.frame())
    values = window(bed)
    assert values["packets on proto:tcp"] == (0, 0, 0), "what old counters had is gone"
    assert values["sources on proto:udp"].value == 1


def test_an_edited_source_keeps_the_counters(bed: Bed) -> None:
    """S4.7: a policy's metrics outlive the programs."""
    udp = next(p for p in random_packets(99) if p.protocol == UDP)
    count(bed, a="packets on proto:udp, sources on proto:udp")
    for _ in range(2):
        bed.run(udp.frame())
        with bed.monitor.compile(bed.monitor.config) as compiled:
            bed.monitor.replace(compiled)
        assert [v.value for v in bed.monitor.selected.values()] == [1, 1]
        bed.run(udp.frame(), 3)
        assert window(bed)["packets on proto:udp"].value == 3
    bed.monitor.roll_back()
    bed.run(udp.frame(), 2)
    assert window(bed)["sources on proto:udp"].value == 1


@pytest.mark.slow
def test_metrics_that_do_not_fit_change_nothing(bed: Bed) -> None:
    count(bed, a="packets on proto:tcp")
    many = ", ".join(f"sources on dport:{port}" for port in range(1, MAX_SLOTS + 2))
    with pytest.raises(UsageError, match=f"more than {MAX_SLOTS}"):
        count(bed, a=many)
    assert set(window(bed)) == {"packets on proto:tcp"}
    count(bed, a=many.removesuffix(", " + many.split(", ")[-1]))
    bed.run(random_packets(1)[0].frame())
    assert len(window(bed)) == MAX_SLOTS


def test_a_policy_fires_by_its_selection_alone(bed: Bed) -> None:
    """S2.11: its metrics are counted from its begin to its end, through a replacement."""
    tcp, udp = (next(p for p in random_packets(99) if p.protocol == n) for n in (TCP, UDP))
    text = "p: packets on proto:udp > {} and sources on proto:udp < 2 -> counting"
    bed.set(text.format(5))
    bed.run(tcp.frame(), 20)
    bed.run(udp.frame(), 3)
    bed.set(text.format(6))
    bed.run(udp.frame(), 3)
    assert not len(bed.window().get("triggers", ()))
    bed.run(udp.frame(), 7)
    (transition,) = bed.window()["triggers"]
    assert transition["cause"].decode().startswith("packets on proto:udp 7 > 6")
    bed.monitor.remove_policy("p")
    bed.window()
    assert bed.monitor.selected == {}
