"""How fast a terminal takes in what is written, by its answers to a question after each piece.

What is written vanishes in buffers on its way, of many seconds' worth on a slow link: that a write
succeeds says nothing. So a question follows each piece, and no more goes out than the link carries
within a moment: a key's answer then never waits behind a long queue. A link that is far but wide is
no slow one: what counts is the time over the shortest there ever was.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

FIRST: Final = 4096
"""Bytes that may be on their way before anything is known."""
_LEAST = 256
_LITTLE = 2048
"""Bytes within a moment with which a screen takes a second or more."""
UNLIMITED: Final = 1 << 20
_NEAR = 0.05
"""Seconds within which a terminal that is no way off answers the first question."""
_UNSURE = 1.5
"""Seconds after which a terminal that has not answered is taken for one that never will; an answer
that comes later than that would be taken for that to a later question."""
_SHORT, _LONG = 0.2, 0.4
"""Seconds over the shortest time within which a piece should arrive."""
_FORGOTTEN = 5.0
"""Seconds after which an answer is no more waited for."""
_QUIET = 2
"""What took a time to arrive is followed by so many such times without an update."""
_SLOWEST = 5.0
"""Seconds between two updates at most."""


class LinkEstimator:
    """Bytes on their way to a terminal; `answered` may be called by another thread."""

    def __init__(self, window: int = FIRST) -> None:
        """`window` is how many bytes may be on their way at first."""
        self.first = window
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Begin anew, as after the terminal was somebody else's."""
        with self._lock:
            self.pause = 0.0
            """Seconds that two updates should be apart, for the link's sake; 0 if it is fast."""
            self._answers = False
            self._window = self.first
            self._on_the_way = 0
            self._pieces: deque[tuple[str, float, int, int]] = deque()
            """Of each piece: the question after it, when it was sent, its bytes, and those on their
            way with it."""
            self._shortest = float("inf")
            self._expected = False
            """Whether what is sent next belongs to an update."""
            self._since: float | None = None
            """When the update began that is on its way."""
            self._more = False
            """Whether a part of it is still to be sent."""

    @property
    def pending(self) -> bool:
        """Whether an answer may be still to come."""
        return bool(self._pieces)

    def room(self, now: float) -> int:
        """Bytes that may be sent at `now`, on any clock in seconds."""
        with self._lock:
            if self._pieces and now - self._pieces[0][1] > self._patience:
                self._pieces.clear()
                self._on_the_way = 0
                self._since = None
            if not (self._answers or self._pieces):
                return UNLIMITED
            return max(0, self._window - self._on_the_way)

    @property
    def slow(self) -> bool:
        """Whether it is known to carry little within a moment."""
        return self._answers and self._window < _LITTLE

    @property
    def _patience(self) -> float:
        return _FORGOTTEN if self._answers else _UNSURE

    @property
    def updating(self) -> bool:
        """Whether an update is on its way."""
        return self._since is not None

    def expect_update(self) -> None:
        """Take note that what is sent next is an update: how long it takes is what counts."""
        self._expected = True

    def sent(self, question: str, count: int, now: float, *, more: bool = False) -> None:
        """Take note of `count` bytes and a question after them; `more` has to wait for room."""
        with self._lock:
            if self._expected and self._answers and self._since is None:
                self._since = now
            self._expected = False
            self._on_the_way += count
            self._more = more
            self._pieces.append((question, now, count, self._on_the_way))

    def answered(self, question: str, now: float) -> None:
        """Take note that all until the first such question was drawn."""
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
        """Have as many bytes on their way as arrive within a moment."""
        if over > _LONG:
            self._window = max(_LEAST, int(together * _SHORT / over))
        elif over < _SHORT and 2 * together >= self._window:
            self._window = min(UNLIMITED, 2 * self._window)

    def _rest(self, busy: float) -> None:
        """Find how often to draw, where an update keeps the link busy for so many seconds."""
        wanted = min(_SLOWEST, (1 + _QUIET) * busy)
        # In steps, as the operator is told of it.
        if wanted > self.pause:
            self.pause = float(round(wanted))
        elif wanted < self.pause / 3:
            self.pause = float(int(self.pause / 2))
