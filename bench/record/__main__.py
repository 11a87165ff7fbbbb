"""Recordings: bytes and CPU of a flow, the time to a moment, and a day of sums.

Flows are made up: a fifth of each window is new, volumes are Zipf's, times and ports are random.
The output of `--record` runs in this process: a run pays its CPU time and no more. A moment
is the frame of a console, built from the windows before it.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from app.console.live.day import RecordedDay, day_pieces
from app.console.live.recorded import RecordedFrames
from app.recording.reader import Recording
from app.recording.recorder import STATE_S
from app.recording.writer import SegmentWriter
from bench.flow import constant
from bench.runner.cases import Case, Effort, Group, at_most
from bpf.arrays import Array, Rows
from probes.flow.records import FLOW
from probes.snapshot import Snapshot
from tests.app.recording.made import BEGIN_NS, recorder
from tests.support.console.feed import window

MOST_BYTES = 12.0
"""Of a flow in a window."""
MOST_SHARE = 0.01
"""Of a core, at a window a second."""
MOST_SEEK_S = 0.3
MOST_DAY_S = 1.0
_NEW = 0.2
_MINUTES = 24 * 60


def made(count: int, chance: np.random.Generator) -> Rows[FLOW]:
    """New flows of a server with 1,024 addresses."""
    rows = np.zeros(count, FLOW)
    near = np.stack(
        [np.full(count, 10), np.zeros(count), chance.integers(0, 4, count),
         chance.integers(0, 256, count)], axis=1,
    )  # fmt: skip
    far = (np.minimum(chance.zipf(1.3, count), 20_000) * 2654435761 % (1 << 32)).astype(">u4")
    leaves = chance.integers(0, 2, count).astype(bool)
    ports = chance.choice([443, 443, 443, 80, 53, 22, 8443], count)
    ephemeral = chance.integers(32768, 61000, count)
    for name, mine, other in (("source", leaves, ~leaves), ("destination", ~leaves, leaves)):
        rows[name][mine, :4] = near[mine]
        rows[name][other, :4] = far.view("u1").reshape(count, 4)[other]
        rows[f"{name}_port"] = np.where(mine, ephemeral, ports)
    rows["protocol"], rows["version"] = np.where(ports == 53, 17, 6), 4
    rows["direction"], rows["interface"] = leaves, b"eth0"
    return rows


def windows(flows: int, count: int) -> Iterator[Snapshot]:
    chance = np.random.default_rng(1)
    rows: Array = made(flows, chance)
    for number in range(1, count + 1):
        new = chance.random(flows) < _NEW
        rows[new] = made(int(new.sum()), chance)
        rows["packets"] = np.minimum(chance.zipf(1.5, flows), 100_000)
        rows["bytes"] = rows["packets"] * chance.integers(60, 1460, flows)
        rows["tcp_flags"] = chance.choice([16, 24, 18, 2], flows)
        end_ns = number * 10**9
        seen = np.sort(chance.integers(0, 3800, (flows, 2)), axis=1) << 18
        rows["first_ns"], rows["last_ns"] = (end_ns - 10**9 + seen).T
        item = window(rows.copy(), number, end_ns=end_ns)
        yield replace(item, end_utc_ns=BEGIN_NS + end_ns)


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


def day(directory: Path) -> float:
    """Return the seconds in which a day of sums of minutes becomes the line of screen 6."""
    writer = SegmentWriter(directory, "1m", lambda _: None, "bench")
    for item in windows(256, _MINUTES):
        utc_ns = BEGIN_NS + item.window * 60 * 10**9
        writer.window(replace(item, end_utc_ns=utc_ns))
    writer.close()
    full = SegmentWriter(directory, "full", lambda _: None, "bench")
    full.window(replace(item, end_utc_ns=utc_ns))
    full.close()
    with Recording(str(directory)) as recording:
        begun = time.perf_counter()
        day_pieces(RecordedDay(recording).read(), utc_ns, 80)
        return time.perf_counter() - begun


def recording(stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """Write windows, seek moments of them at random, and read a day of sums."""
    flows, count, moments = effort.of((5000, 300, 20), (50, 5, 2))
    place = stack.enter_context(tempfile.TemporaryDirectory())
    directory, other = Path(place, "record"), Path(place, "day")
    other.mkdir()
    writer, used = recorder(directory), 0.0
    for item in windows(flows, count):
        begun = time.process_time()
        writer.deliver(item, 0)
        if item.window % STATE_S == 0:
            writer.look()
        used += time.process_time() - begun
    writer.close()
    name = f"a recording of {flows} flows a window"
    each = size_of(directory) / (flows * count)
    yield Case(f"{name}, {count} windows: a flow and window", "bytes", constant(each),
               goal=at_most(MOST_BYTES))  # fmt: skip
    yield Case(f"{name}: CPU at a window a second", "% of a core", constant(100 * used / count),
               goal=at_most(100 * MOST_SHARE))  # fmt: skip
    frames, chance, seeks = RecordedFrames(str(directory)), random.Random(2), []
    for _ in range(moments):
        moment = BEGIN_NS + chance.randrange(1, count) * 10**9
        begun = time.perf_counter()
        frames.at(moment)
        seeks.append(time.perf_counter() - begun)
    frames.close()
    yield Case(f"{name}, to a moment, median of {moments}", "s",
               constant(sorted(seeks)[len(seeks) // 2]))  # fmt: skip
    yield Case(f"{name}, to a moment, the longest of {moments}", "s", constant(max(seeks)),
               goal=at_most(MOST_SEEK_S))  # fmt: skip
    yield Case("a day of sums of minutes", "s", constant(day(other)), goal=at_most(MOST_DAY_S))


GROUPS = (Group("recording", recording, 1, warm=False),)
