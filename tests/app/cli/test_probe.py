"""`probedeck probe`, at a controller that runs here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.api.server.listener import ApiListener
from app.api.sockets import Api
from probes.config.model import dump
from tests.app.api.fake import BROKEN, CUTS, NO_KERNEL, REFUSED, FakePlane, config
from tests.support.runs import deck_here

Probe = Callable[..., tuple[object, str, str]]


@pytest.fixture
def plane() -> FakePlane:
    return FakePlane()


@pytest.fixture
def probe(plane: FakePlane, tmp_path: Path) -> Iterator[Probe]:
    """Run `probedeck probe` there: exit code, output and errors."""
    with ApiListener(plane, Api("1", socket=str(tmp_path / "api.sock"))):
        yield lambda *words: deck_here("probe", *words, "--connect", f"unix:{tmp_path}/api.sock")


def written(
    directory: Path,
    source: str = "int f() { return 2; }",
    interface: str = "lo",
    hook: str = "xdp",
) -> str:
    """A configuration's file."""
    data = dump(config(source=source))
    data["ingress"] |= {"interface": interface, "hook": hook}
    path = directory / "counter.json"
    path.write_text(json.dumps(data))
    return str(path)


def test_a_probes_life(probe: Probe, plane: FakePlane, tmp_path: Path) -> None:
    """S1.1, S1.26."""
    file = written(tmp_path)
    code, out, said = probe("check", file)
    assert (code, out) == (0, "")
    assert "probe.c:1:5: warning: unused variable" in said
    assert "ingress: 12.5 ns a packet" in said
    assert plane.probes() == ()

    code, out, said = probe("add", file)
    assert (code, out, said) == (0, "", "counter: generation 1 runs on lo (xdp, generic)\n")

    code, out, said = probe("replace", written(tmp_path, "int g;"))
    lines = said.splitlines()
    assert code == 0
    assert "ingress: map packets: kept" in lines
    assert "ingress: map seen: starts empty (value 8 bytes, was 4)" in lines
    assert lines.index("warning: another verdict for a frame") < len(lines) - 1
    assert lines[-1].startswith("counter: generation 2 runs")

    code, out, _ = probe("list")
    assert (code, out.split()[:3]) == (0, ["NAME", "GENERATION", "WINDOW"])
    assert out.splitlines()[1].split()[:3] == ["counter", "2", "2"]
    code, out, _ = probe("list", "--json")
    assert json.loads(out)[0]["metrics"] == ["ingress.packets", "ingress.bytes"]
    code, out, _ = probe("show", "counter")
    assert json.loads(out)["ingress"]["source"] == "int g;"

    code, out, said = probe("export", "counter")
    assert (code, said) == (0, "")
    assert json.loads(out)["window"] == 2
    code, again, _ = probe("export", "counter", "--last")
    assert (code, again) == (0, out)
    code, out, _ = probe("export", "counter", "--format", "csv")
    assert (code, "packets" in out) == (0, True)

    code, _, said = probe("rollback", "counter")
    assert (code, said.splitlines()[-1][:28]) == (0, "counter: generation 3 runs, ")
    assert probe("remove", "counter") == (0, "", "counter: removed\n")
    assert plane.probes() == ()


def test_the_interface_can_be_given(probe: Probe, plane: FakePlane, tmp_path: Path) -> None:
    """S1.2."""
    file = written(tmp_path, interface="")
    code, _, said = probe("add", file)
    assert code == 2
    assert "ingress.interface" in said
    assert probe("add", file, "-i", "eth7")[0] == 0
    (info,) = plane.probes()
    assert info.programs[0].interface == "eth7"


def test_an_application_needs_no_interface(probe: Probe, plane: FakePlane, tmp_path: Path) -> None:
    file = written(tmp_path, interface="", hook="monitor")
    plane.monitors = False
    code, _, said = probe("add", file)
    assert (code, "give -i NAME" in said) == (2, True)
    plane.monitors = True
    monitor = plane.monitor()
    assert monitor
    for command in ("check", "add", "replace"):
        assert probe(command, file)[0] == 0, command
    (info,) = plane.probes()
    assert info.programs[0].interface == monitor.interface


def test_an_application_in_use_is_removed_by_force(probe: Probe, plane: FakePlane) -> None:
    plane.add(config())
    plane.in_use = "counter"
    assert probe("remove", "counter") == (
        2, "", "probedeck: an active policy runs counter; --force\n",
    )  # fmt: skip
    assert len(plane.probes()) == 1
    assert probe("remove", "counter", "--force")[0] == 0
    assert plane.probes() == ()


