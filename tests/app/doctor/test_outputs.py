"""The doctor on outputs of a configuration: real sockets of this host."""

from __future__ import annotations

import io
import socket
from functools import partial
from pathlib import Path

import pytest

from app import doctor
from app.cli.main import cli
from app.doctor.outputs import check_outputs
from bpf.requirements import Status
from probes.reports import OutputConfig


def test_each_output_is_a_line(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_server(("127.0.0.1", 0)) as gone,
    ):
        port, closed = server.getsockname()[1], gone.getsockname()[1]
        gone.close()
        urls = {
            "up": f"ipfix://ana:hush@127.0.0.1:{port}?transport=tcp",
            "down": f"https://127.0.0.1:{closed}/hush",
            "udp": f"ipfix://127.0.0.1:{closed}",
            "v9": f"netflow9://127.0.0.1:{closed}",
            "where": "syslog://no-such-host.invalid:514",
            "metrics": f"openmetrics://127.0.0.1:{closed}",
            "files": f"jsonl:{tmp_path}",
            "odd": "ipfixx://hush@x:1",
        }
        every = list(check_outputs(OutputConfig(url, name) for name, url in urls.items()))
    found = {each.name: each for each in every}
    assert len(every) == len(found) == len(urls)
    assert {name: each.status for name, each in found.items()} == {
        "up": Status.OK, "down": Status.MISSING, "udp": Status.NOTE, "v9": Status.NOTE,
        "where": Status.MISSING, "metrics": Status.OK, "files": Status.OK, "odd": Status.MISSING,
    }  # fmt: skip
    assert found["up"].detail.endswith(": accepts connections")
    assert found["down"].detail == f"https://127.0.0.1:{closed}/...: Connection refused"
    assert "cannot resolve no-such-host.invalid" in found["where"].detail
    assert found["odd"].remedy == "did you mean ipfix?"
    assert not [each for each in every if "hush" in f"{each.detail}{each.remedy}"]


def test_the_doctor_reads_them_from_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "c.toml"
    file.write_text(
        f'[[outputs]]\nurl = "jsonl:{tmp_path}"\n\n'
        '[[outputs]]\nurl = "ipfix://127.0.0.1:1"\nspeed = 7\n'
    )
    for each in ("privileges", "kernel", "compiler", "try_features", "owner_sources"):
        monkeypatch.setattr(f"app.doctor.{each}", tuple)
    out = io.StringIO()
    monkeypatch.setattr("app.doctor.run", partial(doctor.run, out=out))
    code = cli.main(["doctor", "--config", str(file)], standalone_mode=False)
    assert code == 0
    title, mistake, *_ = out.getvalue().splitlines()
    assert title == "outputs"
    assert mistake.startswith("  missing configuration     ")
    assert "no option 'speed'" in " ".join(out.getvalue().split())
    assert "  ok      jsonl             jsonl:" in out.getvalue()
