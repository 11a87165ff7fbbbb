"""The endpoints, by a real socket: what each does."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.api import wire
from app.api.server.endpoints import MEDIA_TYPES
from probes.config.model import dump
from probes.flow.grouping import GROUP
from probes.flow.interfaces import totals
from probes.flow.kinds import INTERFACES, REPEATED
from probes.snapshot import Snapshot
from tests.app.api.conftest import Site, body_of
from tests.app.api.fake import config
from tests.app.api.responses import problem
from tests.app.outputs.test_group_views import window
from tests.app.outputs.test_owner_tables import answers, flows
from tests.support.sight import becomes

COUNTER = dump(config())


def test_a_probes_life(tcp: Site, http: httpx.Client) -> None:
    """S1.1, S1.2: submit a configuration, read its metrics, replace it, roll back, remove it."""
    added = http.post("/v1/probes", json=COUNTER)
    assert (added.status_code, added.headers["location"]) == (201, "/v1/probes/counter")
    assert body_of(added)["generation"] == 1
    assert [info["name"] for info in body_of(http.get("/v1/probes"))] == ["counter"]
    assert body_of(http.get(added.headers["location"])) == body_of(added)
    assert body_of(http.get("/v1/probes/counter/config"))["name"] == "counter"

    assert http.post("/v1/probes/counter/export").status_code == 200
    first = http.get("/v1/probes/counter/metrics")
    assert first.status_code == 200

    edited = dump(config(source="int g() { return 1; }"))
    replaced = body_of(http.put("/v1/probes/counter", json=edited))
    assert replaced["generation"] == 2
    assert replaced["compatibility"]["maps"][1]["fate"] == "starts empty"
    assert body_of(http.get("/v1/probes/counter/config"))["ingress"]["source"].startswith("int g")
    assert body_of(http.post("/v1/probes/counter/rollback"))["generation"] == 3

    assert body_of(http.get("/v1/probes/counter/cost")) == [{"side": "ingress", "ns": 12.5}]
    maps = body_of(http.get("/v1/probes/counter/maps?most=1"))["maps"]
    assert [(each["name"], each["kind"], each["rows"]) for each in maps] == [
        ("mine", "percpu hash", [["192.0.2.9", 90]]),
        ("ring", "ringbuf", []),
    ]
    assert http.get("/v1/probes/counter/maps?most=10001").status_code == 422
    assert http.delete("/v1/probes/counter").status_code == 200
    assert body_of(http.get("/v1/probes")) == []
    assert tcp.plane.probes() == ()


def test_a_check_changes_nothing_and_says_what_a_replacement_would_lose(
    tcp: Site, http: httpx.Client
) -> None:
    """S1.6."""
    new = body_of(http.post("/v1/compile", json=COUNTER))
    assert new["compatibility"] is None
    assert new["diagnostics"][0]["severity"] == "warning"
    assert tcp.plane.probes() == ()
    tcp.plane.add(config())
    told = body_of(http.post("/v1/compile", json=COUNTER))["compatibility"]
    assert [fate["map"] for fate in told["maps"]] == ["packets", "seen"]
    assert tcp.plane.probes()[0].generation == 1


@pytest.mark.parametrize(
    ("accept", "query", "answered"),
    [
        ("text/csv", {}, "text/csv"),
        ("text/html, application/xml;q=0.9, text/csv", {}, "application/xml"),
        ("text/csv", {"format": "jsonl"}, "application/x-ndjson"),
        ("text/html, */*", {}, "application/json"),
    ],
)
def test_the_format_is_that_of_the_query_or_the_first_accepted_or_the_probes_own(
    tcp: Site, http: httpx.Client, accept: str, query: dict[str, str], answered: str
) -> None:
    tcp.plane.add(config())
    tcp.plane.export("counter")
    answer = http.get("/v1/probes/counter/metrics", params=query, headers={"accept": accept})
    assert answer.headers["content-type"].partition(";")[0] == answered
    assert "accept" in answer.headers["vary"]


def test_metrics_are_of_the_latest_window_or_of_one_that_is_kept(
    tcp: Site, http: httpx.Client
) -> None:
    """S1.1."""
    tcp.plane.add(config())
    path = "/v1/probes/counter/metrics"
    assert "no window" in problem(http.get(path), 404)["error"]
    for _ in range(3):
        tcp.plane.export("counter")

    def windows_of(**query: Any) -> list[int]:
        answer = http.get(path, params={"format": "binary", **query})
        records = list(wire.Decoder().feed(answer.content))
        return [record.window for record in records if isinstance(record, Snapshot)]

    assert windows_of() == [3, 3]
    assert windows_of(window=1) == [1, 1]
    told = problem(http.get(path, params={"window": 9}), 404)
    assert told["hint"] == "windows 1 to 3 are"
    for wrong in ({"window": "0"}, {"window": "1.0"}, {"window": "x"}, {"format": "yaml"}):
        assert problem(http.get(path, params=wrong), 422)
    told = problem(http.get(path, params={"filter": "tcp"}), 422)
    assert told["error"] == "there is no filter for tables of metrics"
    told = problem(http.get(path, params={"windw": 1}), 422)
    assert told["hint"] == "did you mean window?"


def test_a_truth_or_a_text_is_no_number_of_a_segment(tcp: Site, http: httpx.Client) -> None:
    for wrong in ({"interval": False}, {"ratio": True}, {"lease": "2"}):
        assert problem(http.post("/v1/segment", json={"key": "of both hosts", **wrong}), 422)


def test_flows_come_in_groups_of_those_that_pass(tcp: Site, http: httpx.Client) -> None:
    tcp.plane.add(config("flow"))
    tcp.plane.publish(window())
    path = "/v1/probes/flow/metrics"
    asked: dict[str, Any] = {"view": "networks", "prefix": "16,64", "filter": "dir:out"}
    answer = http.get(path, params=asked)
    (network,) = body_of(answer)["networks"]
    assert (network["network"], network["out_bytes"]) == ("198.51.0.0/16", 400)
    (record,) = wire.Decoder().feed(http.get(path, params=asked | {"format": "binary"}).content)
    assert isinstance(record, Snapshot)
    assert record.rows.dtype == GROUP
    known = {"if-none-match": answer.headers["etag"]}
    other = http.get(path, params={"view": "hosts"}, headers=known)
    assert len(body_of(other)["hosts"]) == 2
    assert problem(http.get(path, params={"view": "processes"}), 422)
    told = problem(http.get(path, params={"view": "networks", "prefix": "99"}), 422)
    assert "24,64 means" in told["hint"]
    tcp.plane.add(config())
    tcp.plane.export("counter")
    told = problem(http.get("/v1/probes/counter/metrics", params={"view": "hosts"}), 422)
    assert told["error"] == "only the probe flow has the view hosts"


def test_a_run_on_several_interfaces_has_two_more_tables(tcp: Site, http: httpx.Client) -> None:
    tcp.plane.add(config("flow"))
    path, flows_of = "/v1/probes/flow/metrics", replace(window(), interface="any")
    tcp.plane.publish(flows_of)
    told = problem(http.get(path, params={"view": "repeated"}), 422)
    assert told["error"] == "a run on one interface has no table repeated"
    tcp.plane.publish(replace(flows_of, metric=REPEATED, rows=flows_of.rows[:1]))
    tcp.plane.publish(
        replace(flows_of, metric=INTERFACES, rows=totals(flows_of.rows, flows_of.rows[:1]))
    )
    assert len(body_of(http.get(path, params={"view": "repeated"}))["repeated"]) == 1
    (line,) = body_of(http.get(path, params={"view": "interfaces"}))["interfaces"]
    sums = [value for name, value in line.items() if name.endswith("packets")]
    assert sum(sums) == flows_of.rows["packets"].sum() + flows_of.rows["packets"][0]
    passing = {"view": "repeated", "filter": "dir:in"}
    assert len(body_of(http.get(path, params=passing))["repeated"]) < 2
    assert len(body_of(http.get(path))["flows"]) == len(flows_of.rows)


def test_flows_are_filtered_by_owners_that_come_a_moment_later(
    tcp: Site, http: httpx.Client
) -> None:
    tcp.plane.add(config("flow"))
    path, asked = "/v1/probes/flow/metrics", {"filter": "proc:nginx"}
    for item in (flows(1), *answers(1), flows(2)):
        tcp.plane.publish(item)
    # The second window has no owners yet, so that the first is the last one.
    found = body_of(http.get(path, params=asked))["flows"]
    assert [(row["window"], row["process"]) for row in found] == [(1, "nginx")] * 2
    (line,) = body_of(http.get(path, params=asked | {"view": "conversations"}))["conversations"]
    assert (line["process"], line["limit"]) == ("nginx", "queue")
    assert body_of(http.get(path, params=asked | {"window": 2}))["flows"] == []
    tcp.plane.publish(flows(3))
    # Nobody answers any more.
    assert body_of(http.get(path))["flows"][0]["window"] == 3


def test_what_a_client_has_already_is_not_sent_again(tcp: Site, http: httpx.Client) -> None:
    tcp.plane.add(config())
    tcp.plane.export("counter")
    path = "/v1/probes/counter/metrics"
    tag = http.get(path).headers["etag"]
    again = http.get(path, headers={"if-none-match": tag})
    assert (again.status_code, again.content) == (304, b"")
    other = http.get(path, params={"format": "csv"}, headers={"if-none-match": tag})
    assert other.status_code == 200
    tcp.plane.export("counter")
    assert http.get(path, headers={"if-none-match": tag}).status_code == 200


@pytest.mark.parametrize("kind", MEDIA_TYPES)
def test_tables_come_in_every_format(tcp: Site, http: httpx.Client, kind: str) -> None:
    """S1.2."""
    tcp.plane.add(config().model_copy(update={"format": "jsonl"}))
    for answer in (
        http.post("/v1/probes/counter/export", params={"format": kind}),
        http.get("/v1/probes/counter/metrics", params={"format": kind}),
        http.delete("/v1/probes/counter", params={"format": kind}),
    ):
        assert answer.status_code == 200
        assert answer.headers["content-type"].partition(";")[0] == MEDIA_TYPES[kind]
        assert b"counter" in answer.content


def test_events_can_be_followed(tcp: Site, http: httpx.Client) -> None:
    tcp.plane.add(config("one"))
    page = body_of(http.get("/v1/events"))
    assert [e["event"]["source"] for e in page["events"]] == ["one"]
    tcp.plane.add(config("two"))
    page = body_of(http.get("/v1/events", params={"after": page["last"]}))
    assert [(e["number"], e["event"]["source"]) for e in page["events"]] == [(2, "two")]


def test_compiles_of_many_keep_nobody_from_reading(tcp: Site, http: httpx.Client) -> None:
    """S1.27."""
    tcp.plane.gate.clear()
    threads = [
        threading.Thread(target=lambda: tcp.http().post("/v1/compile", json=COUNTER, timeout=30))
        for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    assert becomes(lambda: tcp.plane.busy == 4)
    assert http.get("/v1/probes", timeout=2).status_code == 200
    # Bounded: the others wait for their turn.
    assert tcp.plane.busy == 4
    tcp.plane.gate.set()
    for thread in threads:
        thread.join()


def test_it_describes_itself_with_its_key(tcp: Site, http: httpx.Client) -> None:
    document = body_of(http.get("/openapi.json"))
    assert set(document["paths"]["/v1/probes/{name}"]) == {"get", "put", "delete"}
    routes = {(m.upper(), path) for path, methods in document["paths"].items() for m in methods}
    page = Path(__file__).parents[4].joinpath("docs/api.md").read_text()
    documented = set(re.findall(r"^\| ([A-Z]+) \| `([^`]+)` \|", page, re.MULTILINE))
    assert documented == {*routes, ("GET", "/v1/stream")}
    assert document["components"]["securitySchemes"]
    with tcp.http(token="") as stranger:
        assert problem(stranger.get("/openapi.json"), 401)


def test_entries_of_a_writable_map_are_read_and_written(tcp: Site, http: httpx.Client) -> None:
    tcp.plane.add(config())
    entries = "/v1/probes/counter/maps/allow/entries"
    assert body_of(http.get(entries)) == []
    assert http.put(entries, json={"key": "192.0.2.1", "value": {"a": 1}}).status_code == 204
    assert body_of(http.get(entries)) == [{"key": "192.0.2.1", "value": {"a": 1}}]
    told = problem(http.put(entries, json={"key": 7, "value": 1}), 422)
    assert told["error"] == "map allow: key: 7 is not of type ipv4, 4 bytes"
    problem(http.put(entries, json={"key": "192.0.2.1"}), 422)
    assert http.delete(entries, params={"key": "192.0.2.1"}).status_code == 204
    assert problem(http.delete(entries, params={"key": "192.0.2.1"}), 404)["error"] == (
        "map allow has no entry 192.0.2.1"
    )
    for path in ("counter/maps/packets", "counter/maps/alow", "countr/maps/allow"):
        requests: dict[str, dict[str, Any]] = {
            "GET": {},
            "PUT": {"json": {"key": "192.0.2.1", "value": 1}},
            "DELETE": {"params": {"key": "192.0.2.1"}},
        }
        for method, more in requests.items():
            problem(http.request(method, f"/v1/probes/{path}/entries", **more), 404)
