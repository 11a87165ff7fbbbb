"""The monitor by the API: its policies, its registers and its tables (S2.13)."""

from __future__ import annotations

import base64
import contextlib
import math
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from pydantic import TypeAdapter

from app.api.client import RemoteController
from app.api.models import Problem, error_of
from bpf.errors import TextError, UsageError
from probes.monitor.finding import TopShare
from probes.monitor.policy import Policy
from probes.monitor.sketch import Sketch
from probes.monitor.state import PolicyState
from tests.app.api.conftest import MakeSite, Site, body_of
from tests.app.api.fake import PROFILES
from tests.app.api.responses import problem

FLOOD = "flood: flows > 500 until flows < 300 hold 5s -> both, trace:2 on proto:udp or port:53"
POLICIES_PATH = "/v1/monitor/policies"


DROP = "gone: always -> drop on udp dport:53"


def test_actions_need_a_token_of_their_own(make_site: MakeSite, tokens: dict[str, Any]) -> None:
    path = Path(tokens["token"]).with_name("action_token")
    path.touch(mode=0o600)
    path.write_text("acts-2342-abcdefghij\n")
    site = make_site(action_token=str(path), **tokens)
    one = f"{POLICIES_PATH}/gone"

    def requests(client: httpx.Client) -> list[int]:
        answers = (
            client.put(one, json={"short": DROP}),
            client.post(POLICIES_PATH, json={"short": DROP.replace("gone", "more")}),
            client.post("/v1/commands", json={"line": f"trigger.add {DROP}"}),
            client.post("/v1/commands", json={"line": "trigger.toggle gone"}),
            client.post("/v1/commands", json={"line": "trigger.toggle"}),
            client.post(f"{one}/activate"),
        )
        return [each.status_code for each in answers]

    with site.http() as writer, site.http("acts-2342-abcdefghij") as actor:
        assert requests(actor) == [201, 201, 200, 200, 422, 200]
        assert requests(writer) == [403] * 6
        told = problem(writer.put(one, json={"short": DROP}), 403)
        assert told["error"] == "this token may not let policy gone act on packets"
        assert "--api-action-token" in told["hint"]
        dry = DROP.replace("-> drop", "-> dry drop")
        for line in (dry, FLOOD):
            name = line.partition(":")[0]
            assert writer.put(f"{POLICIES_PATH}/{name}", json={"short": line}).status_code < 300
            assert writer.post("/v1/commands", json={"line": f"trigger.add {line}"}).is_success
        assert writer.post(f"{one}/activate").is_success
        assert writer.post("/v1/actions/stop").is_success
    with contextlib.closing(site.client()) as owner:
        assert owner.status().read_only == ""
    transport = httpx.HTTPTransport(uds=site.options.socket)
    with httpx.Client(transport=transport, base_url="http://x") as owner_http:
        assert owner_http.put(one, json={"short": DROP}).is_success


def test_a_policys_life(tcp: Site, http: httpx.Client) -> None:
    """S2.12, S2.13: added in one line, replaced as an object, activated, ended, removed."""
    made = http.post(POLICIES_PATH, json={"short": FLOOD})
    assert (made.status_code, made.headers["location"]) == (201, f"{POLICIES_PATH}/flood")
    assert body_of(made) == body_of(http.get(made.headers["location"]))
    assert body_of(made)["policy"] == {
        "name": "flood", "mode": "triggered", "condition": "flows > 500",
        "deactivate": "flows < 300", "hold": 5.0, "cooldown": 0.0,
        "select": ["proto:udp", "port:53"], "suspects": "", "run": ["both", "trace:2"],
        "filters": [], "trusted": [],
    }  # fmt: skip
    assert tcp.plane.monitor().policies[0].policy == Policy.parse_short(FLOOD)  # type: ignore[union-attr]
    told = problem(http.post(POLICIES_PATH, json={"short": FLOOD}), 409)
    assert told["error"] == "there is a policy flood"

    path = f"{POLICIES_PATH}/flood"
    assert body_of(http.put(path, json={"name": "flood", "run": ["dns"]}))["state"] == "armed"
    other = http.put(f"{POLICIES_PATH}/x", json={"short": "x: always -> dns"})
    assert other.status_code == 201
    listed = body_of(http.get(POLICIES_PATH))
    assert [found["policy"]["mode"] for found in listed] == ["operator", "permanent"]

    active = body_of(http.post(f"{path}/activate"))
    assert (active["state"], active["forced"]) == ("active", True)
    ended = body_of(http.post(f"{path}/deactivate"))
    assert (ended["state"], ended["until_utc_ns"]) == ("cool-down", 99)
    gone = http.delete(path)
    assert (gone.status_code, gone.content) == (204, b"")
    assert [found["policy"]["name"] for found in body_of(http.get(POLICIES_PATH))] == ["x"]


def test_every_mistake_of_a_policy_is_in_the_answer(http: httpx.Client) -> None:
    """Each with its text and column, and a client shows them all."""
    policy = {"name": "a b", "condition": "packets > 9 and flws > 5", "run": ["trace:0"]}
    told = problem(http.post(POLICIES_PATH, json=policy), 422)
    assert told["error"].endswith("(and 2 more)")
    assert told["mistakes"][1] == {
        "error": "request: condition: 'flws' is no metric", "hint": "did you mean flows?",
        "text": "packets > 9 and flws > 5", "column": 17,
    }  # fmt: skip
    short = "a: flows > 5 hold 5x -> dns on prot:6"
    told = problem(http.post(POLICIES_PATH, json={"short": short}), 422)
    assert [(each["column"], each["text"]) for each in told["mistakes"]] == [
        (20, short), (32, short),
    ]  # fmt: skip
    error = error_of(TypeAdapter(Problem).validate_python(told))
    assert [type(each) for each in error.mistakes] == [TextError] * 2
    assert error.exit_code == 2


