"""UDP: datagrams of a collector that is gone come back, and go out again when it returns."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from app.exporters.exporter import DeliveryError
from app.exporters.ipfix.stream import UdpLink
from probes.snapshot import Loss, LossReason
from tests.app.exporters.ipfix.collectors import UdpCollector, deliver
from tests.app.exporters.ipfix.made import Output, many, totals, window
from tests.app.exporters.ipfix.reader import Reader, number


def dies_after(monkeypatch: pytest.MonkeyPatch, datagrams: int, die: Callable[[], None]) -> None:
    """Let the collector die behind so many datagrams."""
    real, left = UdpLink.send, [datagrams]

    def send(link: UdpLink, data: bytes, deadline: float) -> int:
        end = real(link, data, deadline)
        left[0] -= 1
        if not left[0]:
            die()
        return end

    monkeypatch.setattr(UdpLink, "send", send)


@pytest.mark.parametrize(
    ("scheme", "address"), [("ipfix", "127.0.0.1"), ("netflow9", "127.0.0.1"), ("ipfix", "::1")]
)
@pytest.mark.parametrize("datagrams", [1, 5, 32, 60])
def test_a_collector_that_dies_and_returns_gets_each_record_once(
    monkeypatch: pytest.MonkeyPatch, scheme: str, address: str, datagrams: int
) -> None:
    collector = UdpCollector(address=address)
    host = f"[{address}]" if ":" in address else address
    output = Output(f"{scheme}://{host}:{collector.port}")
    exporter = output.exporter()
    dies_after(monkeypatch, datagrams, collector.die)
    rows = many(1500)
    flows = window(rows)
    done = deliver(exporter, flows, tries=3)
    assert done < len(rows)
    again = UdpCollector(collector.port, address)
    # The sequence goes on where the first one ended, so the collector sees that nothing is missing.
    again.reader.sequences = collector.reader.sequences
    assert deliver(exporter, flows, skip=done) == len(rows)
    exporter.close()
    both = Reader(flows=collector.reader.flows + again.take().flows)
    assert both.sums() == totals(rows)
    assert not output.lost
    again.die()


@pytest.mark.parametrize("scheme", ["ipfix", "netflow9"])
def test_a_run_on_several_interfaces_tells_the_interface_of_each_record(scheme: str) -> None:
    """One is in another network namespace, and 50 have left."""
    collector = UdpCollector()
    exporter = Output(f"{scheme}://127.0.0.1:{collector.port}?mtu=576").exporter()
    rows = many(106)
    names = ["lo", "eth0@web", *(f"veth{n}" for n in range(51))]
    rows["interface"] = np.repeat(names, 2)
    flows = replace(window(rows), interface="any@all")
    assert deliver(exporter, flows) == len(rows)
    exporter.close()
    reader = collector.take()
    assert len(reader.sequences) == 1, "one observation domain"
    assert reader.sums() == totals(rows)
    of_name = {
        record[0, 82].rstrip(b"\0").decode(): number(record, 10 if scheme == "ipfix" else 2)
        for record in reader.options
        if (0, 82) in record
    }
    assert {*of_name} == {"any@all", *names}
    assert of_name["lo"] == socket.if_nametoindex("lo")
    assert of_name["eth0@web"] > 1 << 31
    assert of_name["veth7"] == of_name["any@all"] == 0
    sent = Counter(number(record, 10) for record in reader.flows)
    assert sent == {of_name["lo"]: 2, of_name["eth0@web"]: 2, 0: 102}
    collector.die()


def test_what_a_dead_collector_never_gets_counts_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    collector = UdpCollector()
    output = Output(f"ipfix://127.0.0.1:{collector.port}")
    exporter = output.exporter()
    dies_after(monkeypatch, 20, collector.die)
    flows = window(many(1500))
    done = deliver(exporter, flows)
    exporter.close()
    ((rows, reason),) = output.lost
    assert reason == "ended"
    assert collector.reader.sums()[0] == done - rows


def test_a_refusal_behind_the_last_datagram_is_found_by_the_next_tick() -> None:
    collector = UdpCollector()
    output = Output(f"ipfix://127.0.0.1:{collector.port}")
    exporter = output.exporter()
    first, second = window(many(100)), window(many(20, 100), 2)
    assert deliver(exporter, first) == 100
    collector.die()
    assert deliver(exporter, second) == 20
    with pytest.raises(DeliveryError, match="refused"):
        exporter.tick()
    again = UdpCollector(collector.port)
    again.reader.sequences = collector.reader.sequences
    exporter.open()
    exporter.tick()
    assert collector.reader.sums() == totals(first.rows)
    assert again.take().sums() == totals(second.rows)
    again.die()


def test_templates_and_options_go_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    collector = UdpCollector()
    exporter = Output(f"ipfix://127.0.0.1:{collector.port}").exporter()
    deliver(exporter, window(many(10)))
    exporter.tick()
    assert set(collector.take().sent_templates.values()) == {1}
    after = time.monotonic() + 11
    monkeypatch.setattr(time, "monotonic", lambda: after)
    exporter.tick()
    assert set(collector.take().sent_templates.values()) == {2}
    exporter.close()
    collector.die()


def test_options_tell_interface_sampling_and_losses() -> None:
    collector = UdpCollector()
    output = Output(f"ipfix://127.0.0.1:{collector.port}")
    losses = {LossReason.TABLE_FULL: Loss(7, 700), LossReason.FILTERED: Loss(9, 900)}
    flows = window(many(100), losses=losses)
    output.ledger.take(flows)
    output.ledger.not_sent("out", flows, 90, 10)
    exporter = output.exporter()
    assert deliver(exporter, flows) == 100
    exporter.close()
    options = {key: record for record in collector.take().options for key in record}
    interface = options[0, 82]
    assert interface[0, 82].rstrip(b"\0") == b"lo"
    assert number(interface, 10) == socket.if_nametoindex("lo")
    assert interface[0, 83].startswith(b"lo of ")
    sampling = options[0, 305]
    assert [number(sampling, each) for each in (304, 305, 306)] == [1, 1, 0]
    ignored = options[0, 164]
    assert (number(ignored, 164), number(ignored, 165)) == (7, 700)
    not_sent, rest = options[0, 166], flows.rows[90:]
    assert [number(not_sent, each) for each in (166, 167, 168)] == [*totals(rest)]
    assert number(not_sent, 323) == pytest.approx(time.time() * 1000, abs=60_000)
    exported = options[0, 42]
    assert number(exported, 42) == 100
    assert number(exported, 40) == sum(collector.reader.sizes[:-1])
    assert number(exported, 41) == len(collector.reader.sizes) - 1
    collector.die()


def test_a_full_collector_sees_by_the_sequence_what_it_dropped() -> None:
    collector = UdpCollector()
    exporter = Output(f"ipfix://127.0.0.1:{collector.port}").exporter()
    assert deliver(exporter, window(many(10))) == 10
    collector.fill_soon()
    assert deliver(exporter, window(many(3000, 10), 2)) == 3000
    missing = collector.take_with_gaps()
    stored = len(collector.reader.flows)
    assert stored < 3010
    # The last datagram tells that others are missing before it.
    assert deliver(exporter, window(many(1, 5000), 3)) == 1
    first = collector.reader.sequences.copy()
    (sequence,) = first.values()
    collector.reader.sequences.clear()
    collector.take()
    (end,) = collector.reader.sequences.values()
    assert missing + (end - sequence - 1) + stored == 3010
    exporter.close()
    collector.die()
