"""Lines that were typed are there the next time."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from app.commands.complete import MOST, PromptHistory
from app.config.paths import state_dir
from tests.support.nobody import let_others_reach


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return state_dir() / "history"


def typed(path: Path, *lines: str) -> PromptHistory:
    history = PromptHistory(path)
    history.load()
    for line in lines:
        history.remember(line)
        history.save(line)
    return history


def test_it_is_kept_private_the_latest_first_and_none_twice(path: Path) -> None:
    typed(path, "flow.sort rate", "view.flows", "flow.sort rate")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert typed(path).lines == ("flow.sort rate", "view.flows")


def test_two_consoles_keep_each_others_lines(path: Path) -> None:
    one, other = typed(path, "first"), typed(path)
    other.remember("second")
    other.save("second")
    one.remember("third")
    one.save("third")
    assert typed(path).lines == ("third", "second", "first")


def test_it_does_not_grow_without_end(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"{number}\n" for number in range(MOST)))
    typed(path, "new", "x" * 5000, "evil\x1b[2J")
    lines = path.read_text().splitlines()
    assert len(lines) == MOST
    assert lines[0] == "1"
    assert lines[-1] == "new"


def test_where_it_can_not_be_kept_it_is_known_until_the_end(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.mkdir()
    assert typed(path, "a").lines == ("a",)
    path.rmdir()
    path.write_bytes(b"\xff\xfe\n")
    assert typed(path).lines == ()


def test_under_sudo_it_is_the_invoking_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, 65534, 65534)
    let_others_reach(tmp_path)
    monkeypatch.setenv("SUDO_UID", "65534")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(
        "pwd.getpwuid", lambda uid: type("Entry", (), {"pw_name": "nobody", "pw_uid": uid,
                                                       "pw_gid": 65534, "pw_dir": str(home)})
    )  # fmt: skip
    path = state_dir() / "history"
    typed(path, "view.flows")
    assert path.is_relative_to(home)
    assert path.stat().st_uid == 65534
    assert path.parent.stat().st_uid == 65534
