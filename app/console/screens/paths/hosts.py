"""The traced paths of one host, or of the chosen hosts of a fleet."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from app.console.live.chosen import several
from app.console.live.state import Frame
from app.console.protocol import Console
from app.console.screens.paths.hop import PathKey
from app.console.screens.paths.model import Paths, TracedByHost


@dataclass(slots=True)
class PathHosts:
    """The paths of every shown host. Each host has its own clock, so no number is of two hosts."""

    models: dict[str, Paths] = field(default_factory=lambda: {"": Paths()})
    """By host, in the order of the fleet."""
    current: str = ""
    """The host that paths of the Overview are of."""

    def take(self, console: Console, frame: Frame, traced: TracedByHost) -> None:
        """Arrange a frame by host and path."""
        hosts = several(console)
        self.current = hosts.current if hosts is not None else ""
        views = {"": frame.paths}
        if hosts is not None:
            views = {part.host: part.frame.paths for part in frame.parts}
        self.models = {host: self.models.get(host) or Paths(host=host) for host in views}
        for host, view in views.items():
            self.models[host].take(view, traced.get(host, ()))

    def of(self, key: PathKey | None) -> Paths:
        """Return the paths of the host of a key; of an unknown host, none."""
        host = key.host if key is not None else ""
        return self.models.get(host) or Paths(host=host)

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
