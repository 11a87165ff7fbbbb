"""Keeps the selections of policies that know owners up to date, window by window."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from socket import IPPROTO_TCP, IPPROTO_UDP

import numpy as np

from bpf.arrays import Array, Rows, halves
from bpf.errors import UsageError
from probes.filter.conjunction import (
    SIZES,
    WIDTHS,
    Conjunction,
    Dimension,
    NumberSet,
    Prefix,
    PrefixSet,
    Set,
    merged,
)
from probes.flow.records import hash_keys
from probes.monitor.owners.text import is_of_owners
from probes.monitor.owners.window import OwnerWindow
from probes.monitor.policy.model import Policy
from probes.monitor.router import PolicyRouter
from probes.monitor.selected import Estimate, SelectedMetric
from probes.monitor.selection import conjunctions_of
from probes.monitor.state import PROBE
from probes.snapshot import Event
from probes.sockets.records import SOCKET, By

FRESH_NS = 10_000_000_000
"""Age up to which a window of owners counts: longer than two windows of usual length."""
PATIENCE = 5
"""Windows without owners before an event reports it."""


@dataclass(frozen=True, slots=True)
class _Followed:
    """A policy that knows owners, and its selection in the kernel."""

    policy: Policy
    applications: tuple[str, ...]
    sockets: Mapping[str, OwnSockets]
    """By filter of owners."""
    selected: tuple[Conjunction, ...] = ()


class OwnerFollower:
    """Policies of a router; some select packets by owner. Protected by the monitor's lock."""

    def __init__(self, router: PolicyRouter) -> None:
        self._router = router
        self.look: Callable[[], OwnerWindow | None] = lambda: None
        """Returns the last window of the socket probe."""
        self._followed: dict[str, _Followed] = {}
        self._window: OwnerWindow | None = None
        self._missing = 0
        """Windows without owners, though a policy knows some."""
        self._refused: dict[str, str] = {}
        """By policy, why its selection was not renewed."""
        self._events: list[Event] = []

    def set_policy(self, policy: Policy, applications: Sequence[str]) -> None:
        """As `PolicyRouter.set_policy`; a policy of owners selects the present owners."""
        self._window = self.look()
        sockets = {text: OwnSockets() for text in policy.select if is_of_owners(text)}
        new = self._renewed(_Followed(policy, tuple(applications), sockets))
        self._router.set_policy(policy.name, applications, new.selected)
        self._followed.pop(policy.name, None)
        self._refused.pop(policy.name, None)
        if policy.knows_owners:
            self._followed[policy.name] = new

    def remove_policy(self, name: str) -> None:
        self._router.remove_policy(name)
        self._followed.pop(name, None)
        self._refused.pop(name, None)

    def end_window(
        self, metrics: Iterable[SelectedMetric], seconds: float
    ) -> dict[SelectedMetric, Estimate]:
        """Renew the selections by the last owners. Return the metrics of owners in that
        window; empty if the window is unknown."""
        if not self._followed:
            return {}
        window = self.look()
        stale = window is None or time.monotonic_ns() - window.end_ns > FRESH_NS
        self._missing = self._missing + 1 if stale else 0
        if self._missing == PATIENCE:
            names = ", ".join(self._followed)
            text = f"{names}: owners are unknown: the probe sockets does not run, or is cut (--cpu)"
            self._events.append(Event.now("warning", PROBE, text))
        if window is None or stale:
            return {}
        if window is not self._window:
            self._window = window
            self._renew()
        return {metric: window.value(metric, seconds) for metric in metrics if metric.of_owners}

    def events(self) -> list[Event]:
        """Return the events since the last call."""
        found, self._events = self._events, []
        return found

    def _renew(self) -> None:
        for name, old in self._followed.items():
            new = self._renewed(old)
            if new.selected == old.selected:
                continue
            try:
                self._router.set_policy(name, new.applications, new.selected)
            except UsageError as error:
                if self._refused.get(name) != error.message:
                    self._refused[name] = error.message
                    text = f"{name}: its owners are selected as before: {error}"
                    self._events.append(Event.now("warning", PROBE, text))
                continue
            self._refused.pop(name, None)
            self._followed[name] = new

    def _renewed(self, old: _Followed) -> _Followed:
        """Return a policy with the selection for the owners of now."""
        window, packets = self._window, [x for x in old.policy.selected if x not in old.sockets]
        found = list(conjunctions_of(packets)) if packets or not old.sockets else []
        for text, sockets in old.sockets.items():
            if window:
                own = window.owned_by(text)[1]
                rows = window.sockets
                found += sockets.conjunctions(rows[own], rows[~own], window.end_ns)
        return replace(old, selected=merged(found))


