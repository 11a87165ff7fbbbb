"""Captures of the ring as pcapng: read back by our own reader and by scapy."""

from __future__ import annotations

import io
import os
import shutil
import stat
import subprocess
from pathlib import Path

import numpy as np
import pytest
from scapy.utils import PcapNgReader

from app.lab.capture import CaptureFile
from app.recording import captures
from app.recording.captures import encoded, saver
from bpf.arrays import Array
from bpf.attach.interface import Interface
from bpf.errors import UsageError
from probes.names.learned import ROW
from probes.path.records import PATH, PATHS_TABLE, PathRowKind
from probes.ring.options import CaptureLedger
from probes.ring.records import packets_of, slot_of
from probes.ring.service import Capture
from probes.snapshot import History, Snapshot
from probes.sockets.records import OWNER, OWNERS_TABLE, SOCKET, SOCKETS_TABLE, Limit
from probes.tables.field_types import MAPPED

_T0 = 1_700_000_000_123_456_789
_NEAR, _FAR = bytes([192, 0, 2, 1]), bytes([198, 51, 100, 7])
_LEDGER = CaptureLedger(10, 3, 1, 4, 1, 1, 2, _T0, _T0 + 5, _T0 + 2)


def slots(count: int = 3) -> Array:
    """TCP packets to port 443, one after another, of 60, 61, .. bytes."""
    made = np.zeros(count, slot_of(168))
    made["number"] = made["ended"] = np.arange(1, count + 1)
    made["time"] = 1000 * np.arange(count, 0, -1)
    key = made["key"].view("u1").reshape(count, 48)
    key[:, 0:4], key[:, 16:20] = np.frombuffer(_NEAR, "u1"), np.frombuffer(_FAR, "u1")
    key[:, 32:38] = (0x30, 0x39, 0x01, 0xBB, 6, 4)
    made["length"] = made["captured"] = 60 + np.arange(count)
    made["packets"], made["outgoing"] = 1, 1
    made["bytes"][:, :14] = np.frombuffer(bytes(12) + b"\x08\x00", "u1")
    made["bytes"][:, 14] = np.arange(count)
    return made


def capture(of: Array) -> Capture:
    packets = packets_of(of, Interface("eth0", 2, ethernet=True))
    return Capture("flood", ("tcp dport:443",), packets, _LEDGER, lambda ns: _T0 + ns)


def table(probe: str, metric: str, rows: Array) -> Snapshot:
    return Snapshot(
        probe=probe, interface="eth0", window=1, generation=1, start_ns=0, end_ns=9,
        end_utc_ns=_T0, rows=rows, losses={}, occupancy=0.0, swap_ns=0, drain_ns=0, metric=metric,
    )  # fmt: skip


def known() -> History:
    """The owner of the flow, the limit of its connection, a hop on its way, and a name."""
    socket, owner = np.zeros(1, SOCKET), np.zeros(1, OWNER)
    hop, name = np.zeros(1, PATH), np.zeros(1, ROW)
    socket["near"][0, :4], socket["far"][0, :4] = np.frombuffer(_NEAR + _FAR, "u1").reshape(2, 4)
    socket["near_port"], socket["far_port"] = 0x3039, 443
    socket["protocol"], socket["version"], socket["limit"], socket["owner"] = 6, 4, Limit.QUEUE, 3
    owner["number"], owner["tgid"], owner["comm"], owner["unit"] = 3, 812, b"curl", b"web.service"
    hop["destination"][0, :4] = np.frombuffer(_FAR, "u1")
    hop["responder"][0, :4] = np.frombuffer(bytes([192, 0, 2, 254]), "u1")
    hop["version"], hop["kind"], hop["hop"] = 4, PathRowKind.SUMMARY, 1
    hop["answered"], hop["median_ns"] = 5, 1_230_000
    name["value"]["address"] = np.frombuffer(MAPPED + _FAR, "u1")
    name["value"]["name"][0, :11] = np.frombuffer(b"example.org", "i1")
    history = History()
    for each in (
        table("sockets", SOCKETS_TABLE, socket), table("sockets", OWNERS_TABLE, owner),
        table("path", PATHS_TABLE, hop), table("names", "names", name),
    ):  # fmt: skip
        history.append(each)
    return history


