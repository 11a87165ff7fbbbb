"""TCP and TLS: what the collector has not acknowledged goes out again."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

import pytest

from app.exporters.exporter import DeliveryError
from app.exporters.ipfix.exporter import FlowExporter
from app.exporters.ipfix.stream import StreamLink
from bpf.errors import UsageError
from tests.app.exporters import certificates
from tests.app.exporters.certificates import Certificate
from tests.app.exporters.ipfix.collectors import StreamCollector, deliver, stream_collector
from tests.app.exporters.ipfix.made import Output, many, totals, window
from tests.support.waiting import wait_for


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return certificates.certificate(tmp_path_factory.mktemp("tls"), "collector")


@pytest.fixture(params=["tcp", "tls"])
def transport(
    request: pytest.FixtureRequest, certificate: Certificate
) -> tuple[str, ssl.SSLContext | None]:
    """The query of an output's URL, and what the collector needs."""
    if request.param == "tcp":
        return "transport=tcp", None
    return f"transport=tls&ca={certificate.cert}", certificate.server()


def test_a_window_arrives_with_each_template_once(
    transport: tuple[str, ssl.SSLContext | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    query, context = transport
    monkeypatch.setattr("app.exporters.ipfix.exporter._REFRESH_S", 0.0)
    with stream_collector(context) as collector:
        exporter = Output(f"ipfix://127.0.0.1:{collector.port}?{query}").exporter()
        first, second = window(many(3000)), window(many(2000, 3000), 2)
        assert deliver(exporter, first) == 3000
        exporter.tick()
        assert deliver(exporter, second) == 2000
        exporter.tick()
        exporter.close()
        wait_for(lambda: collector.sums()[0] == 5000)
        (reader,) = collector.readers
        sums = zip(totals(first.rows), totals(second.rows), strict=True)
        assert reader.sums() == tuple(map(sum, sums))
        assert set(reader.sent_templates.values()) == {1}
        assert max(reader.sizes) > 15_000


@pytest.mark.parametrize("messages", [1, 3, 9])
def test_a_broken_connection_loses_and_repeats_no_record(
    transport: tuple[str, ssl.SSLContext | None], monkeypatch: pytest.MonkeyPatch, messages: int
) -> None:
    query, context = transport
    with stream_collector(context) as collector:
        output = Output(f"ipfix://127.0.0.1:{collector.port}?{query}")
        exporter = output.exporter()
        real, left = StreamLink.send, [messages]

        def send(link: StreamLink, data: bytes, deadline: float) -> int:
            left[0] -= 1
            if not left[0]:
                # The collector has read all earlier messages. Nobody reads the next ones.
                wait_for(lambda: link._acknowledged() == link._written and bool(collector.readers))
                collector.cut()
            return real(link, data, deadline)

        monkeypatch.setattr(StreamLink, "send", send)
        flows = window(many(4000))
        done = deliver(exporter, flows, tries=1)
        assert done < 4000
        assert deliver(exporter, flows, tries=2, skip=done) == 4000
        exporter.close()
        wait_for(lambda: collector.sums()[0] >= 4000)
        assert collector.sums() == totals(flows.rows)
        assert len(collector.readers) == 2
        assert not output.lost


@pytest.mark.parametrize("messages", [1, 3])
def test_messages_without_acknowledgement_go_out_again(
    transport: tuple[str, ssl.SSLContext | None], messages: int
) -> None:
    query, context = transport
    with stream_collector(context) as collector:
        exporter = Output(f"ipfix://127.0.0.1:{collector.port}?{query}").exporter()
        first, second = window(many(1000)), window(many(250 * messages, 1000), 2)
        assert deliver(exporter, first) == 1000
        wait_for(lambda: collector.sums()[0] == 1000)
        # The next bytes that the collector reads end the connection, and are lost.
        collector.drops = True
        link = exporter._session._link
        assert isinstance(link, StreamLink)
        wait_for(lambda: link._acknowledged() == link._written)
        with pytest.MonkeyPatch.context() as patch:
            acknowledged = link._acknowledged()
            patch.setattr(StreamLink, "_acknowledged", lambda link: acknowledged)
            done = deliver(exporter, second)
            wait_for(lambda: is_broken(exporter))
        collector.drops = False
        assert deliver(exporter, second, tries=2, skip=done) == 250 * messages
        wait_for(lambda: collector.sums()[0] >= 1000 + 250 * messages)
        expected = zip(totals(first.rows), totals(second.rows), strict=True)
        assert collector.sums() == tuple(map(sum, expected))
        exporter.close()


def is_broken(exporter: FlowExporter) -> bool:
    try:
        exporter.tick()
    except DeliveryError:
        return True
    return False


def test_bytes_that_the_peer_does_not_read_have_no_acknowledgement() -> None:
    with stream_collector(buffer=1 << 14) as collector:
        collector.reads.clear()
        link = StreamLink("127.0.0.1", collector.port)
        link.open()
        sent, is_full = 0, False
        while not is_full:
            try:
                sent = link.send(bytes(1 << 14), time.monotonic() + 0.05)
            except TimeoutError:
                is_full = True
        assert 0 < link._acknowledged() < link._written <= sent
        collector.drops = True
        link.close()


def test_a_slow_collector_stops_the_delivery_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.exporters.ipfix.exporter._DELIVER_S", 0.1)
    with stream_collector(buffer=1 << 14) as collector:
        output = Output(f"ipfix://127.0.0.1:{collector.port}?transport=tcp")
        exporter = output.exporter()
        assert deliver(exporter, window(many(10))) == 10
        wait_for(lambda: collector.sums()[0] == 10)
        collector.reads.clear()
        flows = window(many(30_000), 2)
        with pytest.raises(DeliveryError, match="slowly") as slow:
            exporter.deliver(flows, 0)
        # The kernel holds what it took; its buffers are bounded.
        assert 0 < slow.value.delivered < 25_000
        with pytest.raises(DeliveryError, match="slowly") as again:
            exporter.deliver(flows, slow.value.delivered)
        done = again.value.delivered
        assert slow.value.delivered <= done < 25_000
        collector.reads.set()
        assert deliver(exporter, flows, tries=50, skip=done) == 30_000
        exporter.tick()
        wait_for(lambda: collector.sums()[0] >= 30_010)
        assert collector.sums()[0] == 30_010
        assert len(collector.readers) == 1
        exporter.close()
        assert not output.lost


def test_what_no_collector_ever_acknowledged_counts_as_lost() -> None:
    collector = StreamCollector()
    output = Output(f"ipfix://127.0.0.1:{collector.port}?transport=tcp")
    exporter = output.exporter()
    assert deliver(exporter, window(many(10))) == 10
    wait_for(lambda: collector.sums()[0] == 10)
    collector.close()
    done = deliver(exporter, window(many(1000), 2), tries=3)
    exporter.close()
    assert sum(rows for rows, _ in output.lost) == done


def test_a_collector_with_a_wrong_authority_or_name_gets_nothing(
    certificate: Certificate,
) -> None:
    with stream_collector(certificate.server()) as collector:
        for place, words in (
            ("127.0.0.1:{}?transport=tls", "self-signed certificate"),
            (
                f"localhost:{{}}?transport=tls&ca={certificate.cert}",
                "Hostname mismatch, .*'localhost'",
            ),
        ):
            exporter = Output(f"ipfix://{place.format(collector.port)}").exporter()
            refused = f"^the receiver's certificate is refused: {words}"
            with pytest.raises(DeliveryError, match=refused):
                exporter.open()
            exporter.close()
        assert collector.sums()[0] == 0


def test_a_collector_knows_its_senders_by_their_certificates(
    certificate: Certificate, tmp_path: Path
) -> None:
    own, foreign = certificates.certificate(tmp_path), certificates.certificate(tmp_path, "foreign")
    with stream_collector(certificate.server(own.cert)) as collector:
        url = f"ipfix://127.0.0.1:{collector.port}?transport=tls&ca={certificate.cert}"
        for query, words in (
            ("", "certificate required"), (f"&cert={foreign.cert}&key={foreign.key}", "unknown ca"),
        ):  # fmt: skip
            output = Output(url + query)
            exporter = output.exporter()
            # No record counts as delivered, though the collector's kernel would acknowledge it.
            with pytest.raises(DeliveryError, match=f"^TLS: .*{words}"):
                exporter.open()
            exporter.close()
            assert not output.lost
        flows = window(many(500))
        exporter = Output(f"{url}&cert={own.cert}&key={own.key}").exporter()
        assert deliver(exporter, flows) == 500
        exporter.close()
        wait_for(lambda: collector.sums() == totals(flows.rows))


def test_mistakes_in_files_of_tls_are_told_at_the_start(tmp_path: Path) -> None:
    missing = tmp_path / "none.pem"
    with pytest.raises(UsageError, match="No such file"):
        Output(f"ipfix://127.0.0.1?transport=tls&ca={missing}").exporter()
    with pytest.raises(UsageError, match="need transport=tls"):
        Output(f"ipfix://127.0.0.1?ca={missing}").exporter()