MAX_ADDRESSES = 1024
"""Other ends of an owner's connections. If there are more, its own ports alone select them."""
REMEMBER_NS = 300_000_000_000
"""Time for which a service without packets is remembered."""
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LISTENS = 10
"""TCP's state of a listener."""


class OwnSockets:
    """Sockets of one owner, window by window. Ports of its services are remembered."""

    def __init__(self) -> None:
        self._services = np.empty(0, SOCKET)
        self._seen_ns = np.empty(0, "i8")

    def conjunctions(self, own: Array, others: Array, end_ns: int) -> tuple[Conjunction, ...]:
        """Return the owner's incoming packets: two conjunctions a protocol.

        One has the ports of services, from any sender, so new connections are selected at once. The
        other has the tuples of connections, and each part is a set: nearly no packet of another
        process has all parts. `own` (n,) and `others` (m,) are the window's sockets, dtype SOCKET,
        of this owner and of other ones; others take over the ports of services.
        """
        serves = _serves(own)
        self._remember(own[serves], others, end_ns)
        return tuple(_conjunctions(self._services, own[~serves]))

    def _remember(self, services: Array, others: Array, end_ns: int) -> None:
        now = _near_keys(services)
        keys = np.concatenate([now, _near_keys(self._services)])
        rows = np.concatenate([services, self._services])
        seen_ns = np.concatenate([np.full(len(services), end_ns, "i8"), self._seen_ns])
        taken = np.isin(keys, _near_keys(others)) & ~np.isin(keys, now)
        kept = np.flatnonzero(~taken & (seen_ns > end_ns - REMEMBER_NS))
        # Of equal keys the first one, which is the newest.
        first = kept[np.unique(keys[kept], return_index=True)[1]]
        self._services, self._seen_ns = rows[first], seen_ns[first]


def _serves(sockets: Rows[SOCKET]) -> Array:
    """Return which sockets (n,) are on a port of a service: bool (n,)."""
    first, last = map(int, _EPHEMERAL.read_text(encoding="ascii").split())
    ports = sockets["near_port"].astype("u4")
    serves = (sockets["by"] == By.LISTENER) | (sockets["state"] == _LISTENS)
    serves |= (ports < first) | (ports > last)
    keys = _near_keys(sockets)
    return np.isin(keys, keys[serves])


def _near_keys(sockets: Rows[SOCKET]) -> Array:
    """Return hashes of the near ends (n,) u8."""
    words = np.empty((len(sockets), 3), "u8")
    words[:, :2] = halves(sockets["near"])
    words[:, 2] = sockets["near_port"].astype("u8") << np.uint64(16)
    words[:, 2] |= sockets["protocol"].astype("u8") << np.uint64(8)
    words[:, 2] |= sockets["version"]
    found: Array = hash_keys(words)
    return found


def _conjunctions(services: Rows[SOCKET], connections: Rows[SOCKET]) -> Iterator[Conjunction]:
    for protocol in (IPPROTO_TCP, IPPROTO_UDP):
        if len(rows := services[services["protocol"] == protocol]):
            yield _conjunction(protocol, rows)
        if len(rows := connections[connections["protocol"] == protocol]):
            more: dict[Dimension, Set] = {Dimension.SOURCE_PORT: _numbers(rows["far_port"])}
            others = _addresses(rows, "far")
            if len(others.steps) <= MAX_ADDRESSES:
                more[Dimension.SOURCE] = others
            yield _conjunction(protocol, rows, more)


def _conjunction(
    protocol: int, rows: Rows[SOCKET], more: dict[Dimension, Set] | None = None
) -> Conjunction:
    return Conjunction.of({
        Dimension.PROTOCOL: NumberSet(SIZES[Dimension.PROTOCOL], 1 << protocol),
        Dimension.DESTINATION_PORT: _numbers(rows["near_port"]),
        Dimension.DESTINATION: _addresses(rows, "near"),
        **(more or {}),
    })  # fmt: skip


def _numbers(ports: Array) -> NumberSet:
    among = np.zeros(1 << 16, bool)
    among[ports.astype("u4")] = True
    packed = np.packbits(among, bitorder="little").tobytes()
    return NumberSet(1 << 16, int.from_bytes(packed, "little"))


def _addresses(rows: Rows[SOCKET], end: str) -> PrefixSet:
    prefixes: list[Prefix] = []
    for version, width in WIDTHS.items():
        raw = rows[end][rows["version"] == version]
        prefixes += (
            (version, int.from_bytes(one.tobytes()[: width // 8], "big"), width)
            for one in np.unique(raw, axis=0)
        )
    return PrefixSet(tuple((prefix, 1) for prefix in sorted(prefixes)))
