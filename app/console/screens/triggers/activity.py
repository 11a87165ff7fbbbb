"""When policies were active: bands of the last minutes, and advice against flapping."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from app.console.live.frames import MonitorView
from bpf.arrays import Rows
from bpf.quantities import age
from probes.monitor.condition.units import SUFFIXES
from probes.monitor.info import PolicyInfo
from probes.monitor.policy import Policy
from probes.monitor.records import POLICY
from probes.monitor.state import phase_of
from widgets.table.rows import Pieces
from widgets.tones import Tone

SPAN = 600
"""Seconds of a band."""
_FLAPS, _FLAPS_NS = 4, 60 * 10**9
"""A policy flaps if it fires so often in this time."""
_HOLDS = (5, 10, 15, 20, 30, 60, 120, 300, 600)
"""Seconds that are suggested for `hold`."""
_CALM = 3
"""A suggestion leaves at most one of so many firings."""
_ABOVE = re.compile(r"([^<>=]+) >=? [0-9.e+]+ ?([A-Za-z]*)(/s)?")
"""A comparison with a number, and the number's unit."""

Change = tuple[int, bool]
"""When a policy's applications began (True) or ended (False), CLOCK_MONOTONIC."""


def changes(view: MonitorView) -> dict[str, list[Change]]:
    """Return the begins and ends of each policy in the last SPAN seconds, oldest first."""
    found: dict[str, list[Change]] = {}
    since = view.policies[-1].end_ns - SPAN * 10**9 if view.policies else 0
    for snapshot in reversed(view.triggers):
        if snapshot.end_ns < since:
            break
        for row in snapshot.rows[::-1]:
            if phase := phase_of(row["before"], row["after"]):
                change = int(row["at_ns"]), phase == "begin"
                found.setdefault(row["policy"].decode(), []).append(change)
    return {name: made[::-1] for name, made in found.items()}


def band(view: MonitorView, info: PolicyInfo, made: Sequence[Change], cells: int) -> Pieces:
    """Return SPAN seconds in cells: █ active, ▁ not active, blank before the first window.

    `made` are the policy's changes.
    """
    if not view.policies:
        return ()
    length = SPAN * 10**9 // cells
    # Cells begin at round times, so that a band moves once in a cell's time.
    first = view.policies[-1].end_ns // length - cells + 1
    known = view.policies[0].start_ns // length - first
    begin = view.policies[0].start_ns if made[:1] and not made[0][1] else 0
    active = [False] * cells
    for at, runs_then in (*made, (view.policies[-1].end_ns, False)):
        if runs_then:
            begin = at
        elif begin or (info.state.runs and not made):
            begin = begin or view.policies[0].start_ns
            for place in range(max(0, begin // length - first), at // length - first + 1):
                if 0 <= place < cells:
                    active[place] = True
            begin = 0
    signs = ("█" if is_on else " " if place < known else "▁" for place, is_on in enumerate(active))
    parts = re.findall(r"█+|▁+| +", "".join(signs))
    tone = Tone.WARN if info.policy.mode == "triggered" else Tone.ACCENT
    return tuple((part, tone if part[0] == "█" else Tone.MUTED) for part in parts)


def advice(policy: Policy, made: Sequence[Change], now_ns: int, rows: Rows[POLICY]) -> str:
    """Return the firings of a flapping policy, and a remedy; empty for a calm policy.

    `rows`: its rows of dtype POLICY of the last minute.
    """
    begins = [at for at, runs in made if runs and now_ns - at <= _FLAPS_NS]
    if len(begins) < _FLAPS:
        return ""
    fitting = (hold for hold in _HOLDS if _CALM * _firings(begins, hold) <= len(begins))
    hold = next(fitting, _HOLDS[-1])
    ways = [f"hold {age(hold).replace(' ', '')}"] if hold > policy.hold else []
    ways += [f"until {until}"] if (until := _until(rows)) and not policy.deactivate else []
    seconds = math.ceil((begins[-1] - begins[0]) / 1e9)
    said = f"fired {len(begins)} times in {seconds} s"
    return f"{said}; {' or '.join(ways)} would calm it" if ways else said


def _firings(begins: Sequence[int], hold: int) -> int:
    """Return how often a policy had fired at these times with `hold` seconds."""
    count, until = 0, 0
    for at in begins:
        if at >= until:
            count, until = count + 1, at + hold * 10**9
    return count


def _until(rows: Rows[POLICY]) -> str:
    """Return a condition that no value of the rows meets: `rate(bytes) < 900kbit/s`."""
    comparison = rows["comparison"][-1].decode() if len(rows) else ""
    if (found := _ABOVE.fullmatch(comparison)) is None:
        return ""
    metric, suffix, per = found[1], found[2], found[3] or ""
    values = rows["value"][rows["comparison"] == rows["comparison"][-1]]
    lowest = float(np.nanmin(values, initial=math.inf))
    lowest /= SUFFIXES[suffix].scale if suffix in SUFFIXES else 1.0
    if not 0 < lowest < math.inf:
        return ""
    step = 10.0 ** (math.floor(math.log10(lowest)) - 1)
    return f"{metric} < {math.floor(lowest / step) * step:g}{suffix}{per}"
