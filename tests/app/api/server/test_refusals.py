"""The endpoints, by a real socket: how each refuses a request."""

from __future__ import annotations

import contextlib
from typing import Any

import httpx
import pytest

from bpf.errors import ReadOnlyError
from probes.config.model import dump
from probes.reports import NoProbeError
from tests.app.api.conftest import MakeSite, Site, body_of
from tests.app.api.fake import BROKEN, NO_KERNEL, REFUSED, VERIFIER_LOG, config
from tests.app.api.responses import problem
from tests.app.api.server.test_endpoints import COUNTER


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
        ("POST", "/export"), ("GET", "/metrics"), ("GET", "/cost"), ("GET", "/maps"),
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


def test_a_probe_that_is_removed_meanwhile_is_unknown(tcp: Site, http: httpx.Client) -> None:
    tcp.plane.add(config())

    def gone(name: str, *, force: bool = False) -> Any:
        raise NoProbeError(f"probe {name} was removed meanwhile")

    tcp.plane.export = tcp.plane.remove = gone  # type: ignore[method-assign]
    for method, path in (("POST", "probes/counter/export"), ("DELETE", "probes/counter")):
        assert "was removed meanwhile" in problem(http.request(method, f"/v1/{path}"), 404)["error"]
