"""Commands by the API: of a controller without a console, and of one with."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.api.server.command_endpoints import run_on_plane
from app.api.server.listener import ApiListener
from app.api.sockets import Api
from app.commands.line import Invocation, parse
from app.commands.registry import REGISTRY
from bpf.errors import ProbedeckError, UsageError
from probes.config.model import dump
from tests.app.api.conftest import READ_TOKEN, TOKEN, Site, body_of, token_files
from tests.app.api.fake import FakePlane, config


def ask(http: httpx.Client, line: str) -> tuple[int, Any]:
    told = http.post("/v1/commands", json={"line": line})
    return told.status_code, body_of(told)


def test_all_commands_are_listed_and_which_can_be_done_here(tcp: Site) -> None:
    with tcp.http(READ_TOKEN) as http:
        told = {each["name"]: each for each in body_of(http.get("/v1/commands"))}
    assert {name for name, each in told.items() if each["here"]} == {
        name for name, command in REGISTRY.items() if command.remote and not command.local
    }
    assert told["path.trace"] == {
        "name": "path.trace", "usage": "path.trace [DESTINATION]", "title": "Trace a destination",
        "help": "", "keys": ["T"], "screen": "paths", "writes": True, "here": True,
    }  # fmt: skip


def test_without_a_console_what_needs_no_screen_is_done(tcp: Site, tmp_path: Path) -> None:
    plane = tcp.plane
    file = tmp_path / "counter.json"
    file.write_text(json.dumps(dump(config())))
    with tcp.http() as http:
        assert ask(http, "path.trace  192.0.2.1 ") == (
            200, {"line": "path.trace 192.0.2.1", "complaints": []},
        )  # fmt: skip
        assert [traced.destination for traced in plane.traced()] == ["192.0.2.1"]
        assert ask(http, "path.untrace 192.0.2.1")[0] == 200
        assert not plane.traced()
        assert ask(http, f"probe.add {file}")[0] == 200
        assert [info.name for info in plane.probes()] == ["counter"]
        assert ask(http, "probe.export counter")[0] == 200
        assert plane.history.snapshots()
        assert ask(http, "probe.remove counter")[0] == 200
        assert not plane.probes()
        assert ask(http, "trigger.add flood: operator -> dns")[0] == 200
        for runs in (True, False):
            assert ask(http, "trigger.toggle flood")[0] == 200
            monitor = plane.monitor()
            assert monitor is not None
            assert monitor.policies[0].state.runs is runs
        assert ask(http, "trigger.remove flood")[0] == 200
        # Neither needs a value.
        assert ask(http, "action.stop")[0] == 200
        assert ask(http, "packets.release")[0] == 200


@pytest.mark.parametrize(
    ("line", "status", "words"),
    [
        ("flow.sort rate", 409, "flow.sort needs a console"),
        ("flow.sorted", 422, "there is no command 'flow.sorted'"),
        ("flow.sort byts", 422, "there is no column 'byts' (column 11)"),
        ("flow.capture port:x", 422, "'x' is not a port (column 19)"),
        ("path.trace", 422, "path.trace needs a destination"),
        ("trigger.toggle none", 422, "there is no policy 'none'"),
        ("program.save /etc/passwd", 403, "is about files of this host"),
        ("app.quit", 403, "app.quit is about this terminal or process"),
        ("app.suspend", 403, "app.suspend is about this terminal or process"),
        ("program.external", 403, "is about this terminal or process"),
        ("!id", 403, "is about this terminal or process"),
        ("app.bind j !id", 403, "is about a program of this host"),
        ("", 422, "a command is missing"),
    ],
)
def test_what_can_not_be_done_is_refused_with_the_reason(
    tcp: Site, line: str, status: int, words: str
) -> None:
    with tcp.http() as http:
        code, told = ask(http, line)
    assert code == status
    assert words in told["error"]


def test_only_who_may_change_something_may_command(tcp: Site) -> None:
    with tcp.http(READ_TOKEN) as http:
        assert ask(http, "view.flows")[0] == 403
    tcp.plane.read_only = "it was started so"
    with tcp.http() as http:
        assert ask(http, "path.trace 192.0.2.1") == (
            403, {"error": "it was started so", "hint": "", "exit_code": 2, "diagnostics": [],
                  "verifier_log": "", "mistakes": []},
        )  # fmt: skip
    assert not tcp.plane.traced()


def test_with_a_console_it_does_them_and_its_complaints_are_told(tmp_path: Path) -> None:
    done: list[tuple[str, str]] = []

    def console(asked: Invocation) -> Sequence[str]:
        if asked.line == "app.redraw":
            raise ProbedeckError("the console does not answer")
        done.append((asked.line, threading.current_thread().name))
        return ["nothing to see"]

    options = Api("1", socket="", listen="127.0.0.1:0", token=token_files(tmp_path)["token"])
    with ApiListener(FakePlane(), options, console) as listener:
        assert listener.address is not None
        url = f"http://127.0.0.1:{listener.address[1]}"
        headers = {"authorization": f"Bearer {TOKEN}"}
        with httpx.Client(base_url=url, headers=headers, trust_env=False) as http:
            assert ask(http, "flow.sort  rate") == (
                200, {"line": "flow.sort rate", "complaints": ["nothing to see"]},
            )  # fmt: skip
            assert ask(http, "path.trace 192.0.2.1")[0] == 200
            assert ask(http, "app.redraw")[0] == 409
            # The console's own user may write files where he likes; others may not.
            assert ask(http, "program.save x.c")[0] == 403
            for line in ("app.quit", "app.suspend", "program.external"):
                assert ask(http, line)[0] == 403
            told = {each["name"]: each["here"] for each in body_of(http.get("/v1/commands"))}
    assert [line for line, _ in done] == ["flow.sort rate", "path.trace 192.0.2.1"]
    assert all(thread != "api" for _, thread in done)
    assert told["flow.sort"]
    assert not told["program.save"]
    assert not told["app.quit"]


def test_a_command_of_the_plane_needs_its_value() -> None:
    with pytest.raises(UsageError, match=r"probe\.remove needs a probe; usage: probe\.remove"):
        run_on_plane(FakePlane(), parse("probe.remove"))
