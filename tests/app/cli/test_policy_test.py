"""`probedeck policy test`: its report, its exit codes, and JUnit XML."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from scapy.layers.inet import IP, UDP

from app.cli.main import cli
from bpf.errors import ProbedeckError, UsageError
from tests.app.lab.captures import ETHER, HOST, PEER, START_NS, pcap

FLOOD = "flood: rate(udp_packets) > 50 -> dns"
QUIET = "quiet: packets > 1000 -> dns"


@pytest.fixture
def capture(tmp_path: Path) -> str:
    """100 datagrams in a second."""
    frame = bytes(ETHER / IP(src=PEER, dst=HOST) / UDP(dport=53))
    path = tmp_path / "flood.pcap"
    path.write_bytes(pcap(*((START_NS + n * 10**7, frame) for n in range(100))))
    return str(path)


def test(*arguments: str) -> int:
    with cli.make_context("probedeck", ["policy", "test", *arguments]) as context:
        code: int = cli.invoke(context)
        return code


test.__test__ = False  # type: ignore[attr-defined]


@pytest.mark.slow
def test_the_report_and_its_exit_codes(
    capture: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = ["--policy", FLOOD, "--policy", QUIET, "--interval", "0.5"]
    culprit = f"from {PEER} to {HOST}"
    report = tmp_path / "junit.xml"
    met = ["--expect", f"only flood by 500ms {culprit}"]
    assert test(capture, *both, *met) == 0
    assert test(capture, capture, *both, *met, "--expect", "none", "--junit", str(report)) == 3
    part = [
        f"{capture}: 100 frames in 990 ms",
        "     0.500 s  flood is active: rate(udp_packets) 100 > 50",
        f"  met: only flood by 500ms {culprit}: told after 500 ms, {culprit}",
    ]
    unmet = f"  NOT MET: none: flood told after 500 ms, {culprit}"
    lines = capsys.readouterr().out.splitlines()
    whos = [line for line in lines if line.startswith(" " * 12)]
    assert [line for line in lines if line not in whos] == [*part, *[*part, unmet] * 2]
    assert len(whos) == 3
    assert all(PEER in who and HOST in who and "50 packets" in who for who in whos)
    root = ET.fromstring(report.read_text())
    assert [suite.attrib["failures"] for suite in root] == ["1", "1"]


@pytest.mark.slow
def test_packets_from_local_addresses_are_outgoing(
    capture: str, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = ["--policy", "out: rate(out_packets on udp) > 50 -> dns", "--policy", FLOOD]
    local = [
        "--local",
        f"{PEER}/32",
        "--local",
        "2001:db8::/32",
        "--expect",
        f"only out by 1s from {PEER}",
    ]
    assert test(capture, *policy, "--interval", "0.5", *local) == 0
    assert "has no outgoing packets" not in capsys.readouterr().out
    assert test(capture, *policy, "--expect", "only flood by 1s") == 0
    assert "without --local a capture has no outgoing packets: out" in capsys.readouterr().out


@pytest.mark.slow
def test_a_file_that_is_no_capture_does_not_stop_the_others(
    capture: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    zigbee, text = tmp_path / "zigbee.pcap", tmp_path / "notes.txt"
    zigbee.write_bytes(pcap(link=195))
    text.write_text("no capture")
    others = [str(zigbee), str(text), str(tmp_path / "missing")]
    assert test(*others[:1], capture, *others[1:], "--policy", FLOOD) == 2
    found = capsys.readouterr()
    assert f"{capture}: 100 frames in 990 ms" in found.out
    notes = found.err.splitlines()
    assert [note.startswith("not tested: ") for note in notes] == [True] * 3
    assert all(name in note for name, note in zip(others, notes, strict=True))
    assert test(*others[:1], capture, "--policy", FLOOD, "--expect", "none") == 3
    with pytest.raises(UsageError, match="195"):
        test(*others, "--policy", FLOOD)


def test_a_report_that_cannot_be_written_is_told(capture: str) -> None:
    with pytest.raises(ProbedeckError, match=r"/missing/x.xml is not written: No such file"):
        test(capture, "--policy", QUIET, "--junit", "/missing/x.xml")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "there is no policy to test"),
        (["--policy", FLOOD, "--expect", "food"], "did you mean flood?"),
        (["--policy", FLOOD, "--interval", "0"], "interval of 0 s"),
        (["--policy", FLOOD, "--local", "eth0"], "--local: 'eth0' does not appear"),
        (["--policy", FLOOD.replace("dns", "mine")], "no application 'mine'"),
    ],
)
def test_mistakes_are_found_before_a_capture_is_run(
    capture: str, arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match=problem):
        test(capture, *arguments)
    assert not capsys.readouterr().out
