"""The user's files: made with the user's rights, and never through somebody else's link."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from app import files
from app.commands.complete import Completer
from app.config.paths import read_private
from app.console.screens.programs.sources import write_source
from app.outputs.sink import Sink
from app.outputs.views import VIEWS
from bpf.errors import ProbedeckError, UsageError

NOBODY = 65534


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that everybody can enter."""
    if os.geteuid():
        pytest.skip("only root can be somebody else")
    with TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        yield Path(directory)


@pytest.fixture
def own(shared: Path) -> Path:
    """A directory of an account without privileges."""
    directory = shared / "own"
    directory.mkdir()
    os.chown(directory, NOBODY, NOBODY)
    return directory


@pytest.fixture
def by_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_UID", str(NOBODY))


def link(path: Path, leads_to: Path) -> Path:
    """A symbolic link that belongs to the account without privileges."""
    path.symlink_to(leads_to)
    os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    return path


def test_a_dangling_link_makes_no_file_elsewhere(own: Path, shared: Path) -> None:
    """Root writes into a user's directory, with and without sudo."""
    secret = shared / "secret"
    for table in VIEWS:
        link(own / f"{table}.csv", secret)
    with pytest.raises(UsageError, match=r"\.csv: it is a symbolic link, which is not followed"):
        Sink(str(own), "csv", [*VIEWS.values()])
    write_source(link(own / "x.c", secret), "text")
    assert not secret.exists()
    assert (own / "x.c").read_text() == "text"


def test_another_accounts_link_on_the_way_is_refused(own: Path, shared: Path) -> None:
    (shared / "elsewhere").mkdir()
    link(own / "out", shared / "elsewhere")
    with pytest.raises(UsageError, match="another account's symbolic link on the way is not"):
        Sink(str(own / "out"), "csv", [VIEWS["flows"]])
    with pytest.raises(ProbedeckError, match="another account's symbolic link on the way is not"):
        write_source(own / "out" / "x.c", "text")
    assert not os.listdir(shared / "elsewhere")


@pytest.mark.usefixtures("by_sudo")
def test_ones_own_links_and_roots_are_followed_as_far_as_one_may_go(
    own: Path, shared: Path
) -> None:
    """`/home -> /data/home`, `~/out -> ../flows`."""
    (shared / "home").symlink_to("own")
    (own / "flows").mkdir()
    os.chown(own / "flows", NOBODY, NOBODY)
    link(own / "out", Path("../own/flows"))
    link(own / "roots", shared)
    write_source(shared / "home" / "out" / "x.c", "text")
    assert (own / "flows" / "x.c").read_text() == "text"
    with pytest.raises(ProbedeckError, match="Permission denied"):
        write_source(shared / "home" / "roots" / "x.c", "text")
    assert sorted(os.listdir(shared)) == ["home", "own"]


@pytest.mark.usefixtures("by_sudo")
def test_under_sudo_all_that_is_made_belongs_to_the_user(own: Path) -> None:
    with Sink(str(own / "a" / "out"), "csv", [VIEWS["flows"]]):
        write_source(own / "a" / "x.c", "text")
    made = [own / "a", *(own / "a").rglob("*")]
    assert sorted(path.name for path in made) == ["a", "flows.csv", "out", "x.c"]
    assert {(path.stat().st_uid, path.stat().st_gid) for path in made} == {(NOBODY, NOBODY)}


@pytest.mark.usefixtures("by_sudo")
def test_under_sudo_nothing_is_written_that_the_user_could_not(shared: Path) -> None:
    with pytest.raises(UsageError, match="Permission denied; under sudo tables are written with"):
        Sink(str(shared / "out"), "csv", [VIEWS["flows"]])
    with pytest.raises(ProbedeckError, match="Permission denied"):
        write_source(shared / "x.c", "text")
    assert not os.listdir(shared)


@pytest.mark.usefixtures("by_sudo")
def test_under_sudo_the_groups_are_the_users_and_not_roots(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, team = shared / "secret.toml", shared / "team"
    secret.write_text("not for everybody")
    secret.chmod(0o640)
    team.mkdir()
    team.chmod(0o770)
    os.chown(team, 0, 4242)
    with pytest.raises(ProbedeckError, match="Permission denied"):
        read_private(secret)
    with pytest.raises(ProbedeckError, match="Permission denied"):
        write_source(team / "x.c", "text")
    groups = os.getgroups()
    files._groups_of.cache_clear()
    monkeypatch.setattr(os, "getgrouplist", lambda name, group: [group, 4242])
    write_source(team / "x.c", "text")
    assert (team / "x.c").read_text() == "text"
    assert os.getgroups() == groups
    files._groups_of.cache_clear()


@pytest.mark.usefixtures("by_sudo")
def test_under_sudo_completion_names_only_what_the_user_may_see(own: Path, shared: Path) -> None:
    (own / "mine.c").touch()
    (shared / "hidden").mkdir(mode=0o700)
    (shared / "hidden" / "theirs.c").touch()
    completer = Completer({}, lambda text, position: pytest.fail("no filter"))

    def completed(typed: str) -> tuple[str, ...]:
        return completer.complete("probe.add", typed, len(typed)).candidates

    assert completed(f"{own}/") == (f"{own}/mine.c",)
    assert completed(f"{shared}/hidden/") == ()


def test_loops_of_links_end(shared: Path) -> None:
    (shared / "one").symlink_to("two")
    (shared / "two").symlink_to("one")
    with pytest.raises(ProbedeckError, match=r"x\.c is not written"):
        write_source(shared / "one" / "x.c", "text")


def test_a_replaced_file_keeps_its_mode_and_a_failed_one_its_text(shared: Path) -> None:
    path = shared / "x.c"
    path.write_text("before")
    path.chmod(0o640)
    files.write_atomic(path, [b"after"])
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("after", 0o640)

    def broken() -> Iterator[bytes]:
        yield b"half"
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        files.write_atomic(path, broken())
    assert path.read_text() == "after"
    assert os.listdir(shared) == ["x.c"]


def test_home_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/root")
    assert files.expand("~/x") == Path("/root/x")
    monkeypatch.setenv("SUDO_UID", str(NOBODY))
    assert files.expand("~/x") == Path("/nonexistent/x")
    assert files.expand("~root/x") == Path("/root/x")
    with pytest.raises(UsageError, match="there is no such user"):
        files.expand("~nobody_at_all/x")
