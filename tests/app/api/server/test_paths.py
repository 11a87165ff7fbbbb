"""Tracing by the API: requests, refusals, and tables."""

from __future__ import annotations

import csv
import io
from typing import Any
from xml.etree import ElementTree

import httpx
import pytest

from app.api import wire
from app.api.client import RemoteController
from bpf.errors import UsageError
from probes.path.options import Guarded, PathOptions, TracedFlow
from probes.path.records import PathRowKind, ProbeOutcome
from probes.snapshot import Snapshot
from tests.app.api.conftest import Site, body_of
from tests.app.api.fake import config
from tests.app.api.responses import problem
from tests.support import paths

FLOW = TracedFlow(6, 40000, 443)
OTHER = TracedFlow(17, 40001, 53)


def ask(destination: str, flow: TracedFlow | None = None) -> dict[str, Any]:
    return {"destination": destination, "flow": flow._asdict() if flow else None}


def test_a_destinations_life(tcp: Site, http: httpx.Client) -> None:
    """S3.1: asked for, listed with its flows, given up."""
    assert body_of(http.get("/v1/paths")) == []
    made = http.post("/v1/paths", json={"destination": "2001:DB8::0:1"})
    assert made.status_code == 201
    assert body_of(made)["destination"] == "2001:db8::1"
    assert http.post("/v1/paths", json=ask("192.0.2.1", FLOW)).status_code == 201
    assert http.post("/v1/paths", json=ask("192.0.2.1", OTHER)).status_code == 201
    again = http.post("/v1/paths", json=ask("192.0.2.1", OTHER))
    assert again.status_code == 200
    listed = body_of(http.get("/v1/paths"))
    assert [found["destination"] for found in listed] == ["2001:db8::1", "192.0.2.1"]
    assert listed[0]["flows"] == []
    assert listed[1] == body_of(again) == {
        "destination": "192.0.2.1", "flows": [FLOW._asdict(), OTHER._asdict()], "length": 6,
        "live": [1, 2, 3, 4], "silent": [5], "packets": 100, "sent": 60, "matched": 59,
        "sent_bytes": 2400, "matched_bytes": 3304, "unmatched": 1, "foreign": 0,
        "notes": ["NAT or firewall behind hop 2"], "unprobed": {}, "own_flow": "",
        "path_mtu": None, "finder": 0, "stateful_hop": 0, "end": 0, "heard": False,
    }  # fmt: skip

    gone = http.delete("/v1/paths/192.0.2.1", params=FLOW._asdict())
    assert (gone.status_code, gone.content) == (204, b"")
    assert tcp.plane.traced()[1].flows == (OTHER,)
    assert http.delete("/v1/paths/192.0.2.1").status_code == 204
    assert http.delete("/v1/paths/2001:db8::1").status_code == 204
    assert tcp.plane.traced() == ()


def test_a_flow_without_an_application(tcp: Site, http: httpx.Client) -> None:
    wanted = {"destination": "192.0.2.1", "own": "udp"}
    assert http.post("/v1/paths", json=wanted).status_code == 201
    assert str(tcp.plane.own_flow) == "udp:33434"
    wrong = http.post("/v1/paths", json=wanted | {"own": "icmp:7"})
    assert problem(wrong, 422)["error"] == "ICMP has no ports"


def test_options_are_read_and_set(tcp: Site, http: httpx.Client) -> None:
    usual = body_of(http.get("/v1/path-options"))
    assert (usual["guard"], usual["guarded"], usual["rate"]) == ("discard", "end", 100)
    assert not {"ingress", "destinations"} & usual.keys()
    told = http.put("/v1/path-options", json={"guarded": "all", "rate": 50})
    assert body_of(told) == usual | {"guarded": "all", "rate": 50}
    assert tcp.plane.path_options == PathOptions(rate=50, guarded=Guarded.ALL)
    assert (
        body_of(http.put("/v1/path-options", json={"timeout": "500ms", "guarded": "all"}))[
            "timeout"
        ]
        == 0.5
    )
    for wrong, words in (
        ({"guarded": "some"}, "guarded"), ({"rate": 0}, "a rate of 0"),
        ({"guard": "none", "gaurded": "all"}, "gaurded"), ({"mtu": 0}, "mtu is not true or false"),
        ({"rate": "50"}, "rate is not a number"),
    ):  # fmt: skip
        assert words in problem(http.put("/v1/path-options", json=wrong), 422)["error"]
    assert tcp.plane.path_options.guarded is Guarded.ALL


def test_what_is_not_traced_can_not_be_given_up(tcp: Site, http: httpx.Client) -> None:
    assert problem(http.delete("/v1/paths/192.0.2.1"), 404)
    tcp.plane.trace("192.0.2.1", FLOW)
    assert problem(http.delete("/v1/paths/192.0.2.1", params=OTHER._asdict()), 404)
    assert tcp.plane.traced()[0].flows == (FLOW,)


