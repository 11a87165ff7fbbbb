"""Runs the policies of a fleet: asks its hosts, and activates their policies."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from operator import methodcaller
from typing import Any, Self

from app.api.client import RemotePlane
from app.fleet.hub import Hub
from app.fleet.plane import ChosenHosts
from app.fleet.planes import HostReport, ask_each
from app.fleet.policies import FleetPolicies, FleetTransition
from app.fleet.sums import AlignedSeconds, distinct
from app.outputs.view import is_table
from bpf.errors import UsageError
from probes.control_plane import ControlPlane
from probes.monitor import state as monitor
from probes.snapshot import Event, Item, Snapshot

_LOOK_S = 0.25
_PATIENCE_S = 5.0
"""Longest wait for the hosts that activate a policy; meanwhile no condition is evaluated."""
_SKETCH_S = 1.0
"""Longest wait for the distinct flows of the hosts."""
_AGAIN_S = 5.0
"""Seconds between two attempts to deactivate a policy on a host that is back."""


class FleetRunner:
    """Evaluates the policies of a fleet each second, over all hosts that are there.

    It begins with `with`, and ends the policies that are active then at the end. If a host is
    lost when its policy ends, it deactivates the policy at its return.
    """

    def __init__(self, hosts: ChosenHosts, hub: Hub) -> None:
        self._hosts, self._hub = hosts, hub
        self._policies = FleetPolicies(hosts.fleet.policies)
        self._remotes = {host.name: host.remote for host in hosts.fleet.hosts}
        self._planes: dict[str, RemotePlane] = {}
        self._owing: dict[str, set[str]] = {}
        """By host, the policies that it has not deactivated yet."""
        self._again_at = 0.0
        """The next attempt to deactivate them, `time.monotonic()`."""
        self._seconds = AlignedSeconds(self._remotes)
        self._lock = threading.Lock()
        """Of the seconds: the hub's thread adds to them."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fleet-policies", daemon=True)
        hub.listen(self._hear)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for plane in self._planes.values():
            plane.close()

    def _hear(self, host: str, item: Item) -> None:
        if isinstance(item, Snapshot) and is_table(item, monitor.PROBE, monitor.METRICS_TABLE):
            with self._lock:
                self._seconds.add(host, item, time.time_ns())

    def _run(self) -> None:
        try:
            while not self._stop.wait(_LOOK_S):
                self._look()
        except Exception as error:
            # A bug: it must not look like a quiet fleet.
            text = f"the fleet's policies ended: {type(error).__name__}: {error}"
            self._hosts.publish("", Event.now("error", "fleet", text))
        for transition in self._policies.end(time.time_ns()):
            self._apply(transition)

    def _look(self) -> None:
        counting = {one.name for one in self._hub.states() if one.state.counts}
        with self._lock:
            seconds = self._seconds.closed(counting, time.time_ns())
        flows = None
        if seconds and self._policies.need_flows:
            flows = distinct(self._ask(counting, lambda plane: plane.sketch(), _SKETCH_S))
        for second in seconds:
            for found in self._policies.judge(second, flows):
                if isinstance(found, Event):
                    self._hosts.publish("", found)
                else:
                    self._apply(found)
        if (back := self._owing.keys() & counting) and time.monotonic() >= self._again_at:
            self._again_at = time.monotonic() + _AGAIN_S
            for host in sorted(back):
                self._settle(host)

    def _apply(self, transition: FleetTransition) -> None:
        name, begins = transition.activated, transition.begins

        def call(plane: ControlPlane) -> object:
            return plane.activate_policy(name) if begins else plane.deactivate_policy(name)

        self._hosts.publish("", transition.event)
        reports = self._ask(transition.hosts, call, _PATIENCE_S)
        verb = "activate" if begins else "deactivate"
        self._hosts.last_change = f"{verb} {name} for {transition.policy.name}"
        self._hosts.reports = reports
        failed = [one for one in reports if one.error is not None]
        for host in transition.hosts:
            self._owing.get(host, set()).discard(name)
        if not begins:
            for one in failed:
                # A host that answers refuses, and would do so again.
                if not isinstance(one.error, UsageError):
                    self._owing.setdefault(one.host, set()).add(name)
        if failed:
            done = f"{verb} {name}: done on {len(reports) - len(failed)} of {len(reports)} hosts"
            text = f"{done}; {failed[0].host}: {failed[0].error}"
            self._hosts.publish("", Event.now("error", "fleet", text, transition.event.subject))

    def _settle(self, host: str) -> None:
        """Deactivate the policies on a host that was lost when they ended."""
        for name in sorted(self._owing[host]):
            call = methodcaller("deactivate_policy", name)
            (error,) = (one.error for one in self._ask((host,), call, _PATIENCE_S))
            if error is not None and not isinstance(error, UsageError):
                return
            self._owing[host].discard(name)
            severity, text = "info", f"{host} is back: {name} is deactivated there"
            if error is not None:
                severity, text = "error", f"{host} does not deactivate {name}: {error}"
            self._hosts.publish("", Event.now(severity, "fleet", text, f"policy {name}"))
        del self._owing[host]

    def _ask(
        self, hosts: Collection[str], call: Callable[[ControlPlane], Any], patience: float
    ) -> tuple[HostReport, ...]:
        for host in hosts:
            if host not in self._planes:
                self._planes[host] = RemotePlane(self._remotes[host])
        return ask_each({host: self._planes[host] for host in hosts}, call, patience)