def test_the_monitor_says_what_it_runs(http: httpx.Client) -> None:
    """A cost without a measurement is null: JSON has no NaN."""
    told = body_of(http.get("/v1/monitor"))
    assert (told["input"], told["bits"], told["interval"]) == ("regular", 8, 1.0)
    assert [found["ns"] for found in told["applications"]] == [21.5, None]
    assert told["profiles"] == {"both": ["dns", "half_open"]}


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"short": "flood: flows > -> dns"}, 422, "column"),
        ({"short": "flood"}, 422, "':'"),
        ({"short": "flood: flows > 1 -> dsn"}, 422, "no application 'dsn'"),
        ({"short": 7}, 422, "short"),
        ({"short": FLOOD, "hold": 1}, 422, "short"),
        ({"name": "flood", "condition": "flows >> 1", "run": ["dns"]}, 422, "condition"),
        ({"name": "flood", "run": []}, 422, "run"),
        ({"name": "a b", "run": ["dns"]}, 422, "name"),
        ({"name": "flood", "run": ["dns"], "select": ["!rate>1"]}, 422, "select"),
        ([], 422, "request"),
        (b"flood: always -> dns", 415, "sent as JSON"),
    ],
)
def test_what_is_no_policy_is_refused_with_the_reason(
    tcp: Site, http: httpx.Client, body: Any, status: int, words: str
) -> None:
    """Of issue 5: a bad expression is refused with the column."""
    given: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {"json": body}
    for method, path in (("POST", POLICIES_PATH), ("PUT", f"{POLICIES_PATH}/flood")):
        assert words in problem(http.request(method, path, **given), status)["error"]
    assert body_of(http.get(POLICIES_PATH)) == []


def test_an_unknown_policy_is_told_apart_and_the_nearest_one_offered(http: httpx.Client) -> None:
    http.post(POLICIES_PATH, json={"short": FLOOD})
    for method, end in (
        ("GET", ""),
        ("DELETE", ""),
        ("POST", "/activate"),
        ("POST", "/deactivate"),
    ):
        told = problem(http.request(method, f"{POLICIES_PATH}/floot{end}"), 404)
        assert (told["error"], told["hint"]) == ("no policy 'floot'", "did you mean flood?")
    told = problem(http.put(f"{POLICIES_PATH}/x", json={"short": FLOOD}), 422)
    assert told["error"] == "the policy is flood, not x"


def test_the_first_policy_may_start_the_monitor(tcp: Site, http: httpx.Client) -> None:
    tcp.plane.monitors = False
    assert body_of(http.get("/v1/monitor")) is None
    assert body_of(http.get(POLICIES_PATH)) == []
    assert problem(http.post(f"{POLICIES_PATH}/flood/activate"), 404)["hint"] == "there are none"
    assert problem(http.get("/v1/monitor/sketch"), 422)["error"] == "no monitor runs"
    assert http.post(POLICIES_PATH, json={"short": FLOOD}).status_code == 201
    assert len(body_of(http.get("/v1/monitor"))["policies"]) == 1


def test_registers_are_given_for_others_to_merge(tcp: Site, http: httpx.Client) -> None:
    """S2.7: classic ranks too, and an estimate with its band."""
    told = body_of(http.get("/v1/monitor/sketch", params={"windows": 3}))
    assert (told["bits"], told["seed"]) == (8, "seed")
    assert told["low"] < told["estimate"] < told["high"]
    assert abs(told["estimate"] - 300) < 60
    registers = np.frombuffer(base64.b64decode(told["registers"]), "<u4")
    ranks = np.frombuffer(base64.b64decode(told["ranks"]), "u1")
    truth = tcp.plane.sketch(3)
    assert registers.tolist() == truth.registers.tolist()
    assert ranks.tolist() == truth.ranks().tolist()
    assert body_of(http.get("/v1/monitor/sketch")) == tcp.plane.sketch(1).to_dict()
    for wrong in ("0", "1.5", "x", "-1", "9" * 30):
        assert problem(http.get("/v1/monitor/sketch", params={"windows": wrong}), 422)


def test_a_remote_console_does_as_a_local_one(site: Site) -> None:
    with RemoteController(site.unix) as remote:
        policy = Policy.parse_short(FLOOD)
        assert remote.set_policy(policy) == site.plane.monitor().policies[0]  # type: ignore[union-attr]
        assert remote.activate_policy("flood").state is PolicyState.ACTIVE
        told, truth = remote.monitor(), site.plane.monitor()
        assert told is not None
        assert truth is not None
        assert (told.policies, told.profiles) == (truth.policies, PROFILES)
        assert told.policies[0].policy == policy
        finding = told.policies[0].finding
        assert finding
        assert finding.ports.top == (TopShare("tcp:1", 0.5),)
        assert [math.isnan(found.ns) for found in told.applications] == [False, True]
        assert remote.deactivate_policy("flood").state is PolicyState.COOLDOWN
        assert remote.set_policy(Policy.parse_short("flood: always -> dns")).selected == 0
        merged = remote.sketch(5).merged(Sketch.of(np.zeros(0, "u8"), 8, "seed"))
        assert merged.registers.tolist() == site.plane.sketch(5).registers.tolist()
        remote.remove_policy("flood")
        with pytest.raises(UsageError, match="no policy 'flood'"):
            remote.activate_policy("flood")
        site.plane.monitors = False
        assert remote.monitor() is None
        with pytest.raises(UsageError, match="no monitor runs"):
            remote.sketch()