@pytest.mark.parametrize(
    ("destination", "words"),
    [
        ("example.org", "no address"),
        ("", "no address"),
        ("127.0.0.1", "it is this host"),
        ("ff02::1", "not of one host"),
        ("fe80::1%eth0", "on the link itself"),
        ("::", "nobody's"),
    ],
)
def test_what_is_no_destination_is_refused(
    tcp: Site, http: httpx.Client, destination: str, words: str
) -> None:
    told = problem(http.post("/v1/paths", json=ask(destination)), 422)
    assert words in told["error"]
    assert told["exit_code"] == 2
    assert tcp.plane.traced() == ()


@pytest.mark.parametrize(
    "flow",
    [
        {"protocol": 256, "source_port": 1, "destination_port": 2},
        {"protocol": 6, "source_port": 65536, "destination_port": 2},
        {"protocol": 6, "source_port": 1, "destination_port": -1},
        {"protocol": "6", "source_port": 1, "destination_port": 2},
        {"protocol": 6, "source_port": 1},
        [6, 1, 2],
        7,
    ],
)
def test_what_is_no_flow_is_refused(tcp: Site, http: httpx.Client, flow: Any) -> None:
    body = {"destination": "192.0.2.1", "flow": flow}
    assert "flow" in problem(http.post("/v1/paths", json=body), 422)["error"]
    assert tcp.plane.traced() == ()


def test_a_flow_is_given_up_by_all_that_it_is(tcp: Site, http: httpx.Client) -> None:
    tcp.plane.trace("192.0.2.1", FLOW)
    for query in ({"protocol": 6}, {"source_port": 40000, "destination_port": 443}):
        told = problem(http.delete("/v1/paths/192.0.2.1", params=query), 422)
        assert "a protocol, a source_port and a destination_port" in told["error"]
    assert problem(http.delete("/v1/paths/192.0.2.1", params={"protocol": 6.0}), 422)
    assert tcp.plane.traced()[0].flows == (FLOW,)


def test_a_remote_console_traces_as_a_local_one(site: Site) -> None:
    with RemoteController(site.unix) as remote:
        remote.trace("2001:db8::1")
        remote.trace("192.0.2.1", FLOW)
        remote.trace("192.0.2.1", OTHER)
        assert remote.traced() == site.plane.traced()
        assert remote.traced()[1].flows == (FLOW, OTHER)
        remote.untrace("192.0.2.1", FLOW)
        remote.untrace("2001:db8::1")
        assert [found.flows for found in site.plane.traced()] == [(OTHER,)]
        with pytest.raises(UsageError, match="not traced"):
            remote.untrace("192.0.2.1", FLOW)
        with pytest.raises(UsageError, match="no address"):
            remote.trace("example.org")


@pytest.fixture
def windows(tcp: Site) -> tuple[Snapshot, Snapshot]:
    """Two tables of the path probe's second window; of the first one there was one."""
    tcp.plane.add(config("path"))
    first = paths.probes(ProbeOutcome.ANSWERED)
    latest = (
        paths.probes(ProbeOutcome.ANSWERED, ProbeOutcome.UNANSWERED, window=2),
        paths.told(PathRowKind.SUMMARY, PathRowKind.RESPONDER, window=2),
    )
    for item in (first, *latest):
        tcp.plane.publish(item)
    return latest


def test_the_last_windows_tables_come_in_every_format(
    http: httpx.Client, windows: tuple[Snapshot, Snapshot]
) -> None:
    """S3.17."""

    def got(kind: str, **query: Any) -> httpx.Response:
        answer = http.get("/v1/probes/path/metrics", params={"format": kind, **query})
        assert answer.status_code == 200
        return answer

    whole = body_of(got("json"))
    assert whole["interfaces"] == {"hops": "eth0", "paths": "eth0"}
    assert [row["outcome"] for row in whole["hops"]] == ["answered", "unanswered"]
    assert [row["kind"] for row in whole["paths"]] == ["summary", "responder"]
    assert [row["window"] for row in body_of(got("json", window=1))["hops"]] == [1]
    root = ElementTree.fromstring(got("xml").text)
    assert [len(root.findall(f"{name}/row")) for name in ("hops", "paths")] == [2, 2]
    hops, told = got("csv").text.split("\n\n")
    assert [len(list(csv.DictReader(io.StringIO(text)))) for text in (hops, told)] == [2, 2]
    lines = got("jsonl").text.splitlines()
    assert [line[:20] for line in lines] == ['{"schema": "hops/2",'] * 2 + [
        '{"schema": "paths/2"'
    ] * 2
    records = list(wire.Decoder().feed(got("binary").content))
    assert [record.rows.tobytes() for record in records if isinstance(record, Snapshot)] == [
        table.rows.tobytes() for table in windows
    ]
