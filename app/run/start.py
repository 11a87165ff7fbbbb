"""Starting a run: probes, monitor, paths and API."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from app.exporters.delivery import Outputs
from app.outputs.owners.owner_join import ItemStream
from app.outputs.view import is_table
from app.recording.captures import saver
from app.run.monitor import SHIPPED
from app.run.options import USUAL_CPU, byte_count
from app.run.readiness import announced
from app.run.spec import RunSpec
from bpf.attach import group
from bpf.compiler import CompileError
from bpf.errors import CancelError, ProbedeckError
from probes.control.budget_keeper import BudgetKeeper
from probes.control.builtin_probes import FLOW_PROBE
from probes.control.controller import Controller
from probes.snapshot import Event, Item
from probes.switches import SWITCHES, ProbePlace
from probes.tunnels import Tunnels

if TYPE_CHECKING:
    from app.api.server.command_endpoints import CommandRunner
    from app.exporters.openmetrics.metric_state import MetricState
    from probes.monitor.options import MonitorOptions


def new_controller() -> tuple[Controller, ItemStream]:
    """Return a controller with outputs, and the stream that its tables share with them."""
    controller = Controller()
    controller.outputs = outputs = Outputs(controller)
    return controller, outputs.stream


def start(
    controller: Controller, spec: RunSpec, stack: ExitStack, *, first: float | None = None,
    over: Callable[[], None] = lambda: None, console: CommandRunner | None = None,
) -> None:  # fmt: skip
    """Start a run. Closing `stack` ends the API and the background activity. Raises ProbedeckError.

    `first` is the length of the flow probe's first window. Another thread calls `over` when the
    background activity ends. `console` runs the commands of API requests.
    """
    for config in spec.outputs:
        controller.outputs.add(config)
    metrics = _metrics(controller) if spec.api else None
    options = spec.options
    controller.allow_actions = options.allow_actions
    controller.configure_programs(
        byte_count("--probe-memory", options.probe_memory), options.flow.hook
    )
    controller.packets.options = replace(
        options.ring, tunnels=options.flow.tunnels != Tunnels.OUTER
    )
    folder = options.recording.record or (options.out if options.out != "-" else ".")
    limited = not options.recording.record
    controller.packets.save = saver(controller.history, folder, limited=limited)
    if options.memory:
        controller.memory_limit = byte_count("--memory", options.memory)
    if not options.only:
        controller.start(FLOW_PROBE, spec.interface, options.flow, first=first)
    if spec.interface:
        # The policies, which start below, may trace paths.
        controller.paths.configure(spec.interface, spec.path_options)
    if spec.monitor and spec.watches:
        watch = partial(_watch, controller, spec.interface, spec.monitor)
        _Later(controller, "monitor", "alarms", watch)
    elif spec.monitor:
        controller.watch_metrics(
            spec.interface,
            spec.monitor,
            policies=spec.policies.policies,
            profiles=spec.policies.profiles,
            applications=spec.policies.applications,
            late=options.policies == SHIPPED,
        )
    for switch in map(SWITCHES.__getitem__, spec.switches):
        if switch.place is ProbePlace.FLOWS and options.only:
            continue
        begin = partial(controller.switch, switch.name)
        if switch.is_late and (console is not None or spec.is_service):
            _Later(controller, switch.name, switch.option, partial(begin, True))
        else:
            begin(True)
    for probe in spec.probes:
        try:
            controller.add(probe, force=options.force)
        except CompileError as error:
            raise error.renamed(probe.files()) from None
    for address in spec.trace:
        from app.resolve import detour  # imports much of path tracing

        controller.trace(address, own=spec.own_flow)
        if words := detour(address, group.find(spec.interface)):
            controller.publish(Event.now("warning", "path", f"{address} {words}"))
    controller.read_only = "started with --read-only" if options.read_only else ""
    if spec.api:
        from app.api.server.listener import ApiListener

        stack.enter_context(ApiListener(controller, spec.api, console, metrics))
    if spec.beside:
        stack.enter_context(spec.beside(controller.publish, over))
    if share := options.budget:
        is_usual = options.cpu == USUAL_CPU
        keeper = BudgetKeeper(controller, share, draws=console is not None, is_usual=is_usual)
        stack.enter_context(keeper.running())
    stack.enter_context(announced(options.ready_file))


def _watch(controller: Controller, interface: str, options: MonitorOptions) -> None:
    """Start the monitor with the shipped policies. Their applications wait for the first alarm."""
    from probes.monitor.policy.ready import shipped

    controller.watch_metrics(interface, options, policies=shipped().policy, late=True)


def _metrics(controller: Controller) -> MetricState:
    """Return the series of metrics, which begin before the first window."""
    from app.exporters.openmetrics.metric_state import MetricState

    metrics = MetricState()
    controller.listen(metrics.take)
    return metrics


class _Later:
    """Starts a probe once the first window of flows has ended."""

    def __init__(
        self, controller: Controller, name: str, gives: str, begin: Callable[[], None]
    ) -> None:
        """`gives` names the feature that the run lacks if the start fails."""
        self._controller, self._name, self._gives = controller, name, gives
        self._begin, self._begun = begin, False
        controller.listen(self._hear)

    def _hear(self, item: Item) -> None:
        if not self._begun and is_table(item, "flow", ""):
            self._begun = True
            threading.Thread(target=self._start, name=self._name, daemon=True).start()

    def _start(self) -> None:
        try:
            self._begin()
        except CancelError:
            return  # The run ends.
        except ProbedeckError as error:
            text = f"no {self._gives}: {error}"
            self._controller.publish(Event.now("warning", self._name, text))
