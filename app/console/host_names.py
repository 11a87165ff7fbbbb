"""Names of addresses, looked up beside everything else: nothing ever waits for a name server."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable

from widgets.format import REPLACED, safe

_THREADS = 3
_WAITING = 256
"""Addresses that wait for their turn at most; others are asked for again when they are seen."""
_KNOWN = 4096
"""Addresses that are remembered, with a name or without."""


def look_up(address: str) -> str:
    """The name of an address by the host's resolver; takes seconds, raises OSError."""
    return socket.gethostbyaddr(address)[0]


class Names:
    """A cache that fills itself from daemon threads, which the end of the program does not await.

    `found` is called by one of them, each time there is another name.
    """

    def __init__(
        self, found: Callable[[], object], resolve: Callable[[str], str] = look_up,
        *, enabled: bool = True,
    ) -> None:  # fmt: skip
        self.enabled = enabled
        """Whether names are looked up, and given, at all."""
        self._found = found
        self._resolve = resolve
        self._names: OrderedDict[str, str] = OrderedDict()
        """Empty for an address without a name, or whose name is not known yet."""
        self._queue: queue.Queue[str] = queue.Queue(_WAITING)
        self._version = 0
        self._lock = threading.Lock()
        self._threads = 0

    @property
    def version(self) -> int:
        """Another number whenever there are other names."""
        return self._version if self.enabled else -1

    def name(self, address: str) -> str:
        """What is known of it now, as harmless text; empty without a name. Asked for if unknown."""
        if not self.enabled:
            return ""
        with self._lock:
            known = self._names.get(address)
            if known is not None:
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

    def _run(self) -> None:
        while True:
            address = self._queue.get()
            # Whoever runs the zone chooses the text, and the resolver's errors are many.
            with contextlib.suppress(OSError, UnicodeError):
                name = safe(self._resolve(address), REPLACED)
                with self._lock:
                    if address in self._names:
                        self._names[address] = name
                        self._version += 1
                self._found()
