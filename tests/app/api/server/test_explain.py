"""Explanations by the API."""

from __future__ import annotations

import httpx

from tests.app.api.conftest import Site, body_of
from tests.app.api.responses import problem
from tests.app.explain.made import FAR, probes, upload


def test_the_conversation_of_a_filter_is_explained(tcp: Site, http: httpx.Client) -> None:
    for item in (*upload(), *probes(12, [0.4, 1, 3, 88, 90], [0.4, 1, 3, 70, 72])):
        tcp.plane.history.append(item)
    found = body_of(http.get("/v1/explain", params={"filter": "dport:443 proc:nginx"}))
    assert found["sentence"].endswith("80.0 ms of queue at hop 4, since 12 s")
    assert (found["who"]["unit"], found["where"]["hop"]) == ("web.service", 4)
    assert len(found["where"]["hops"]) == 5


def test_an_untraced_path_and_a_missing_flow_are_named(tcp: Site, http: httpx.Client) -> None:
    for item in upload(3):
        tcp.plane.history.append(item)
    found = body_of(http.get("/v1/explain"))
    assert found["where"]["text"] == f"the path to {FAR} is not traced"
    said = problem(http.get("/v1/explain", params={"filter": "port:22"}), 404)
    assert f"{FAR}:443" in said["hint"]
    problem(http.get("/v1/explain", params={"filter": "port:"}), 422)


def test_without_packets_there_is_nothing_to_explain(tcp: Site, http: httpx.Client) -> None:
    assert "no packet passed" in problem(http.get("/v1/explain"), 404)["error"]