def test_our_own_reader_gets_the_frames_with_their_times_and_lengths() -> None:
    made = slots()
    made["tag_type"][2], made["tag"][2] = 0x8100, 5
    made["length"][1] = 1500
    made["bytes"] += np.arange(168, dtype="u1") * (np.arange(168) > 20)
    file = b"".join(encoded(capture(made), known()))
    found = [*CaptureFile(io.BytesIO(file), "test")]
    # The oldest comes first.
    assert [each.time_ns for each in found] == [_T0 + ns for ns in (1000, 2000, 3000)]
    assert [each.length for each in found] == [66, 1500, 60]
    tagged, whole = made["bytes"][2].tobytes()[:62], made["bytes"][1].tobytes()[:61]
    assert found[0].data == tagged[:12] + b"\x81\x00\x00\x05" + tagged[12:]
    assert found[1].data == whole


def test_comments_tell_policy_owner_verdict_and_hop() -> None:
    made = slots(2)
    made["packets"][0], made["dropped"][1] = 4, 1
    file = b"".join(encoded(capture(made), known(), "c.pcapng"))
    first, second = PcapNgReader(io.BytesIO(file))
    text = (
        b"policy flood\nowner curl pid 812 unit web.service\nverdict queue\n"
        b"hop 1 192.0.2.254 1.23 ms"
    )
    assert first.comments == [text + b"\ndropped by an action"]
    assert second.comments == [text + b"\nsegment of 4 packets"]
    assert first.direction == 2
    assert (
        b"flood: tcp dport:443\n3 packets of 10 in c.pcapng: 1 of other flows are left out, "
        b"actions dropped 2 of them, " in file
    )
    assert b"4 overwritten before and 1 came while the ring was frozen and 1 could not be" in file
    assert _FAR + b"example.org\0" in file


def test_tshark_takes_it(tmp_path: Path) -> None:
    tshark = str(shutil.which("tshark") or "")
    if not tshark:
        pytest.skip("tshark is not installed")
    path = tmp_path / "c.pcapng"
    path.write_bytes(b"".join(encoded(capture(slots()), known())))
    command: list[str] = [
        tshark,
        "-r",
        str(path),
        "-Tfields",
        "-eframe.time_epoch",
        "-eframe.len",
        "-eframe.comment",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[0].startswith("1700000000.123457789\t62\tpolicy flood")
    assert len(done.stdout.splitlines()) == 3


def test_a_capture_is_for_its_owner_alone(tmp_path: Path) -> None:
    name = saver(History(), str(tmp_path / "new"))(capture(slots()))
    assert name.endswith("/new/capture-flood-20231114T221320.123456Z.pcapng")
    assert stat.S_IMODE(os.stat(name).st_mode) == 0o600
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot write .*/file/capture-flood-.*: Not a directory"):
        saver(History(), str(tmp_path / "file"))(capture(slots()))


@pytest.mark.parametrize("limit", ["MOST_FILES", "MOST_BYTES"])
def test_a_run_without_a_recording_writes_no_captures_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(captures, limit, 2 if limit == "MOST_FILES" else 717)
    recorded, save = saver(History(), str(tmp_path)), saver(History(), str(tmp_path), limited=True)
    for _ in range(3):
        recorded(capture(slots()))
    save(capture(slots()))
    save(capture(slots()))
    with pytest.raises(
        UsageError, match=r"has written 2 captures of .*B, its limit; with --record"
    ):
        save(capture(slots()))


def test_a_capture_without_packets_is_a_file_too() -> None:
    file = b"".join(encoded(capture(slots(0)), History()))
    assert not [*CaptureFile(io.BytesIO(file), "test")]
