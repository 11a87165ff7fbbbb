"""The endpoints, by a real socket: what each does, and how each refuses."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.api import wire
from app.api.server.endpoints import MEDIA_TYPES
from bpf.errors import ReadOnlyError
from probes.config.model import dump
from probes.control_plane import NoProbeError
from probes.snapshot import Snapshot
from tests.app.api.conftest import READ_TOKEN, MakeSite, Site, body_of
from tests.app.api.fake import BROKEN, NO_KERNEL, REFUSED, VERIFIER_LOG, config
from tests.support.sight import becomes

COUNTER = dump(config())


def problem(response: httpx.Response, status: int) -> dict[str, Any]:
    """A refusal with that status, and with a reason."""
    assert response.status_code == status, response.text
    found: dict[str, Any] = body_of(response)
    assert found["error"]
    return found


@pytest.fixture
def http(tcp: Site) -> Iterator[httpx.Client]:
    with tcp.http() as client:
        yield client


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
    ("method", "path"), [("POST", "probes"), ("POST", "compile"), ("PUT", "probes/counter")]
)
def test_a_source_that_is_refused_says_where_and_leaves_what_runs(
    tcp: Site, http: httpx.Client, method: str, path: str
) -> None:
    """S1.6."""
    if method == "PUT":
        tcp.plane.add(config())
    before = tcp.plane.probes()
    broken = dump(config(source=f"int f();\n\n{BROKEN}"))
    told = problem(http.request(method, f"/v1/{path}", json=broken), 422)
    place = {
        "file": "probe.c",
        "line": 3,
        "column": 12,
        "severity": "error",
        "text": "expected ')'",
    }
    assert told["diagnostics"][0] == place
    assert told["exit_code"] == 2
    refused = dump(config(source=REFUSED))
    told = problem(http.request(method, f"/v1/{path}", json=refused), 422)
    assert told["verifier_log"] == VERIFIER_LOG
    lacking = dump(config(source=NO_KERNEL))
    told = problem(http.request(method, f"/v1/{path}", json=lacking), 409)
    assert (told["exit_code"], told["hint"]) == (4, "a newer kernel does")
    assert tcp.plane.probes() == before


def test_an_unknown_name_is_told_apart_and_the_nearest_one_offered(
    tcp: Site, http: httpx.Client
) -> None:
    """S1.25."""
    tcp.plane.add(config())
    calls = [
        ("GET", ""), ("PUT", ""), ("DELETE", ""), ("GET", "/config"), ("POST", "/rollback"),
        ("POST", "/export"), ("GET", "/metrics"), ("GET", "/cost"),
    ]  # fmt: skip
    for method, end in calls:
        given: dict[str, Any] = {"json": dump(config("countr"))} if method == "PUT" else {}
        told = problem(http.request(method, f"/v1/probes/countr{end}", **given), 404)
        assert told["error"] == "no probe 'countr'"
        assert told["hint"] == "did you mean counter?"
    assert problem(http.get("/v1/probes/%ff%00..%2f"), 404)
    assert problem(http.get("/v2/probes"), 404)


def test_a_name_is_given_once(tcp: Site, http: httpx.Client) -> None:
    """S1.25."""
    tcp.plane.add(config())
    assert "counter runs" in problem(http.post("/v1/probes", json=COUNTER), 409)["error"]
    other = dump(config("other"))
    assert "not of counter" in problem(http.put("/v1/probes/counter", json=other), 422)["error"]
    assert problem(http.post("/v1/probes/counter/rollback"), 409)["exit_code"] == 1


@pytest.mark.parametrize(
    ("body", "content_type", "status", "words"),
    [
        (b"", "application/json", 422, "body"),
        (b"{", "application/json", 422, "JSON"),
        (b"[" * 200_000, "application/json", 400, "body"),
        (b"{}", "text/plain", 415, "sent as JSON"),
        (b"name = 'x'", "application/toml", 415, "sent as JSON"),
        (b"\x80", "application/json", 400, "body"),
        (b'{"name": "x", "ingres": {}}', "application/json", 422, "ingres"),
        (b'{"name": "\\ud800", "ingress": {}}', "application/json", 422, "name"),
        (b'{"name": "x", "interval": NaN}', "application/json", 422, "interval"),
        (b"[1]", "application/json", 422, "table"),
    ],
)
def test_what_is_no_configuration_is_refused_with_the_reason(
    tcp: Site, http: httpx.Client, body: bytes, content_type: str, status: int, words: str
) -> None:
    """S1.6."""
    headers = {"content-type": content_type}
    for method, path in (("POST", "probes"), ("POST", "compile"), ("PUT", "probes/x")):
        answer = http.request(method, f"/v1/{path}", content=body, headers=headers)
        assert words in problem(answer, status)["error"]
    assert tcp.plane.probes() == ()


def test_too_much_is_refused_announced_or_not(tcp: Site, http: httpx.Client) -> None:
    """Body limit of 4 MiB, also where the length is not said before."""
    chunks = (b" " * 65536 for _ in range(80))
    headers = {"content-type": "application/json"}
    assert problem(http.post("/v1/probes", content=chunks, headers=headers), 413)
    with tcp.raw() as raw:
        raw.sendall(
            b"POST /v1/probes HTTP/1.1\r\nhost: x\r\nauthorization: Bearer write-4711-abcdefgh\r\n"
            b"content-type: application/json\r\ncontent-length: 4194305\r\n\r\n"
        )
        assert raw.recv(4096).startswith(b"HTTP/1.1 413")
    exact = dump(config(source="int f;" + "/" * 1000))
    assert http.post("/v1/probes", json=exact).status_code == 201


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


def test_the_probes_own_format_is_the_default(tcp: Site, http: httpx.Client) -> None:
    """S1.2."""
    tcp.plane.add(config().model_copy(update={"format": "csv"}))
    answer = http.post("/v1/probes/counter/export")
    assert answer.headers["content-type"].startswith("text/csv")


def test_events_can_be_followed(tcp: Site, http: httpx.Client) -> None:
    tcp.plane.add(config("one"))
    page = body_of(http.get("/v1/events"))
    assert [e["event"]["source"] for e in page["events"]] == ["one"]
    tcp.plane.add(config("two"))
    page = body_of(http.get("/v1/events", params={"after": page["last"]}))
    assert [(e["number"], e["event"]["source"]) for e in page["events"]] == [(2, "two")]


def test_the_stream_brings_what_is_published(tcp: Site, http: httpx.Client) -> None:
    """S1.29: the collector receives."""
    tcp.plane.add(config())
    decoder = wire.Decoder()
    with http.stream("GET", "/v1/stream") as answer:
        parts = answer.iter_raw()
        assert next(parts) == wire.ALIVE
        sent = tcp.plane.export("counter")
        got: list[Any] = []
        while len(got) < len(sent):
            got += decoder.feed(next(parts))
    assert [(s.window, s.metric) for s in got] == [(s.window, s.metric) for s in sent]
    assert [s.rows.tobytes() for s in got] == [s.rows.tobytes() for s in sent]


def test_a_controller_that_is_read_only_refuses_changes_with_its_reason(
    tcp: Site, http: httpx.Client
) -> None:
    tcp.plane.add(config())
    before = tcp.plane.probes()
    tcp.plane.read_only = "started with --read-only"
    for method, path, body in (
        ("POST", "probes", dump(config("other"))),
        ("PUT", "probes/counter", COUNTER),
        ("DELETE", "probes/counter", None),
        ("POST", "probes/counter/export", None),
        ("POST", "probes/counter/rollback", None),
        ("POST", "compile", COUNTER),
    ):
        told = problem(http.request(method, f"/v1/{path}", json=body), 403)
        assert told["error"] == "started with --read-only"
    assert tcp.plane.probes() == before
    assert body_of(http.get("/v1/status"))["read_only"] == "started with --read-only"


def test_a_refusal_of_the_controller_itself_is_forbidden_too(
    tcp: Site, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measuring a cost loads code, which only the controller knows."""

    def refuse(name: str) -> None:
        raise ReadOnlyError(f"read only: {name} was not measured")

    monkeypatch.setattr(tcp.plane, "cost", refuse)
    tcp.plane.add(config())
    told = problem(http.get("/v1/probes/counter/cost"), 403)
    assert told["error"] == "read only: counter was not measured"


