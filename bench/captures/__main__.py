"""Frames a second of `probedeck policy test`, and a day of a quiet link by `probedeck open`.

The first capture has TCP, UDP and ICMP of 5,000 flows, 50,000 frames a second of capture time, and
the policies are those of examples/policies.toml. The second one is of a quiet link: some frames of
eight flows every other second, with all shipped policies. A day of it has 43,200 seconds with
frames, which become fewer windows.
"""

from __future__ import annotations

import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from app.lab.capture import CaptureFile, open_capture
from app.lab.imported import record
from app.lab.policy_runner import PolicyRunner
from app.run.monitor import SHIPPED, policies_of
from bench.flow import constant
from bench.runner.cases import Case, Effort, Group, at_least, at_most
from bpf.errors import ProbedeckError
from probes.monitor.policy import load

_POLICIES = Path(__file__).parents[2] / "examples" / "policies.toml"
_FLOWS = 5000
_RATE = 50_000
_SIZES = (60, 60, 590, 1514)
_TARGET = 1_000_000
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


def quiet(stack: ExitStack, effort: Effort) -> Iterator[Case]:
    windows = effort.of(_DAY_WINDOWS, 20)
    policies = policies_of(SHIPPED, (), ())[0].policies
    made = stack.enter_context(tempfile.TemporaryDirectory())
    runner = stack.enter_context(PolicyRunner(policies, joins=True))
    path = f"{made}/quiet.pcap"
    _write_quiet(path, windows)
    started = time.process_time()
    record([path], runner, f"{made}/record")
    day = (time.process_time() - started) * _DAY_WINDOWS / windows
    yield Case(f"a day of a quiet link, {_DAY_WINDOWS} seconds with frames", "s of CPU",
               constant(day), goal=at_most(_DAY_S))  # fmt: skip


def policies(stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """Frames a second, beside reading them alone."""
    frames = effort.of(1_000_000, 1000)
    file = stack.enter_context(tempfile.NamedTemporaryFile(suffix=".pcap"))  # noqa: SIM115
    _write(file.name, frames)
    runner = stack.enter_context(PolicyRunner(load(_POLICIES).policy))

    def read() -> float:
        started = time.perf_counter()
        with open_capture(file.name) as capture:
            count = sum(len(each.starts) for each in CaptureFile(capture, file.name).batches())
        return count / (time.perf_counter() - started)

    def run() -> float:
        started = time.perf_counter()
        result = runner.run_file(file.name)
        if result.frames != frames:
            raise ProbedeckError(f"policies saw {result.frames} of {frames} frames")
        return frames / (time.perf_counter() - started)

    name = f"policies over a capture, {frames} frames"
    yield Case(name, "frames/s", run, goal=at_least(_TARGET))
    yield Case(f"{name}, beside reading", "frames/s", run, read, "reading alone")


GROUPS = (Group("policies", policies, 3), Group("quiet", quiet, 1, warm=False))
