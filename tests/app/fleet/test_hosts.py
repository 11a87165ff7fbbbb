"""The file of a fleet: every mistake is named, and files lie beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.fleet.hosts import load
from bpf.errors import UsageError


def fleet_of(path: Path, text: str) -> str:
    file = path / "hosts.toml"
    file.write_text(text)
    return str(file)


def test_hosts_have_labels_and_files_beside_theirs(tmp_path: Path) -> None:
    fleet = load(fleet_of(tmp_path, """
        [[hosts]]
        name = "ams-1"
        url = "https://192.0.2.1:8765"
        token = "tokens/ams"
        ca = "/etc/ca.pem"
        labels = { site = "ams", role = "router" }
        [[hosts]]
        name = "here"
        url = "unix:/run/probedeck/api.sock"
        [fleet]
        group = "site"
    """))  # fmt: skip
    first, second = fleet.hosts
    assert (first.name, first.labels) == ("ams-1", {"site": "ams", "role": "router"})
    assert (first.remote.token, first.remote.authorities) == (
        f"{tmp_path}/tokens/ams",
        "/etc/ca.pem",
    )
    assert (second.remote.url, second.remote.token) == ("unix:/run/probedeck/api.sock", "")
    assert fleet.group == "site"


@pytest.mark.parametrize(
    ("text", "mistakes"),
    [
        ("", ["hosts: names no host"]),
        ("hosts = 3", ["hosts: names no host"]),
        ("[[host]]", ["unknown key 'host'", "names no host"]),
        ("[[hosts]]", ["host 1: has no name", "host 1: has no url"]),
        ("[[hosts]]\nname = 'a'\nurl = 1", ["host a: url is not a text"]),
        ("[[hosts]]\nname = 'a b'\nurl = 'x'", ["'a b' is no name of a host"]),
        ("[[hosts]]\nname = 'a'\nurl = 'x'\nport = 1", ["host a: unknown key 'port'"]),
        ("[[hosts]]\nname = 'a'\nurl = 'x'\nlabels = {site = 1}", ["labels are no table of texts"]),
        ("[[hosts]]\nname = 'a'\nurl = 'x'\nlabels = {host = 'x'}", ["no name of a label"]),
        ("[[hosts]]\nname='a'\nurl='x'\n[[hosts]]\nname='a'\nurl='y'", ["host a: is named twice"]),
        ("[[hosts]]\nname='a'\nurl='x'\n[fleet]\ngroup='site'", ["no label of the hosts"]),
        ("[[hosts]]\nname='a'\nurl='x'\n[fleet]\nsort='site'", ["fleet: unknown key 'sort'"]),
        ("fleet = 1\n[[hosts]]\nname='a'\nurl='x'", ["fleet: is no section"]),
        ("[[hosts", ["invalid TOML"]),
    ],
)
def test_every_mistake_is_named(tmp_path: Path, text: str, mistakes: list[str]) -> None:
    path = fleet_of(tmp_path, text)
    with pytest.raises(UsageError) as raised:
        load(path)
    words = [str(each) for each in raised.value.mistakes]
    assert len(words) == len(mistakes)
    for found, mistake in zip(words, mistakes, strict=True):
        assert found.startswith(path)
        assert mistake in found


def test_a_file_that_cannot_be_read_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.toml cannot be read: No such file"):
        load(f"{tmp_path}/none.toml")