def test_a_compiler_that_is_not_confined_gets_no_source_by_tcp(
    tcp: Site, http: httpx.Client, make_site: MakeSite
) -> None:
    """By the Unix socket it does: its owner can read every file anyway."""
    tcp.plane.add(config())
    tcp.plane.confinement = "mount: Operation not permitted"
    before = tcp.plane.probes()
    for method, path, body in (
        ("POST", "compile", COUNTER),
        ("POST", "probes", dump(config("other"))),
        ("PUT", "probes/counter", COUNTER),
    ):
        told = problem(http.request(method, f"/v1/{path}", json=body), 403)
        assert told["error"].endswith("is not confined (mount: Operation not permitted)")
    assert tcp.plane.probes() == before
    with contextlib.closing(make_site(tcp.plane).client()) as owner:
        owner.check(config())
        owner.add(config("other"))
        assert owner.replace(config()).generation == 2


def test_a_fault_of_ours_is_an_answer_and_an_event(
    make_site: MakeSite, tokens: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    site = make_site(**tokens)
    site.plane.hook_status = lambda: 1 // 0  # type: ignore[method-assign,assignment,return-value]
    with site.http() as http:
        assert "ZeroDivisionError" in problem(http.get("/v1/status"), 500)["error"]
        (event,) = body_of(http.get("/v1/events"))["events"]
    assert "ZeroDivisionError" in event["event"]["text"]
    # Nothing is written into the screen.
    assert capfd.readouterr() == ("", "")


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
    page = Path(__file__).parents[3].joinpath("docs/api.md").read_text()
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


def test_no_reader_writes_entries(tcp: Site, http: httpx.Client) -> None:
    tcp.plane.add(config())
    entries = "/v1/probes/counter/maps/allow/entries"
    put: dict[str, Any] = {"json": {"key": "192.0.2.1", "value": 1}}
    erase: dict[str, Any] = {"params": {"key": "192.0.2.1"}}
    with tcp.http(READ_TOKEN) as reader:
        problem(reader.request("PUT", entries, **put), 403)
        problem(reader.request("DELETE", entries, **erase), 403)
        assert body_of(reader.get(entries)) == []
    tcp.plane.read_only = "it was started so"
    problem(http.request("PUT", entries, **put), 403)
    problem(http.request("DELETE", entries, **erase), 403)
    assert tcp.plane.rules == {}


def test_a_probe_that_is_removed_meanwhile_is_unknown(tcp: Site, http: httpx.Client) -> None:
    tcp.plane.add(config())

    def gone(name: str) -> Any:
        raise NoProbeError(f"probe {name} was removed meanwhile")

    tcp.plane.export = tcp.plane.remove = gone  # type: ignore[method-assign]
    for method, path in (("POST", "probes/counter/export"), ("DELETE", "probes/counter")):
        assert "was removed meanwhile" in problem(http.request(method, f"/v1/{path}"), 404)["error"]
