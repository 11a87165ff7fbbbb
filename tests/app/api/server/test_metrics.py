"""Metrics by the API: who may read them, and their formats."""

from __future__ import annotations

import httpx

from probes.reports import NoOutputs, OutputState, OutputStatus
from tests.app.api.conftest import READ_TOKEN, Site
from tests.app.exporters.openmetrics.test_series import window
from tests.app.exporters.scraped import OPEN_METRICS, checked, parsed


def test_a_scraper_needs_a_token_and_the_one_for_reading_is_enough(tcp: Site) -> None:
    with tcp.http("") as client:
        assert client.get("/metrics").status_code == 401
    with tcp.http(READ_TOKEN) as client:
        assert client.get("/metrics").status_code == 200


def test_windows_since_the_listener_began_are_counted(tcp: Site, http: httpx.Client) -> None:
    tcp.plane.unwritten = {"flows": 7}
    for number in (1, 2):
        tcp.plane.publish(window(number))
    answer = http.get("/metrics", headers={"accept": OPEN_METRICS})
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    found = parsed(answer.text)
    flows = [v for name, v in found.items() if name.startswith("probedeck_flow_packets_total")]
    assert sum(flows) == 24
    assert found['probedeck_unwritten_rows_total{table="flows"}'] == 7
    assert found["probedeck_resident_memory_bytes"] > 10 << 20
    assert found["probedeck_map_memory_bytes"] == tcp.plane.memory().used


class OneOutput(NoOutputs):
    def status(self) -> tuple[OutputStatus, ...]:
        lost = {"queue full": 3, "ended": 2}
        return (
            OutputStatus("ipfix", "ipfix://c:1", OutputState.FAILING, "", 0, 7, 70, 5, lost, 1),
        )


def test_outputs_and_what_they_did_not_deliver(tcp: Site, http: httpx.Client) -> None:
    tcp.plane.outputs = OneOutput()
    found = parsed(http.get("/metrics", headers={"accept": OPEN_METRICS}).text)
    of = 'output="ipfix"'
    assert found[f'probedeck_output_undelivered_records_total{{{of},reason="queue full"}}'] == 3
    assert found[f"probedeck_output_delivered_records_total{{{of}}}"] == 5
    assert found[f"probedeck_output_queue_bytes{{{of}}}"] == 70
    assert found[f'probedeck_output_state{{{of},probedeck_output_state="failing"}}'] == 1
    assert found[f'probedeck_output_state{{{of},probedeck_output_state="ended"}}'] == 0


def test_without_a_wish_the_text_is_of_the_older_format(http: httpx.Client) -> None:
    answer = http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    checked(answer.content)
