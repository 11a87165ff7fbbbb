"""A probe's finished windows in the history."""

from __future__ import annotations

from collections.abc import Sequence

from app.api.models import UnknownError
from probes.control_plane import ProbeInfo
from probes.snapshot import Snapshot


def find(kept: Sequence[Snapshot], info: ProbeInfo, number: int | None) -> tuple[Snapshot, ...]:
    """Return the tables of window `number`, or of the latest whole window.

    `kept` is oldest first. Raises UnknownError, which names the kept windows.
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
    """Tables by window number; if several probes had the name in turn, of the newest."""
    windows: dict[int, list[Snapshot]] = {}
    for snapshot in kept:
        if snapshot.probe == probe:
            if windows and snapshot.window < max(windows):
                windows.clear()
            windows.setdefault(snapshot.window, []).append(snapshot)
    return windows


def _is_whole(tables: Sequence[Snapshot], info: ProbeInfo) -> bool:
    """Whether all tables of a window are published.

    Metrics are published one by one, and another generation may have other metrics. The tables of
    a built-in probe are published together.
    """
    if not tables[0].is_metric or tables[0].generation != info.generation:
        return True
    return {f"{table.side}.{table.metric}" for table in tables}.issuperset(info.metrics)
