"""Jobs of users who are not root: counts stay exact, and a line names each missing capability."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import pytest

from app.lab.netns import inside
from bpf.features import Capability
from bpf.requirements import OPTIONAL
from tests.support import compiling
from tests.support.nobody import HELD
from tests.support.runs import deck, rows, stop
from tests.support.sight import becomes
from tests.support.veth import veth_pair

THREE = (Capability.CAP_BPF, Capability.CAP_NET_ADMIN, Capability.CAP_PERFMON)
NICE, PTRACE = Capability.CAP_SYS_NICE, Capability.CAP_SYS_PTRACE
RAW, ADMIN = Capability.CAP_NET_RAW, Capability.CAP_SYS_ADMIN
JOBS = (
    "--owners", "--drops", "--cpu", "50%", "--trace", "10.95.0.2", "--allow-actions",
    "--policy", "shut: packets on dport:9 > 30 -> drop on udp dport:9",
    "--policy", "kept: packets on dport:8 > 30 -> capture on udp dport:8",
)  # fmt: skip
PACKETS = 200
DOCUMENT = Path(__file__).resolve().parents[3] / "docs/service.md"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("held", "arguments", "lines"),
    [
        (THREE, ("-i", "left", *JOBS), {"flow": [NICE], "path": [RAW], "sockets": [PTRACE],
                                        "actions": [PTRACE], "budget": [ADMIN]}),
        ((*THREE, PTRACE, NICE, RAW), ("-i", "left", *JOBS), {"budget": [ADMIN]}),
        (THREE, ("--netns", "all"), {"flow": [NICE], "namespaces": [ADMIN, PTRACE]}),
        ((*THREE, NICE, ADMIN, PTRACE), ("--netns", "all"), {}),
    ],
    ids=["three", "more", "namespaces", "all"],
)  # fmt: skip
def test_jobs_count_exactly_and_name_what_they_lack(
    tmp_path: Path, held: tuple[Capability, ...], arguments: tuple[str, ...],
    lines: dict[str, list[Capability]],
) -> None:  # fmt: skip
    out, record = tmp_path / "tables", tmp_path / "record"
    for folder in (tmp_path, out, record):
        folder.mkdir(exist_ok=True)
        os.chown(folder, 65534, 65534)
    for folder in tmp_path.parents[:2]:
        folder.chmod(0o755)
    Path(os.environ[compiling.COMPILED]).chmod(0o777)
    environment = os.environ | {HELD: " ".join(str(int(each)) for each in held)}
    environment["HOME"] = str(tmp_path)
    arguments = ("run", *arguments, "--headless", "-o", str(out), "--interval", "0.2")
    with (
        veth_pair() as (left, right),
        deck(*arguments, "--record", str(record), ns=left.ns, env=environment) as run,
    ):
        assert becomes(lambda: len(rows(out / "windows.csv")) > 0, 120), stop(run)
        assert becomes(lambda: "shut" not in arguments or len(rows(out / "metrics.csv")) > 0, 10)
        with inside(right.ns), socket.socket(type=socket.SOCK_DGRAM) as sender:
            for port in (7, 8, 9):
                for _ in range(PACKETS):
                    sender.sendto(b"packet", (left.ipv4, port))
        if "--owners" in arguments:
            events = out / "events.csv"
            assert becomes(lambda: "policy shut drops" in events.read_text(), 10)
            assert becomes(lambda: ".pcapng" in events.read_text(), 10)
            with inside(left.ns), socket.socket(type=socket.SOCK_DGRAM) as mine:
                for _ in range(20):
                    mine.sendto(b"packet", (right.ipv4, 6))
                assert becomes(lambda: any(r["process"] for r in rows(out / "owners.csv")), 10)
        code, _, errors = stop(run)
    assert code == 0, errors
    told = re.findall(r"^probedeck: (\w+): (without CAP_.*)$", errors, re.MULTILINE)
    assert len(told) == len(lines)
    assert {of: re.findall("CAP_\\w+", text) for of, text in told} == {
        of: [each.name for each in lacking] for of, lacking in lines.items()
    }
    counted = [row for row in rows(out / "flows.csv") if row["destination"] == left.ipv4]
    for number in ("7", "8", "9"):
        of_port = [row for row in counted if row["destination_port"] == number]
        assert sum(int(row["packets"]) for row in of_port) == PACKETS
    assert {row["table_full"] for row in rows(out / "windows.csv")} == {"0"}


def test_the_document_has_each_line() -> None:
    text = DOCUMENT.read_text()
    for each in OPTIONAL:
        assert f"`{each.job}: without {each.capability.name} {each.without}`" in text
