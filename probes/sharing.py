"""Maps that several programs share: both directions of a probe, or several probes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from bpf.compiler import CompiledMap
from bpf.errors import UsageError
from probes.tables.map_layout import difference


@dataclass(slots=True)
class SharedMap:
    """One map; it exists while it has a user."""

    name: str
    """Name under which programs share it."""
    declared: CompiledMap
    fd: int
    users: list[str] = field(default_factory=list)
    """The probe of each use."""


class SharedMaps:
    """The shared maps of one controller. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._maps: dict[str, SharedMap] = {}
        """The maps for new users, by name."""

    def check(self, name: str, probe: str, declared: CompiledMap) -> None:
        """Raise UsageError if another probe uses a map of this name, with another layout."""
        with self._lock:
            found = self._maps.get(name)
            others = sorted({user for user in found.users if user != probe}) if found else []
            if found and others and (why := difference(found.declared, declared)):
                raise UsageError(
                    f"map {declared.spec.name} is shared as {name!r} with probe {others[0]}, and "
                    f"is another here: {why}",
                    hint="declare it alike, or share it under another name",
                )

    def declared(self, name: str) -> CompiledMap | None:
        """Return the declaration of the shared map `name`; None if no probe uses it."""
        with self._lock:
            found = self._maps.get(name)
            return found.declared if found else None

    def take(
        self, name: str, probe: str, declared: CompiledMap, make: Callable[[], int]
    ) -> SharedMap:
        """Return the map of this name. The caller must `release` it; `make` makes the first.

        If the layout changed and only `probe` has the map, its new generation gets a new one.
        Raises UsageError as `check` does.
        """
        with self._lock:
            self.check(name, probe, declared)
            found = self._maps.get(name)
            if found is None or difference(found.declared, declared):
                found = self._maps[name] = SharedMap(name, declared, make())
            found.users.append(probe)
            return found

    def restore(self, shared: SharedMap) -> None:
        """Offer an older map again after a roll-back, unless another probe uses a newer one."""
        with self._lock:
            later = self._maps.get(shared.name)
            if later is None or set(later.users) <= set(shared.users):
                self._maps[shared.name] = shared

    def release(self, shared: SharedMap, probe: str) -> None:
        """Release a map; the last release closes it."""
        with self._lock:
            shared.users.remove(probe)
            if shared.users:
                return
            os.close(shared.fd)
            if self._maps.get(shared.name) is shared:
                del self._maps[shared.name]
