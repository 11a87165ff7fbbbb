"""`probedeck policy` for a controller that runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.api.server.listener import ApiListener
from app.api.sockets import Api
from app.cli.main import cli
from bpf.errors import ProbedeckError
from probes.monitor.policy import Policy
from tests.app.api.fake import FakePlane
from tests.support.runs import deck_here

Command = Callable[..., tuple[int, str, str]]
NTP = "ntp: rate(packets on sport:123) > 1k/s until flows < 5 hold 5s -> both on sport:123 or udp"
FILE = """\
[monitor]
bits = 8
[profiles]
web = ["dns", "accounting"]
[filters]
queries = "udp dport:53"
[[policy]]
name = "busy"
condition = "flows on @queries > 5"
select = ["@queries ip:6"]
run = ["web", "both"]
[[policy]]
name = "books"
mode = "permanent"
run = ["accounting"]
"""


@pytest.fixture
def plane() -> FakePlane:
    return FakePlane()


@pytest.fixture
def url(plane: FakePlane, tmp_path: Path) -> Iterator[str]:
    with ApiListener(plane, Api("1", socket=str(tmp_path / "api.sock"))):
        yield f"unix:{tmp_path}/api.sock"


@pytest.fixture
def command(url: str, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run `probedeck policy` in this process: exit code, output and errors."""

    def run(*words: str) -> tuple[int, str, str]:
        code, told = 0, ""
        try:
            cli(["policy", *words, "--connect", url], standalone_mode=False)
        except ProbedeckError as error:
            code = error.exit_code
            told = "".join(f"probedeck: {each}\n" for each in error.mistakes)
        out, said = capsys.readouterr()
        return code, out, said + told

    return run


def test_a_policys_life(command: Command, plane: FakePlane) -> None:
    """S2.12, S2.13"""
    assert command("add", NTP) == (0, "", "ntp: added, armed\n")
    assert command("add", NTP) == (
        2, "", "probedeck: there is a policy 'ntp'; probedeck policy replace changes it\n",
    )  # fmt: skip
    assert command("show", "ntp") == (0, f"{NTP}\n", "")
    assert command("activate", "ntp") == (0, "", "ntp: active\n")
    code, out, _ = command("list")
    assert (code, out.splitlines()) == (
        0,
        [
            "NAME  STATE           PACKETS  WHEN                               RUNS",
            "ntp   active, forced  0        rate(packets on sport:123) > 1k/s  both",
        ],
    )
    code, out, _ = command("list", "--json")
    (listed,) = json.loads(out)
    assert (code, listed["policy"]["condition"]) == (0, "rate(packets on sport:123) > 1k/s")
    assert json.loads(command("show", "ntp", "--json")[1]) == listed
    assert command("deactivate", "ntp") == (0, "", "ntp: cool-down\n")
    changed = NTP.replace("1k/s", "2k/s")
    assert command("replace", changed) == (0, "", "ntp: replaced, armed\n")
    monitor = plane.monitor()
    assert monitor is not None
    assert [info.policy for info in monitor.policies] == [Policy.parse_short(changed)]
    assert command("remove", "ntp") == (0, "", "ntp: removed\n")
    assert command("list")[1].splitlines() == ["NAME  STATE  PACKETS  WHEN  RUNS"]


def test_policies_of_a_file(command: Command, plane: FakePlane, tmp_path: Path) -> None:
    """The controller gets applications instead of profiles, and filters instead of their names."""
    path = tmp_path / "policies.toml"
    path.write_text(FILE)
    warning = f"warning: {path}: [monitor] counts at the start only\n"
    assert command("add", str(path)) == (
        0, "", f"{warning}busy: added, armed\nbooks: added, armed\n",
    )  # fmt: skip
    monitor = plane.monitor()
    assert monitor is not None
    busy = monitor.policies[0].policy
    assert busy.run == ("dns", "accounting", "both")
    assert (busy.condition, busy.select) == (
        "flows on (udp dport:53) > 5", ("udp dport:53 ip:6",),
    )  # fmt: skip
    path.write_text(FILE.replace("books", "book"))
    code, _, said = command("replace", str(path))
    assert (code, said) == (
        2, f"{warning}probedeck: there is no policy 'book'; did you mean books?\n",
    )  # fmt: skip


def test_mistakes_are_told_with_the_right_code(command: Command, url: str, tmp_path: Path) -> None:
    text = "a: flws > 5 -> dns on prt:53"
    assert deck_here("policy", "add", text, "--connect", url) == (
        2,
        "",
        "probedeck: policy 'a': condition: 'flws' is no metric (column 4); did you mean flows?\n"
        "a: flws > 5 -> dns on prt:53\n"
        "   ^\n"
        "probedeck: policy 'a': select[0]: flows have no 'prt' (column 23); did you mean port?\n"
        "a: flws > 5 -> dns on prt:53\n"
        "                      ^\n",
    )
    assert command("add", "a: flows > 5 -> dsn, dms")[2].splitlines() == [
        "probedeck: policy 'a': run[0]: there is no application 'dsn'; did you mean dns?",
        "probedeck: policy 'a': run[1]: there is no application 'dms'; did you mean dns?",
    ]
    for words in ("show x", "activate x", "remove x"):
        code, out, said = command(*words.split())
        assert (code, out, "no policy 'x'" in said) == (2, "", True)
    with pytest.raises(ProbedeckError, match="no controller at"):
        cli(["policy", "list", "--connect", f"unix:{tmp_path}/none.sock"], standalone_mode=False)
