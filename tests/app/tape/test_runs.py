"""Tapes on the command line: results, exit codes, and messages."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.lab.netns import inside
from tests.support.console.terminal import Terminal
from tests.support.kernel import TC_MODE
from tests.support.runs import SHARING, deck_ends, deck_here, rows
from tests.support.veth import End, veth_pair

ALTERNATE_OFF = b"\x1b[?1049l"


@pytest.fixture
def end() -> Iterator[End]:
    with veth_pair() as (left, _):
        yield left


def tape(directory: Path, text: str, name: str = "x.tape") -> str:
    path = directory / name
    path.write_text(text)
    return str(path)


def test_check_tells_all_that_is_wrong_and_runs_nothing(tmp_path: Path) -> None:
    right = tape(tmp_path, "view.flows\nflow.capture tcp\n", "right.tape")
    wrong = tape(tmp_path, "Enterr\nEnter\nExpect view == 3\n", "wrong.tape")
    needs = tape(tmp_path, "Require console >= 99\n", "needs.tape")
    code, out, err = deck_here("macro", "check", right, wrong, needs)
    # A wrong tape outweighs a missing requirement.
    assert code == 2
    assert out == f"{right}: 2 steps, changes what runs at {right}:2: needs --allow-write\n"
    assert err.splitlines()[:2] == [
        f"{wrong}:1:1: there is no verb or command 'Enterr'; did you mean Enter?",
        f'{wrong}:3:16: view is text, and compared with text in quotes; such as view == "overview"',
    ]
    assert err.splitlines()[2].startswith(f"{needs}:1: this needs console >= 99, and is ")
    assert deck_here("macro", "check", needs)[0] == 3
    with open(wrong) as file:
        said = deck_ends("macro", "check", "-", stdin=file)[2]
    assert said.startswith("/dev/stdin:1:1: there is no verb or command 'Enterr'")
    with subprocess.Popen(["echo", "Enterr"], stdout=subprocess.PIPE) as pipe:
        assert deck_ends("macro", "check", "-", stdin=pipe.stdout)[2].splitlines()[0] == (
            "/dev/stdin:1:1: there is no verb or command 'Enterr'; did you mean Enter?"
        )
    nested = tape(tmp_path, "Wait /[[x]/\n", "nested.tape")  # Python warns of a later meaning
    assert deck_here("macro", "check", nested)[2] == ""


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("Typ\n", 2, "{}:1:1: there is no verb or command 'Typ'; did you mean Type?\n"),
        ("# x\nflow.capture tcp\n", 3, "{}:2: flow.capture tcp changes what runs; --allow-write"),
        ("view.flows\nflow.filter dport:xx\n", 2, "{}:2:19: 'xx' is not a port\n"),
        ("Require nonesuch\n", 3, "{}:1: this needs 'nonesuch', which is not on PATH\n"),
    ],
)
def test_what_is_known_before_is_told_before(
    tmp_path: Path, text: str, code: int, said: str
) -> None:
    path = tape(tmp_path, text)
    # The interface does not exist: the tape fails first.
    ended, out, err = deck_here("run", "-i", "none0", "--headless", "--macro", path)
    assert (ended, out) == (code, "")
    assert err.startswith(said.format(path))


def test_a_run_ends_with_its_tape(tmp_path: Path, end: End) -> None:
    path = tape(
        tmp_path,
        f"""\
        Set Width 90
        Set Height 24
        Wait windows >= 2
        Expect width == 90
        view.events
        Expect event.count > 0
        Screenshot "{tmp_path}/events.txt"
        """,
    )
    then = tape(
        tmp_path, f'Expect view == "events"\nScreenshot "{tmp_path}/then.txt"\n', "then.tape"
    )
    here = ("run", "-i", end.ifname, "--ingress", "tc", "--interval", "0.1", "--headless")
    tables = tmp_path / "tables"
    exports = ("--exec", f"view.export {tmp_path}/events.csv", "-o", str(tables))
    tapes = ("--macro", path, "--macro", then)
    assert deck_ends(*here, *tapes, *exports, ns=end.ns) == (0, "", "")
    assert TC_MODE in (tmp_path / "events.txt").read_text()
    assert "PLAYING x 7/8" in (tmp_path / "then.txt").read_text()
    assert len(rows(tmp_path / "events.csv")) > 0
    assert len(rows(tables / "windows.csv")) >= 2


@pytest.mark.slow
def test_a_tape_that_fails_gives_the_terminal_back_and_says_why(end: End) -> None:
    command = (*SHARING, "run", "-i", end.ifname, "--ingress", "tc")
    commands = ("--exec", "flow.sort bytes", "--exec", "trigger.toggle x", "--allow-write")
    with inside(end.ns), Terminal((*command, *commands), columns=100, rows=24) as terminal:
        assert terminal.wait_exit(15) == 3
        said = terminal.raw().rpartition(ALTERNATE_OFF)[2].decode()
        assert "--exec:2: Action trigger.toggle x: there is no policy 'x'" in said
        assert "Traceback" not in said
