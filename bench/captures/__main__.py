"""Frames a second of `probedeck policy test`, and a day of a quiet link by `probedeck open`.

    sudo .venv/bin/python -I -m bench.captures [--frames 1000000] [--windows 43200]

The first capture has TCP, UDP and ICMP of 5,000 flows, 50,000 frames a second of capture time, and
the policies are those of examples/policies.toml. The second one is of a quiet link: some frames of
eight flows every other second, with all shipped policies. A day of it has 43,200 seconds with
frames, which become fewer windows.
"""

from __future__ import annotations

import argparse
import struct
import tempfile
import time
from pathlib import Path

from app.lab.capture import CaptureFile, open_capture
from app.lab.imported import record
from app.lab.policy_runner import PolicyRunner
from app.run.monitor import SHIPPED, policies_of
from bench.support.report import Report
from probes.monitor.policy import load

_POLICIES = Path(__file__).parents[2] / "examples" / "policies.toml"
_FLOWS = 5000
_RATE = 50_000
_SIZES = (60, 60, 590, 1514)
_TARGET = 200_000
_DAY_WINDOWS, _DAY_S = 43_200, 20
_HEADER = struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65535, 1)


def _frame(number: int) -> bytes:
    size, protocol = _SIZES[number % 4], (6, 6, 17, 1)[number // 4 % 4]
    source = struct.pack("!I", 0x0A000000 + number)
    ip = struct.pack("!BBHHHBBH", 0x45, 0, size - 14, 0, 0, 64, protocol, 0)
    ports = struct.pack("!HHIIBBH", 1024 + number, 443, 0, 0, 0x50, 0x10, 0)
    return (bytes(12) + b"\x08\x00" + ip + source + b"\x0a\xff\0\1" + ports).ljust(size, b"\0")


def _write(path: str, frames: int) -> None:
    every = [_frame(number) for number in range(_FLOWS)]
    with open(path, "wb") as file:
        file.write(_HEADER)
        for number in range(frames):
            seconds, rest = divmod(number, _RATE)
            data = every[number % _FLOWS]
            ns = rest * 1_000_000_000 // _RATE
            file.write(struct.pack("<4I", seconds, ns, len(data), len(data)) + data)


def _write_quiet(path: str, windows: int) -> None:
    with open(path, "wb") as file:
        file.write(_HEADER)
        for number in range(2 * windows):
            data = _frame(number * 7 % 8)
            file.write(struct.pack("<4I", number // 2 * 2, number % 2, len(data), len(data)) + data)


def _open_quiet(report: Report, windows: int) -> None:
    policies = policies_of(SHIPPED, (), ())[0].policies
    with (
        tempfile.TemporaryDirectory() as made,
        PolicyRunner(policies, joins=True) as runner,
    ):
        path = f"{made}/quiet.pcap"
        _write_quiet(path, windows)
        started = time.process_time()
        record([path], runner, f"{made}/record")
        rate = windows / (time.process_time() - started)
    day = _DAY_WINDOWS / rate
    report.target(
        f"a day of a quiet link, at most {_DAY_S} s of CPU",
        f"{rate:,.0f} such seconds/s; {day:.1f} s", day <= _DAY_S,
    )  # fmt: skip


def main() -> None:
    """Print the rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--windows", type=int, default=_DAY_WINDOWS)
    arguments = parser.parse_args()
    frames = arguments.frames
    report = Report(f"policies over a capture of {frames} frames")
    with tempfile.NamedTemporaryFile(suffix=".pcap") as file:
        _write(file.name, frames)
        started = time.perf_counter()
        with open_capture(file.name) as capture:
            read = sum(1 for _ in CaptureFile(capture, file.name))
        reading = time.perf_counter() - started
        report.row("reading the capture", f"{read / reading:,.0f} frames/s")
        with PolicyRunner(load(_POLICIES).policy) as runner:
            started = time.perf_counter()
            result = runner.run_file(file.name)
            running = time.perf_counter() - started
    rate = result.frames / running
    met = result.frames == frames and rate >= _TARGET
    report.target(
        f"policies, at least {_TARGET:,} frames/s", f"{rate:,.0f} frames/s; {running:.1f} s", met
    )
    _open_quiet(report, arguments.windows)
    report.end()


if __name__ == "__main__":
    main()
