"""Own commands on the console: fields of the row, output, end, rights."""

from __future__ import annotations

import os
import pwd
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from app.config.model import Settings
from app.console.commands import own_program
from app.console.commands.own_program import fields_of, run
from app.console.host_names import Name, NameSource
from app.console.screen import PollingScreen
from bpf.errors import Cancel, CancelError, UsageError, cancelled_by
from probes.snapshot import Event
from tests.app.console.fake import Desk, becomes, conversation, desk, flow
from tests.app.console.fake_paths import LAB, SECOND_NS, FakePath
from tests.app.console.fake_paths import table as path_table
from tests.app.console.fake_plane import FakePlane, config
from tests.app.console.fake_triggers import FakeMonitor, Said, monitor, policy
from widgets.table.table import VirtualTable

NOBODY = 65534


async def shows(console: Desk, words: str) -> None:
    await becomes(console, lambda: words in console.text)


async def test_a_key_runs_a_program_with_the_fields_of_the_row() -> None:
    own = "!printf '<%s>\\n' {source} {remote}:{remote_port} {protocol} '{{}}'"
    async with desk(200, 60, settings=Settings(keys={"": {"ctrl+l": own}})) as console:
        await console.feed(flow(7, 10))
        await console.press("ctrl+l")
        await shows(console, "exit code 0; esc closes this")
        for word in ("<10.0.0.7>", "<10.0.0.7:40007>", "<tcp>", "<{}>"):
            assert word in console.text.lower()
        await console.press("escape")
        assert "exit code" not in console.text
        await console.press("question_mark")
        assert "!printf" in console.text
        await console.press("escape", "ctrl+p")
        await console.type("printf")
        assert "!printf" in console.text
        assert "ctrl+l" in console.text.lower() or "^l" in console.text
        await console.press("enter")
        await shows(console, "exit code 0; esc closes this")


async def test_the_prompt_and_bind_take_them_and_tell_mistakes() -> None:
    async with desk(120, 40, view="conversations") as console:
        await console.feed(conversation(3, 10, 20))
        await console.press("colon")
        await console.type("!id {remote}x")
        await console.press("enter")
        await shows(console, "exit code 1; esc closes this")
        assert "10.0.0.3x" in console.text
        await console.press("escape")
        await console.app.action_command("bind f12 !printf {destinatoin}")
        await console.still()
        assert any("did you mean destination?" in text for text in console.complaints)
        await console.app.action_command("bind f12 !printf {hop}")
        await console.press("f12")
        await console.still()
        assert any("this row has no hop; it has" in text for text in console.complaints)
        await console.app.action_command("!no-such-program")
        await shows(console, "no-such-program: No such file or directory")


