"""An operator's own files are where XDG says, and are read and written with his rights only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.config import paths
from bpf.errors import ProbedeckError, UsageError
from tests.support.nobody import let_others_reach

NOBODY = 65534


@pytest.fixture
def his(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The configuration directory of the user nobody, who has called sudo."""
    let_others_reach(tmp_path)
    directory = tmp_path / "his"
    directory.mkdir()
    os.chown(directory, NOBODY, NOBODY)
    monkeypatch.setenv("SUDO_UID", str(NOBODY))
    for name in ("CONFIG", "STATE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(directory))
    yield directory
    # New files of this thread belong to root again.
    (tmp_path / "root's").touch()
    assert (tmp_path / "root's").stat().st_uid == 0


def test_they_are_below_home_unless_the_environment_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "SUDO_UID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", "relative/is/ignored")
    assert paths.config_file() == tmp_path / ".config/probedeck/config.toml"
    assert paths.state_dir() == tmp_path / ".local/state/probedeck"
    assert paths.data_dir() == tmp_path / ".local/share/probedeck"
    monkeypatch.setenv("XDG_CONFIG_HOME", "/etc/xdg")
    assert paths.config_file() == Path("/etc/xdg/probedeck/config.toml")


def test_under_sudo_home_is_the_callers_whatever_home_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", "/root")
    monkeypatch.setenv("SUDO_UID", str(NOBODY))
    assert paths.config_file() == Path("/nonexistent/.config/probedeck/config.toml")
    monkeypatch.setenv("SUDO_UID", "0")
    assert paths.config_file() == Path("/root/.config/probedeck/config.toml")


def test_what_is_written_is_private_and_replaces_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    paths.write_private(path, "one")
    paths.write_private(path, "two\N{SNOWMAN}")
    assert paths.read_private(path) == "two\N{SNOWMAN}"
    assert [p.stat().st_mode & 0o777 for p in (path.parent.parent, path.parent, path)] == [
        0o700, 0o700, 0o600,
    ]  # fmt: skip
    assert os.listdir(path.parent) == ["file"]


def test_what_is_not_there_is_none(tmp_path: Path) -> None:
    assert paths.read_private(tmp_path / "file") is None
    (tmp_path / "file").touch()
    assert paths.read_private(tmp_path / "file" / "below") is None


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\n\xff")
    with pytest.raises(UsageError, match="file:2: this is no UTF-8 text"):
        paths.read_private(tmp_path / "file")
    os.truncate(tmp_path / "file", (1 << 20) + 1)
    with pytest.raises(UsageError, match="file is larger than 1 MiB"):
        paths.read_private(tmp_path / "file")


def test_under_sudo_what_is_made_is_the_callers(his: Path) -> None:
    path = paths.state_dir() / "layouts" / "mine"
    paths.write_private(path, "text")
    assert [p.stat().st_uid for p in (path, path.parent, path.parent.parent)] == [NOBODY] * 3
    assert path.stat().st_gid == NOBODY
    assert paths.read_private(path) == "text"


def test_under_sudo_a_link_leads_no_further_than_the_caller_may_go(
    his: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.mkdir(mode=0o700)
    (secret / "file").write_text("hidden")
    (his / "link").symlink_to(secret)
    with pytest.raises(ProbedeckError, match="link/file cannot be read: Permission denied"):
        paths.read_private(his / "link" / "file")
    os.chmod(secret, 0o755)
    with pytest.raises(ProbedeckError, match="link/file cannot be written: Permission denied"):
        paths.write_private(his / "link" / "file", "overwritten")
    assert (secret / "file").read_text() == "hidden"
    assert os.listdir(secret) == ["file"]


@pytest.mark.parametrize(
    ("owner", "mode", "why"),
    [
        (1, 0o644, "it belongs to another account than root and the user"),
        (NOBODY, 0o664, "others than its owner may write it"),
        (NOBODY, 0o646, "others than its owner may write it"),
        (NOBODY, 0o644, ""),
        (0, 0o644, ""),
    ],
)
def test_under_sudo_only_what_nobody_else_can_have_put_there_is_read(
    his: Path, owner: int, mode: int, why: str
) -> None:
    path = his / "file"
    path.write_text("text")
    os.chown(path, owner, owner)
    os.chmod(path, mode)
    if why:
        with pytest.raises(ProbedeckError, match=why):
            paths.read_private(path)
    else:
        assert paths.read_private(path) == "text"
