"""Databases of networks among the settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.cli.decorator import unfit
from app.cli.main import cli
from app.config.load import load
from app.outputs.networks import RouterFacts
from app.run import headless
from app.run.options import SECTIONS
from app.run.spec import RunSpec
from bpf.errors import UsageError
from tests.support import mmdb

COMMANDS = (
    ("run", "-i", "lo", "--headless", "--config"),
    ("trace", "192.0.2.1", "-i", "lo", "--config"),
)


@pytest.mark.parametrize("command", COMMANDS)
def test_databases_of_networks_are_files_beside_the_configuration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: tuple[str, ...]
) -> None:
    specs: list[RunSpec] = []
    monkeypatch.setattr(headless, "run", lambda spec, *_: specs.append(spec))
    mmdb.write(tmp_path / "asn.mmdb", {"198.51.100.0/24": {"asn": 64500}})
    mmdb.write(tmp_path / "country.mmdb", {"198.51.100.0/24": {"country_code": "DE"}})
    file = tmp_path / "config.toml"
    file.write_text('[run]\nnetworks = ["asn.mmdb", "country.mmdb"]\n')
    cli([*command, str(file)], standalone_mode=False)
    assert specs.pop().describe("198.51.100.7") == RouterFacts("", 64500, "", "DE")
    file.write_text('[run]\n\nnetworks = ["none.mmdb"]\n')
    words = f"{file}:3: {tmp_path}/none.mmdb cannot be read: No such file or directory"
    assert [str(each) for each in unfit(load(str(file), SECTIONS, {}))] == [words]
    with pytest.raises(UsageError) as caught:
        cli([*command, str(file)], standalone_mode=False)
    assert str(caught.value) == words