async def test_a_name_of_the_network_stays_one_word(monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = Name("x; touch /tmp/owned `id` $(id)", NameSource.DNS)
    async with desk(120, 40, view="conversations") as console:
        await console.feed(conversation(3, 10, 20))
        monkeypatch.setattr(console.app.names, "of", lambda _: hostile)
        await console.app.action_command("!printf '<%s>\\n' {name}")
        await shows(console, f"<{hostile.text}>")


async def test_rows_of_events() -> None:
    async with desk(120, 40, first="events") as console:
        console.controller.publish(Event(1, "info", "flow", "one two"))
        await console.feed()
        await console.app.action_command("!printf '<%s>' {text}")
        await shows(console, "<one two>")


def _has_rows(table: VirtualTable) -> bool:
    return table.source.rows > 0


@pytest.mark.slow
async def test_rows_of_every_screen_have_fields() -> None:
    plane = FakePlane(config("hello"))
    async with desk(160, 48, plane) as console:
        plane.monitor_info = monitor(policy("busy: packets > 100 -> accounting"))
        for item in FakeMonitor().window({"busy": Said(120, 100)}):
            plane.publish(item)
        path, now = FakePath(LAB), time.monotonic_ns()
        plane.publish(path_table(path.second(now - SECOND_NS), now))
        plane.publish(Event.now("error", "eth0", "it is gone"))
        await console.feed(conversation(3, 10, 20))
        for key, widget, fields in (
            ("1", "now", {"text"}),
            ("1", "conversations", {"local", "remote", "protocol"}),
            ("1", "hops", {"destination", "hop", "address"}),
            ("1", "policies", {"policy"}),
            ("1", "events", {"text"}),
            ("4", "policies", {"policy"}),
            ("4", "applications", {"application"}),
            ("5", "programs", {"probe", "side"}),
        ):
            await console.press(key)
            screen = console.app.screen
            assert isinstance(screen, PollingScreen)
            screen._poll()
            table = screen.query_one(f"#{widget}", VirtualTable)
            await becomes(console, partial(_has_rows, table))
            screen.set_focus(table)
            assert fields <= fields_of(screen).keys(), (key, widget)


async def test_escape_kills_the_program_and_its_children() -> None:
    async with desk(120, 40) as console:
        await console.feed(flow(7, 10))
        await console.app.action_command("!sh -c 'sleep 61 & echo $! $$; wait'")
        await becomes(console, lambda: any(_numbers(line) for line in console.lines))
        numbers = next(filter(None, map(_numbers, console.lines)))
        assert "esc cancels" in console.text
        await console.press("escape")
        await shows(console, "running sh is cancelled; esc closes this")
        await becomes(console, lambda: not any(map(_runs, numbers)))


def _numbers(line: str) -> list[int]:
    words = line.strip("│ ▊▎").split()
    return [int(word) for word in words] if words and all(map(str.isdecimal, words)) else []


def _runs(number: int) -> bool:
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def _heard(*words: str) -> tuple[str, str]:
    parts: list[bytes] = []
    return run(words, parts.append), b"".join(parts).decode()


def test_output_and_time_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    how, text = _heard("yes")
    assert (how, len(text)) == ("ended after 1 MiB of output", 1 << 20)
    monkeypatch.setattr(own_program, "SECONDS", 0.1)
    assert _heard("sleep", "9") == ("ended after 0.1 s", "")
    assert _heard("sh", "-c", "kill -9 $$") == ("ended by SIGKILL", "")
    assert _heard("sh", "-c", "echo a; echo b >&2; sleep 9 & exit 3") == ("exit code 3", "a\nb\n")
    with pytest.raises(UsageError, match="no-such: No such file"):
        _heard("no-such")


def test_a_cancelled_program_does_not_start_or_ends() -> None:
    cancel = Cancel()
    timer = threading.Timer(0.1, cancel.ask)
    timer.start()
    begun = time.monotonic()
    with cancelled_by(cancel), pytest.raises(CancelError):
        _heard("sleep", "9")
    timer.join()
    assert time.monotonic() - begun < 5


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_under_sudo_it_runs_as_the_caller_of_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_UID", str(NOBODY))
    monkeypatch.setenv("PROBEDECK_TOKEN", "secret")
    account = pwd.getpwuid(NOBODY)
    how, text = _heard(
        "sh", "-c", "grep -E '^(Uid|Gid|Groups|CapEff|CapPrm):' /proc/self/status; env; id -u; pwd"
    )
    assert how == "exit code 0", text
    status = dict(line.split(":", 1) for line in text.splitlines() if ":\t" in line)
    assert set(status["Uid"].split()) == {str(NOBODY)}
    assert set(status["Gid"].split()) == {str(account.pw_gid)}
    groups = os.getgrouplist(account.pw_name, account.pw_gid)
    assert set(map(int, status["Groups"].split())) == set(groups)
    assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 0
    assert f"HOME={account.pw_dir}" in text
    assert f"USER={account.pw_name}" in text
    assert "secret" not in text
    assert "SUDO_UID" not in text
    assert os.getcwd() in text


def test_without_sudo_it_runs_as_the_own_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUDO_UID", raising=False)
    assert _heard("id", "-u") == ("exit code 0", f"{os.geteuid()}\n")
