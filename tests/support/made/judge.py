"""Judges alarms: whether a policy tells an attack, and names its culprit and victim."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import numpy as np

from app.lab.frames import CapturedFrame, FrameBatch
from app.lab.frames.windows import Told
from app.lab.policy_runner import CaptureResult, PolicyRunner
from tests.support.made.traffic import Random, Rows, frames


def generator(name: str) -> Random:
    """Return random numbers that are the same in every run."""
    return np.random.default_rng(zlib.crc32(name.encode()))


def fired(result: CaptureResult) -> dict[str, Told]:
    """Return the first alarm of each policy."""
    begun = [told for told in result.told if told.transition.begins]
    return {told.transition.policy: told for told in reversed(begun)}


def alarms_of(runner: PolicyRunner, capture: Iterable[CapturedFrame]) -> dict[str, Told]:
    """Return the first alarm of each policy over frames."""
    made = list(capture)
    return fired(runner.run([FrameBatch.of(made)] if made else ()))


def alarms(runner: PolicyRunner, rows: Rows) -> dict[str, Told]:
    """Return the first alarm of each policy over made packets."""
    return alarms_of(runner, frames(rows))


def named(told: Told, source: str, destination: str) -> bool:
    """Whether the finding has the culprit first, and the victim first; empty: any."""
    finding = told.finding
    if finding is None:
        return False
    sides = ((source, finding.sources), (destination, finding.destinations))
    return all(not name or (side.top and side.top[0].name == name) for name, side in sides)
