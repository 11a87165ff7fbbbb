"""A probe's finished windows in the history."""

from __future__ import annotations

from collections.abc import Sequence

from app.api.models import UnknownError
from app.outputs.owners.owner_join import with_owners
from app.outputs.view import is_table
from probes.control_plane import ProbeInfo
from probes.snapshot import Snapshot


def find(kept: Sequence[Snapshot], info: ProbeInfo, number: int | None) -> tuple[Snapshot, ...]:
    """Return window `number`, or the last whole one; `kept`: oldest first. Raises UnknownError."""
    windows: dict[int, list[Snapshot]] = {}
    for snapshot in kept:
        if snapshot.probe == info.name:
            # If several probes had the name in turn, the newest counts.
            if windows and snapshot.window < max(windows):
                windows.clear()
            windows.setdefault(snapshot.window, []).append(snapshot)
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


def find_flows(kept: Sequence[Snapshot], info: ProbeInfo, number: int | None) -> Snapshot:
    """Return a window of flows as `find` does, with its owners if it has some.

    Owners come a moment after their flows: the last window is the one before while they do.
    """
    flows = next(table for table in find(kept, info, number) if not table.metric)
    found = with_owners(flows, kept)
    if number is None and found is flows:
        for item in kept:
            if is_table(item, info.name, "") and item.window == flows.window - 1:
                before = with_owners(item, kept)
                return before if before is not item else flows
    return found


def _is_whole(tables: Sequence[Snapshot], info: ProbeInfo) -> bool:
    # Metrics are published one by one, and another generation may have other metrics.
    if not tables[0].is_metric or tables[0].generation != info.generation:
        return True
    return {f"{table.side}.{table.metric}" for table in tables}.issuperset(info.metrics)
