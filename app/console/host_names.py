"""Host names of addresses, looked up by threads: the console never waits for a name server."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

from widgets.format import REPLACED, safe

_THREADS = 3
_LOOK_S = 0.02
"""Time between two checks whether all names are known."""
_WAITING = 256
"""Most addresses in the queue; the screens ask again for others."""
_KNOWN = 4096
"""Most addresses in the cache, with a name or without."""


class Names:
    """A cache of names, filled by daemon threads, for which the end of the program does not wait.

    A thread calls `found` after each new name.
    """

    def __init__(
        self, found: Callable[[], object],
        resolve: Callable[[str], str] = lambda address: socket.gethostbyaddr(address)[0],
        *, enabled: bool = True,
    ) -> None:  # fmt: skip
        self.enabled = enabled
        """Whether to look up names, and to return them."""
        self._found = found
        self._resolve = resolve
        self._names: OrderedDict[str, str] = OrderedDict()
        """Names by address; empty for no name, or not yet."""
        self._queue: queue.Queue[str] = queue.Queue(_WAITING)
        self._version = 0
        self._lock = threading.Lock()
        self._threads = 0

    @property
    def version(self) -> int:
        """Incremented with each new name."""
        return self._version if self.enabled else -1

    def name(self, address: str) -> str:
        """Return a name without control characters; look it up if unknown. Empty: no name yet."""
        if not self.enabled:
            return ""
        with self._lock:
            if (known := self._names.get(address)) is not None:
                self._names.move_to_end(address)
                return known
            try:
                self._queue.put_nowait(address)
            except queue.Full:
                return ""
            self._names[address] = ""
            if len(self._names) > _KNOWN:
                self._names.popitem(last=False)
            if self._threads < _THREADS:
                self._threads += 1
                threading.Thread(target=self._run, name="names", daemon=True).start()
        return ""

    def look_up(self, addresses: Iterable[str], seconds: float) -> None:
        """Look up addresses, and wait until all are known; at most this long."""
        deadline = time.monotonic() + seconds
        for address in addresses:
            while self._queue.full() and time.monotonic() < deadline:
                time.sleep(_LOOK_S)
            self.name(address)
        while self._queue.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(_LOOK_S)

    def _run(self) -> None:
        while True:
            address = self._queue.get()
            # The owner of the zone chooses the text, and the resolver raises many kinds of errors.
            with contextlib.suppress(OSError, UnicodeError):
                name = safe(self._resolve(address), REPLACED)
                with self._lock:
                    if address in self._names:
                        self._names[address] = name
                        self._version += 1
                self._found()
            self._queue.task_done()
