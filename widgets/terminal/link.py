"""The speed of the link to a terminal, from its answers to a query after each piece.

Written bytes vanish in buffers, of many seconds on a slow link, so a successful write says nothing.
Therefore a query follows each piece, and at most so much goes out as the link carries within a
moment: the answer to a key never waits behind a long queue. A long but fast link is not slow: the
estimate uses the time above the shortest round trip.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

FIRST: Final = 4096
"""Bytes that may be under way before the first answer."""
_LEAST = 256
_LITTLE = 2048
"""Bytes a moment below which a screen takes a second or more."""
UNLIMITED: Final = 1 << 20
_NEAR = 0.05
"""Seconds within which a near terminal answers the first query."""
_UNSURE = 1.5
"""Seconds after which a silent terminal counts as one that never answers; a later answer would be
taken for that to a later query."""
_SHORT, _LONG = 0.2, 0.4
"""Seconds above the shortest round trip within which a piece should arrive."""
_FORGOTTEN = 5.0
"""Seconds after which an answer is given up."""
_QUIET = 2
"""After an update that took t to arrive, leave the link idle for so many t."""
_SLOWEST = 5.0
"""Most seconds between two updates."""


class LinkEstimator:
    """The bytes under way to a terminal. Any thread may call `answered`."""

    def __init__(self, window: int = FIRST) -> None:
        """`window`: bytes that may be under way at first."""
        self.first = window
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Start over, as after another program had the terminal."""
        with self._lock:
            self.pause = 0.0
            """Seconds between two updates that spare the link; 0 if it is fast."""
            self._answers = False
            self._window = self.first
            self._on_the_way = 0
            self._pieces: deque[tuple[str, float, int, int]] = deque()
            """Of each piece: its query, time of sending, bytes, and bytes under way with it."""
            self._shortest = float("inf")
            self._expected = False
            """Whether the next piece belongs to an update."""
            self._since: float | None = None
            """Start of the update under way."""
            self._more = False
            """Whether parts of it are unsent."""

    @property
    def pending(self) -> bool:
        """Whether an answer may still come."""
        return bool(self._pieces)

    def room(self, now: float) -> int:
        """Return the bytes that may be sent at `now`, on any clock in seconds."""
        with self._lock:
            patience = _FORGOTTEN if self._answers else _UNSURE
            if self._pieces and now - self._pieces[0][1] > patience:
                self._pieces.clear()
                self._on_the_way = 0
                self._since = None
            if not (self._answers or self._pieces):
                return UNLIMITED
            return max(0, self._window - self._on_the_way)

    @property
    def slow(self) -> bool:
        """Whether the link is known to be slow."""
        return self._answers and self._window < _LITTLE

    @property
    def updating(self) -> bool:
        """Whether an update is under way."""
        return self._since is not None

    def expect_update(self) -> None:
        """Begin an update with the next piece; its duration counts."""
        self._expected = True

    def sent(self, question: str, count: int, now: float, *, more: bool = False) -> None:
        """Note `count` sent bytes and a query after them; `more`: the rest waits."""
        with self._lock:
            if self._expected and self._answers and self._since is None:
                self._since = now
            self._expected = False
            self._on_the_way += count
            self._more = more
            self._pieces.append((question, now, count, self._on_the_way))

    def answered(self, question: str, now: float) -> None:
        """Note that the terminal has drawn everything up to the first such query."""
        with self._lock:
            if all(question != asked for asked, *_ in self._pieces):
                return
            while True:
                asked, began, count, together = self._pieces.popleft()
                self._on_the_way -= count
                if asked == question:
                    break
            taken = now - began
            if not self._answers and taken < _NEAR:
                self._window = UNLIMITED
            self._answers = True
            self._shortest = min(self._shortest, taken)
            self._fit(taken - self._shortest, together)
            if self._since is not None and not self._pieces and not self._more:
                self._rest(now - self._since - self._shortest)
                self._since = None

    def _fit(self, over: float, together: int) -> None:
        """Set the window to the bytes that arrive within a moment."""
        if over > _LONG:
            self._window = max(_LEAST, int(together * _SHORT / over))
        elif over < _SHORT and 2 * together >= self._window:
            self._window = min(UNLIMITED, 2 * self._window)

    def _rest(self, busy: float) -> None:
        """Set the time between updates, given the seconds that one keeps the link busy."""
        wanted = min(_SLOWEST, (1 + _QUIET) * busy)
        # In steps, as the user sees it.
        if wanted > self.pause:
            self.pause = float(round(wanted))
        elif wanted < self.pause / 3:
            self.pause = float(int(self.pause / 2))