def test_a_source_that_is_refused_is_one_line_a_remark(
    probe: Probe, plane: FakePlane, tmp_path: Path
) -> None:
    """S1.6."""
    plane.add(config())
    for command in ("replace", "check"):
        code, out, said = probe(command, written(tmp_path, f"int f();\n{BROKEN}"))
        assert (code, out) == (2, "")
        assert said.splitlines() == [
            "probe.c:2:12: error: expected ')'", "probe.c:2:12: note: expected ')'",
        ]  # fmt: skip
        assert "Traceback" not in said
    assert "verifier refused" in probe("check", written(tmp_path, REFUSED))[2]
    code, _, said = probe("check", written(tmp_path, NO_KERNEL))
    assert (code, said) == (4, "probedeck: the kernel has no such map; a newer kernel does\n")
    assert plane.probes()[0].generation == 1


def test_what_cuts_off_an_interface_must_be_forced(
    probe: Probe, plane: FakePlane, tmp_path: Path
) -> None:
    file = written(tmp_path, f"int {CUTS};")
    why = "ingress lets none of the test frames pass"
    refused = f"probedeck: counter: {why}; use --force to run it anyway\n"
    assert f"warning: {why}\n" in probe("check", file)[2]
    assert probe("add", file) == (2, "", refused)
    assert plane.probes() == ()
    code, _, said = probe("add", file, "--force")
    assert (code, said.splitlines()[0]) == (0, f"warning: {why}")
    code, _, said = probe("replace", file)
    assert (code, said.endswith(refused), plane.probes()[0].generation) == (2, True, 1)
    assert probe("replace", file, "--force")[0] == 0
    assert plane.probes()[0].generation == 2


def test_errors_are_one_line_with_the_right_code(
    probe: Probe, plane: FakePlane, tmp_path: Path
) -> None:
    """S1.25."""
    plane.add(config())
    assert probe("export", "countr") == (
        2, "", "probedeck: no probe 'countr'; did you mean counter?\n",
    )  # fmt: skip
    assert probe("rollback", "counter")[0] == 1
    code, _, said = probe("export", "counter", "--format", "yaml")
    assert (code, said.count("\n")) == (2, 1)
    code, _, said = probe("add", str(tmp_path / "none.toml"))
    assert (code, "none.toml" in said) == (2, True)
    code, _, said = deck_here("probe", "list", "--connect", f"unix:{tmp_path}/none.sock")
    assert code == 1
    assert said.startswith(f"probedeck: no controller at unix:{tmp_path}/none.sock")
    assert "probedeck serve" in said
    assert deck_here("probe", "list", "--connect", "eth0")[0] == 2
    assert deck_here("probe", "list", "--token", str(tmp_path / "none"))[0] == 2


def test_remarks_name_the_file_that_was_given(
    probe: Probe, plane: FakePlane, tmp_path: Path
) -> None:
    config_file = tmp_path / "counter.toml"
    config_file.write_text('name = "probe"\n[ingress]\ninterface = "lo"\nsource = "mine.c"\n')
    (tmp_path / "mine.c").write_text(f"int f();\n{BROKEN}")
    plane.source_name = "probe.ingress.c"
    code, _, said = probe("check", str(config_file))
    assert (code, said.splitlines()[0]) == (2, f"{tmp_path}/mine.c:2:12: error: expected ')'")


def test_entries_of_a_map_are_set_and_unset(probe: Probe, plane: FakePlane) -> None:
    plane.add(config())
    assert probe("set", "counter", "allow", "192.0.2.1", '{"port": 80}') == (0, "", "")
    assert probe("set", "counter", "allow", "192.0.2.2", "7") == (0, "", "")
    code, out, _ = probe("entries", "counter", "allow")
    assert (code, [json.loads(line) for line in out.splitlines()]) == (
        0,
        [{"key": "192.0.2.1", "value": {"port": 80}}, {"key": "192.0.2.2", "value": 7}],
    )
    assert probe("unset", "counter", "allow", "192.0.2.1") == (0, "", "")
    assert probe("unset", "counter", "allow", "192.0.2.1") == (
        2, "", 'probedeck: map allow has no entry "192.0.2.1"\n',
    )  # fmt: skip
    code, _, said = probe("set", "counter", "alow", "1", "1")
    assert (code, said) == (
        2, "probedeck: probe counter has no writable map 'alow'; did you mean allow?\n",
    )  # fmt: skip
