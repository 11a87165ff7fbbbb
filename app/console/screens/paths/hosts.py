"""The traced paths of one host, or of the chosen hosts of a fleet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from app.console.live.paths import PathView
from app.console.live.state import Frame
from app.console.screens.paths.hop import PathKey
from app.console.screens.paths.model import Paths
from probes.path.traced import Traced

TracedByHost = Mapping[str, tuple[Traced, ...]]
"""Running traces by host; the only host of a console has an empty name."""


def path_views(frame: Frame) -> dict[str, PathView]:
    """Return the paths of a frame by host; the only host of a console has an empty name."""
    return {part.host: part.frame.paths for part in frame.hosts}


@dataclass(slots=True)
class PathHosts:
    """The paths of every shown host. Each host has its own clock, so no number is of two hosts."""

    models: dict[str, Paths] = field(default_factory=lambda: {"": Paths()})
    """By host, in the order of the fleet."""
    current: str = ""
    """The host that paths of the Overview are of."""

    def take(self, views: Mapping[str, PathView], traced: TracedByHost, current: str) -> None:
        """Take in the paths and the running traces of each host."""
        self.current = current
        self.models = {host: self.models.get(host) or Paths(host=host) for host in views}
        for host, view in views.items():
            self.models[host].take(view, traced.get(host, ()))

    def of_host(self, host: str) -> Paths:
        """Return the paths of a host; of an unknown host, none."""
        return self.models.get(host) or Paths(host=host)

    def of(self, key: PathKey | None) -> Paths:
        """Return the paths of the host of a key; of an unknown host, none."""
        return self.of_host(key.host if key is not None else "")

    @property
    def choices(self) -> tuple[PathKey, ...]:
        """The paths of all hosts."""
        return tuple(key for model in self.models.values() for key in model.choices)

    @property
    def edition(self) -> tuple[tuple[str, int], ...]:
        """Another one if the path list must be redrawn."""
        return tuple((host, model.edition) for host, model in self.models.items())

    def located(self, key: PathKey) -> PathKey:
        """Return a key with its host: a key without one is of the current host, or else of the
        first one that traces the destination, if any."""
        if key.host in self.models:
            return key
        keys = [replace(key, host=host) for host in self.models]
        keys.sort(key=lambda one: one.host != self.current)
        return next((one for one in keys if self.of(one).nearest(one.whole)), key)
