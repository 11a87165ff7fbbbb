"""Starting what one run of probedeck watches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from app.run.spec import Watch
from bpf.compiler import CompileError
from probes.control.controller import Controller
from probes.flow.filter import FlowFilter
from probes.snapshot import Event

if TYPE_CHECKING:
    from app.api.server.command_endpoints import CommandRunner


def start(
    controller: Controller, watch: Watch, stack: ExitStack, *, first: float | None = None,
    over: Callable[[], None] = lambda: None, console: CommandRunner | None = None,
) -> None:  # fmt: skip
    """Start all of it; `stack` ends what is not the controller's. Raises ProbedeckError.

    `first` is how long the first window of the flow probe lasts; `over` is called by another thread
    when what goes on beside it is over; `console` does the commands that the API is asked for.
    """
    controller.limit_maps(watch.probe_memory)
    if watch.memory:
        controller.memory_limit = watch.memory
    if watch.flows:
        controller.watch_flows(
            watch.interface,
            interval=watch.interval,
            ingress=watch.ingress,
            capture=FlowFilter.parse(watch.capture),
            first=first,
        )
    if watch.interface:
        # Before policies, which may trace paths.
        controller.configure_paths(watch.interface, watch.ingress, watch.paths)
    if watch.monitor:
        controller.watch_metrics(
            watch.interface,
            watch.monitor,
            policies=watch.policies.policies,
            profiles=watch.policies.profiles,
            applications=watch.policies.applications,
        )
    for probe in watch.probes:
        try:
            controller.add(probe, force=watch.force)
        except CompileError as error:
            raise error.renamed(probe.files()) from None
    for address in watch.trace:
        controller.trace(address)
    controller.read_only = watch.read_only
    if watch.api:
        from app.api.server.listener import serve

        stack.enter_context(serve(controller, watch.api, console))
        if watch.api.address and (reason := controller.unconfined()):
            text = f"the compile helper is not confined ({reason}): no sources by TCP"
            controller.publish(Event.now("warning", "api", text))
    if watch.beside:
        stack.enter_context(watch.beside(controller.publish, over))
