"""The monitor under a controller: its policies, and the applications that they run."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Protocol

from bpf.errors import ProbedeckError
from probes.monitor.applications import catalog
from probes.monitor.control.culprits import Culprits, FlowWindows
from probes.monitor.control.tracing import TraceRequest, Tracing
from probes.monitor.engine import PolicyStatus, PolicyTransition
from probes.monitor.finding import Finding
from probes.monitor.info import ApplicationInfo, MonitorInfo, PolicyInfo
from probes.monitor.owners.window import LastOwners
from probes.monitor.policy import BUILT_IN, Policy, check_names, resolve
from probes.monitor.probe import MonitorProbe
from probes.snapshot import Event, History, Item

if TYPE_CHECKING:
    from probes.config.model import ProbeConfig
    from probes.monitor.applications.application import ApplicationProbe
    from probes.path.options import TracedFlow


class PathTraces(Protocol):
    """Path tracing of a controller."""

    def trace(self, destination: str, flow: TracedFlow) -> None: ...

    def untrace(self, destination: str, flow: TracedFlow) -> None: ...


class PacketKeeper(Protocol):
    """The packet ring of a controller."""

    def keep_for(self, name: str, filters: Sequence[str]) -> None: ...

    def drop(self, name: str) -> None: ...

    def freeze(self) -> None: ...

    def write_for(self, policy: str, seconds: float, culprit: Finding | None) -> None: ...


class Host(FlowWindows, Protocol):
    """Services of a controller."""

    history: History

    @property
    def packets(self) -> PacketKeeper: ...

    @property
    def paths(self) -> PathTraces: ...

    def publish(self, item: Item) -> None: ...

    def applications(self) -> Sequence[ApplicationProbe]: ...

    def load_application(self, config: ProbeConfig) -> None: ...

    def remove(self, name: str) -> object: ...

    def switch(self, name: str, on: bool) -> None: ...


class MonitorService:
    """One monitor with its applications and traces. Thread-safe; the controller's lock serialises
    changes."""

    def __init__(
        self,
        host: Host,
        probe: MonitorProbe,
        profiles: Mapping[str, tuple[str, ...]],
    ) -> None:
        self._host = host
        self._profiles = dict(profiles)
        self._traced: dict[str, TraceRequest] = {}
        """By policy, the flows that it traces while active."""
        self._ends = False
        """The last window, which may begin policies, loads no application."""
        owners = probe.owners.look = LastOwners(host.history)
        self._tracing = Tracing(
            host.history, host.paths.trace, host.paths.untrace, host.publish, owners
        )
        self.probe = probe
        probe.find = Culprits(host, probe).find
        probe.changed, probe.begins, probe.ends = self._follow, self._freeze, self._end

    def info(self) -> MonitorInfo:
        """State of the monitor, its policies and applications."""
        probe = self.probe
        running, wanted = probe.router.running(), probe.router.wanted()
        applications = {each.name: each for each in self._host.applications()}
        return MonitorInfo(
            probe.interface.name,
            probe.points()["ingress"].hook.value,
            probe.options.input,
            probe.options.bits,
            probe.options.interval,
            probe.offload,
            probe.policies(),
            tuple(
                ApplicationInfo(
                    name,
                    catalog.summary(applications[name].config),
                    name in running,
                    packets,
                    applications[name].ns,
                    name in wanted - running,
                )
                for name, packets in probe.router.given().items()
                if name in applications
            ),
            self._profiles,
            probe.suspended,
        )

    def set_policy(self, policy: Policy, *, late: bool = False) -> PolicyInfo:
        """Add a policy, or replace the one of this name; see ControlPlane. `late`: built-in
        applications are loaded when the policy becomes active."""
        loaded = [*self.probe.router.given()]
        check_names(policy, {*loaded, *BUILT_IN}, self._profiles)
        applications, traced = resolve(policy, self._profiles)
        with ExitStack() as undo:
            for name in () if late and policy.mode != "permanent" else applications:
                if name not in loaded:
                    self._load(name)
                    undo.callback(self._host.remove, name)
            before = {each.policy.name: each.policy for each in self.probe.policies()}
            undo.callback(self._keep, policy.name, before.get(policy.name))
            self._keep(policy.name, policy)
            self.probe.set_policy(policy, applications)
            undo.pop_all()
        self._wake()
        if policy.knows_owners:
            self._look_for_owners(policy)
        old = self._traced.get(policy.name)
        request = self._traced[policy.name] = TraceRequest(policy.name, policy.select, traced)
        info = self.policy(policy.name)
        if request != old and (traced or (old and old.count)):
            self._tracing.request(request if info.state.runs else TraceRequest(policy.name))
        return info

    def remove_policy(self, name: str) -> None:
        """Remove a policy, and end its traces."""
        self.probe.remove_policy(name)
        self._keep(name, None)
        self._wake()
        if self._traced.pop(name).count:
            self._tracing.request(TraceRequest(name))

    def policy(self, name: str) -> PolicyInfo:
        (found,) = (each for each in self.probe.policies() if each.policy.name == name)
        return found

    def active_policy(self, application: str) -> str:
        """Return the name of an active policy that runs an application, or an empty text."""
        for each in self.probe.policies():
            if each.state.runs and application in resolve(each.policy, self._profiles)[0]:
                return each.policy.name
        return ""

    def hold_applications(self, held: bool) -> None:
        """Give applications no packets, whatever policies are active, or give them again."""
        self.probe.router.hold(held)
        self._wake()

    def _wake(self) -> None:
        """Give outgoing packets to the applications that want them, while policies run these."""
        running, wanted = self.probe.router.running(), self.probe.router.wanted()
        for application in self._host.applications():
            name = application.name
            try:
                application.wake(name in running, held=name in wanted - running)
            except ProbedeckError as error:
                text = f"outgoing packets are not seen: {error.message}"
                self._host.publish(Event.now("warning", name, text))

    def _look_for_owners(self, policy: Policy) -> None:
        """Start the probe of sockets; without it, an event tells that the policy waits."""
        try:
            self._host.switch("sockets", True)
        except ProbedeckError as error:
            text = f"policy {policy.name} waits for owners: {error.message}"
            self._host.publish(Event.now("warning", self.probe.name, text))

    def _load(self, name: str) -> None:
        self._host.load_application(catalog.built_in(name, self.probe.interface.name))

    def _load_late(self, policies: Collection[str]) -> None:
        """Load the applications that policies lack; packets reach them from then on."""
        try:
            found = self.probe.policies()
        except OSError:
            return  # The monitor ended meanwhile.
        for each in found:
            wanted = resolve(each.policy, self._profiles)[0]
            if each.policy.name not in policies or not each.state.runs:
                continue
            for name in wanted:
                if name in self.probe.router.given():
                    continue
                try:
                    self._load(name)
                except ProbedeckError as error:
                    if self._ends:
                        return
                    text = f"policy {each.policy.name} runs without it: {error}"
                    self._host.publish(Event.now("warning", name, text))
        self._wake()

    def _keep(self, name: str, policy: Policy | None) -> None:
        """Keep the packets that a capture of the policy needs, and no others for it."""
        if policy and policy.capture:
            self._host.packets.keep_for(name, policy.select)
        else:
            self._host.packets.drop(name)

    def _end(self) -> None:
        self._ends = True
        self._tracing.close()
        for each in self.probe.policies():
            self._keep(each.policy.name, None)

    def _freeze(self, begun: Sequence[PolicyStatus]) -> None:
        """Freeze the ring before new packets overwrite those of before the alarm."""
        if any(each.policy.capture for each in begun):
            self._host.packets.freeze()

    def _follow(self, transitions: Sequence[PolicyTransition]) -> None:
        self._wake()
        loaded = self.probe.router.given()
        begun = {each.policy for each in transitions if each.begins}
        if not self._ends and any(
            each.policy.name in begun
            and not set(resolve(each.policy, self._profiles)[0]) <= loaded.keys()
            for each in self.probe.policies()
        ):
            # The poller, which calls this, must not wait for the verifier.
            start = partial(self._load_late, begun)
            threading.Thread(target=start, name="applications", daemon=True).start()
        for each in self.probe.policies():
            if each.policy.name in begun and (wanted := each.policy.capture):
                culprit = each.finding if wanted.culprit else None
                self._host.packets.write_for(each.policy.name, wanted.seconds, culprit)
        for transition in transitions:
            request = self._traced.get(transition.policy)
            if request and request.count:
                self._tracing.request(
                    request if transition.after.runs else TraceRequest(request.policy)
                )
