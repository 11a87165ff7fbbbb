"""The traced paths of one host, or of the chosen hosts of a fleet, and filters of them."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from app.console.live.frames import Frame
from app.console.live.paths import PathView
from app.console.screens.paths.hop import HOP, PATH, PathKey
from app.console.screens.paths.model import Paths
from bpf.arrays import Array, Rows
from probes.filter import Filter, RowTable
from probes.filter.table import AddressNames
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


def path_table(hosts: PathHosts, names: AddressNames | None = None) -> RowTable:
    """Return the fields of PATHS, a row for each of `hosts.choices`."""
    rows = [hosts.of(choice).summary(choice) for choice in hosts.choices]
    return RowTable(np.array(rows, PATH), names=names)


def shown_paths(hosts: PathHosts, shown: Filter, names: AddressNames) -> tuple[PathKey, ...]:
    """Return the choices that pass; a destination passes with any of its flows."""
    choices = hosts.choices
    if not shown:
        return choices
    passed = set()
    several = {choice.whole for choice in choices if choice.flow is not None}
    mask = shown.mask(path_table(hosts, names)).tolist()
    for choice, passes in zip(choices, mask, strict=True):
        if passes and (choice.flow is not None or choice not in several):
            passed |= {choice, choice.whole}
    return tuple(choice for choice in choices if choice in passed)


def shown_hops(hops: Rows[HOP], destination: str, shown: Filter, names: AddressNames) -> Array:
    """Return the hops that pass; the destination has the number behind its last router's."""
    if not shown:
        return hops
    responders = np.zeros(len(hops), [("version", "u1"), ("responder", "u1", (16,))])
    for row, hop in zip(responders, hops, strict=True):
        if hop["is_end"] or hop["routers"]:
            text = destination if hop["is_end"] else hop["routers"][0].address
            address = ipaddress.ip_address(text)
            row["version"] = address.version
            row["responder"] = np.frombuffer(address.packed.ljust(16, b"\0"), "u1")
    made = {
        "hop": lambda: np.where(hops["ttl"] > 0, hops["ttl"], np.nan),
        "rtt": lambda: hops["median"],
        "queue": lambda: hops["queue_ns"] / 1e9,
        "version": lambda: responders["version"],
        "responder": lambda: responders["responder"],
    }
    return hops[shown.mask(RowTable(hops, made, names=names))]
