"""Captures become what a run would have shown: exact flows, alarms, and the capture's times."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from scapy.layers.inet import IP, TCP

from app.recording.reader import Recording
from tests.app.lab.captures import ETHER, HOST, PEER, START_NS, pcap
from tests.support.runs import Remains, children, deck, deck_here, program_ids
from tests.support.sight import becomes

DATA = bytes(ETHER / IP(src="203.0.113.5", dst=HOST) / TCP(sport=5000, dport=443, flags="A"))
SECOND = 10**9


def _quiet(start: int, seconds: int) -> list[tuple[int, bytes]]:
    """Ten frames a second of one flow."""
    return [(START_NS + start * SECOND + n * SECOND // 10, DATA) for n in range(10 * seconds)]


def _scan(start: int, seconds: int) -> list[tuple[int, bytes]]:
    """Sixty ports a second."""
    return [
        (START_NS + start * SECOND + n * SECOND // 60,
         bytes(ETHER / IP(src=PEER, dst=HOST) / TCP(sport=4000, dport=n + 1, flags="S")))
        for n in range(60 * seconds)
    ]  # fmt: skip


def _rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text())))


@pytest.mark.slow
def test_a_folder_of_captures_is_one_run_with_its_alarms(tmp_path: Path) -> None:
    captures, tables, kept = tmp_path / "captures", tmp_path / "tables", tmp_path / "kept"
    captures.mkdir()
    # A ring of files: the name of the later one comes first.
    (captures / "a.pcap").write_bytes(pcap(*sorted(_quiet(20, 10) + _scan(22, 6))))
    (captures / "b.pcap").write_bytes(pcap(*_quiet(0, 20)))
    code, _, err = deck_here(
        "open", str(captures), "--headless", "-o", str(tables), "--record", str(kept)
    )
    assert (code, err.splitlines()[0]) == (0, "660 frames in 29.9 s")
    flows = _rows(tables / "flows.csv")
    assert sum(int(row["packets"]) for row in flows) == 660
    quiet = [row for row in flows if row["source"] == "203.0.113.5"]
    assert [int(row["packets"]) for row in quiet] == [10] * 30
    assert quiet[0]["start"] == "2023-11-14T22:13:20.123456789Z"
    assert quiet[0]["last"].startswith("2023-11-14T22:13:21.02")
    (begun,) = (row for row in _rows(tables / "events.csv") if row["phase"] == "begin")
    assert f"port_scan: {PEER} " in begun["text"]
    assert f"scans {HOST}" in begun["text"]
    assert "2023-11-14T22:13:42" < begun["time"] < "2023-11-14T22:13:48"
    with Recording(str(kept)) as recording:
        assert [*recording.faults()] == []


@pytest.mark.slow
def test_standard_input_may_break_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(pcap(*_quiet(0, 2))[:-5])))
    monkeypatch.setattr(sys, "stdin", given)
    code, _, err = deck_here(
        "open", "-", "--headless", "--local", "203.0.113.0/24", "--policies", "none",
        "-o", str(tmp_path),
    )  # fmt: skip
    assert (code, err.splitlines()) == (
        0, ["19 frames in 1.8 s", "probedeck: the file is not whole: it breaks off"],
    )  # fmt: skip
    rows = _rows(tmp_path / "flows.csv")
    assert [(row["direction"], row["packets"]) for row in rows] == [("out", "10"), ("out", "9")]


@pytest.mark.slow
def test_mistakes_are_one_line_before_anything_is_made(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("no capture")
    for name, words in (
        ("empty", "has no file"), ("text", "is neither a pcap nor a pcapng file"),
        ("gone", "No such file or directory"),
    ):  # fmt: skip
        code, _, err = deck_here(
            "open", str(tmp_path / name), "--headless", "--record", str(tmp_path / "made"),
            "--policies", "none",
        )  # fmt: skip
        assert (code, words in err, err.count("\n") < 3) == (2, True, True), err
        assert not (tmp_path / "made").exists()


@pytest.mark.slow
def test_killed_open_leaves_no_program_and_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    arguments = ("open", "-", "--headless", "--policies", "none")
    with deck(*arguments, stdin=subprocess.PIPE) as run:
        assert run.stdin
        os.write(run.stdin.fileno(), pcap(*_quiet(0, 3)))
        # It waits for more frames, and has recorded those that came.
        assert becomes(lambda: bool([*tmp_path.glob("probedeck-*/*.seg")]), 60)
        assert becomes(lambda: len(program_ids(run.pid, *children(run.pid))) >= 6)
        remains = Remains(run)
        run.kill()
        remains.assert_gone()
        assert becomes(lambda: not [*tmp_path.iterdir()])
