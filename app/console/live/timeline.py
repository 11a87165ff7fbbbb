"""Frames of the past, as many as fit into a number of bytes."""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from app.console.live.flows import LIVE, LiveView
from app.console.live.frames import Frame
from app.recording.frames import zstd

MAX_BYTES = 24 << 20
_LEVEL = -3
"""Of zstd: 10,000 flows take 5 ms, and a third of their bytes."""
_WORTH = 64 << 10
"""Bytes of rows that are packed."""
MAX_FRAMES = 1000


class Timeline:
    """A frame of each window of the last minutes, and ever fewer older ones, packed: `whole` gives
    the flows of a frame back.

    A full timeline drops the frame that leaves the smallest gap in proportion to its age: the
    first frame stays, and hours remain in coarse steps. Bytes shared by frames count once. Only
    one thread uses it.
    """

    def __init__(self, max_bytes: int = MAX_BYTES, max_frames: int = MAX_FRAMES) -> None:
        self._max_bytes = max_bytes
        self._max_frames = max_frames
        self._frames: list[Frame] = []
        self._at: list[float] = []
        """Their `at`, ascending."""
        self._views: dict[LiveView, LiveView] = {}
        """Flows of the newest frame as they came, and packed: the next frame may share them."""
        self._users: Counter[int] = Counter()
        """Number of uses of each object, by its id."""
        self.nbytes = 0
        """Bytes of all frames together."""

    @property
    def frames(self) -> tuple[Frame, ...]:
        """Oldest first."""
        return tuple(self._frames)

    def keep(self, frame: Frame) -> None:
        """Add the newest frame, unless the timeline has one of the same window.

        A window's owners are known after its flows: a frame with them takes the place of the first.
        """
        if frame.last is None or (self._at and frame.at < self._at[-1]):
            return
        if self._at and frame.at == self._at[-1]:
            if frame.owners is self._frames[-1].owners:
                return
            del self._at[-1]
            self._release((self._frames.pop(),))
        known, self._views = self._views, {}
        frame = self._packed(frame, known)
        self._frames.append(frame)
        self._at.append(frame.at)
        self._take((frame,))
        while self.nbytes > self._max_bytes or len(self._frames) > self._max_frames:
            if len(self._frames) == 1:
                return
            place, at = 0, np.array(self._at)
            if len(at) > 2:
                # The frame that is least apart from its neighbours, for its age.
                place = int(np.argmin((at[2:] - at[:-2]) / (at[-1] - at[1:-1]))) + 1
            del self._at[place]
            self._release((self._frames.pop(place),))

    def _packed(self, frame: Frame, known: Mapping[LiveView, LiveView]) -> Frame:
        flows = frame.flows
        if flows.rows.nbytes > _WORTH:
            self._views[flows] = known.get(flows) or replace(
                flows,
                rows=flows.rows[:0].copy(),
                packed=zstd.compress(flows.rows.tobytes(), _LEVEL),
            )
            flows = self._views[flows]
        parts = tuple(replace(part, frame=self._packed(part.frame, known)) for part in frame.parts)
        return replace(frame, flows=flows, parts=parts)

    def step(self, frame: Frame, by: int) -> Frame | None:
        """Return the frame `by` frames after `frame`, or before it if negative: at most the last
        one in that direction; None if `frame` is the last one."""
        if by > 0:
            return self._toward(frame, bisect_right(self._at, frame.at) + by - 1, by)
        return self._toward(frame, bisect_left(self._at, frame.at) + by, by)

    def move(self, frame: Frame, seconds: float) -> Frame | None:
        """Return a frame as `step` does, at least so many seconds away."""
        wanted = frame.at + seconds
        if seconds > 0:
            return self._toward(frame, bisect_left(self._at, wanted), seconds)
        return self._toward(frame, bisect_right(self._at, wanted) - 1, seconds)

    def back(self, frame: Frame, step: float, seconds: float) -> Iterator[Frame]:
        """Yield `frame` and earlier ones, at least `step` seconds apart, of the last `seconds`."""
        begin = frame.at - seconds
        found: Frame | None = frame
        while found is not None:
            yield found
            found = self.move(found, -step) if found.at - step > begin else None

    def _toward(self, frame: Frame, place: int, direction: float) -> Frame | None:
        if not self._frames:
            return None
        found = self._frames[max(0, min(place, len(self._frames) - 1))]
        return found if (found.at - frame.at) * direction > 0 else None

    def _take(self, items: Collection[object]) -> None:
        users = self._users
        fresh = {id(item): item for item in items if id(item) not in users}
        # In C: a frame may have thousands of them.
        users.update(map(id, items))
        for item in fresh.values():
            self.nbytes += _size(item)
            self._take(_parts(item))

    def _release(self, items: Collection[object]) -> None:
        users = self._users
        for one in map(id, items):
            users[one] -= 1
        for item in {id(item): item for item in items if not users[id(item)]}.values():
            del users[id(item)]
            self.nbytes -= _size(item)
            self._release(_parts(item))


def whole(frame: Frame) -> Frame:
    """Return a frame with the rows of its flows, for each host too."""
    flows = frame.flows
    if not flows.packed and not frame.parts:
        return frame
    if flows.packed:
        rows = np.frombuffer(zstd.decompress(flows.packed), LIVE)
        flows = replace(flows, rows=rows, packed=b"")
    parts = tuple(replace(part, frame=whole(part.frame)) for part in frame.parts)
    return replace(frame, flows=flows, parts=parts)


def _size(item: object) -> int:
    size = sys.getsizeof(item)
    if isinstance(item, np.ndarray) and not isinstance(item.base, np.ndarray | None):
        # Another object owns its memory, such as received bytes.
        size += item.nbytes
    return size


def _parts(item: Any) -> Collection[object]:
    if isinstance(item, tuple):
        return item
    if isinstance(item, np.ndarray):
        return (item.base,) if isinstance(item.base, np.ndarray) else ()
    return [getattr(item, name) for name in _fields(type(item))]  # type: ignore[arg-type]


@cache
def _fields(kind: Any) -> tuple[str, ...]:
    return tuple(part.name for part in fields(kind)) if is_dataclass(kind) else ()
