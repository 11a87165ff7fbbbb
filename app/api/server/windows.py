"""A probe's finished windows, as the history still has them."""

from __future__ import annotations

from collections.abc import Sequence

from app.api.models import UnknownError
from probes.control_plane import ProbeInfo
from probes.snapshot import Snapshot


def find(kept: Sequence[Snapshot], info: ProbeInfo, number: int | None) -> tuple[Snapshot, ...]:
    """The tables of window `number`, or of the latest one that is whole.

    `kept` is oldest first. Raises UnknownError, naming what there is.
    """
    windows = _windows(kept, info.name)
    if not windows:
        raise UnknownError(f"no window of {info.name} has ended yet")
    if number is None:
        newest = max(windows)
        if not _is_whole(windows[newest], info):
            newest = max((n for n in windows if n < newest), default=newest)
        return tuple(windows[newest])
    if number not in windows:
        raise UnknownError(
            f"window {number} of {info.name} is not kept",
            hint=f"windows {min(windows)} to {max(windows)} are",
        )
    return tuple(windows[number])


def _windows(kept: Sequence[Snapshot], probe: str) -> dict[int, list[Snapshot]]:
    """By number; of the newest probe where more than one had the name, one after another."""
    windows: dict[int, list[Snapshot]] = {}
    for snapshot in kept:
        if snapshot.probe == probe:
            if windows and snapshot.window < max(windows):
                windows.clear()
            windows.setdefault(snapshot.window, []).append(snapshot)
    return windows


def _is_whole(tables: Sequence[Snapshot], info: ProbeInfo) -> bool:
    """Metrics are published one by one; those of another generation may have been others.

    A built-in probe's are published together.
    """
    if not tables[0].is_metric or tables[0].generation != info.generation:
        return True
    return {f"{table.side}.{table.metric}" for table in tables}.issuperset(info.metrics)
