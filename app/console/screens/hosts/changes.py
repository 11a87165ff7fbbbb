"""Questions to the chosen hosts of a fleet, and changes on all of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from app.commands.remote import add_probe, set_policy
from app.console.screen import ConsoleScreen
from app.console.screens.hosts.dialogs import DistinctBox, ReportBox
from app.console.tasks import Task
from app.fleet.distinct import distinct
from app.fleet.plane import ChosenHosts, HostReport
from bpf.errors import UsageError
from probes.control_plane import ControlPlane
from widgets.format import counted


class HostChanges:
    """Commands of screen 7 about all chosen hosts at once, each with a report a host."""

    def __init__(self, screen: ConsoleScreen, hosts: Callable[[], ChosenHosts]) -> None:
        self._screen, self._hosts = screen, hosts

    def _change(self, title: str, call: Callable[[ControlPlane], Any]) -> None:
        def done(reports: tuple[HostReport, ...]) -> None:
            self._screen.app.push_screen(ReportBox(title, reports))

        ask = partial(self._hosts().everywhere, title, call)
        self._screen.run_in_worker(ask, done, self._screen.console.complain, task=Task(title))

    def do_host_probe(self, file: str = "") -> None:
        if file:
            self._change(f"adding {file}", lambda plane: add_probe(plane, file))
        else:
            text = f"A probe for {counted(len(self._hosts().chosen), 'host')}"
            self._screen.prompt.ask("host.probe", text, "FILE.toml", "")

    def do_host_policy(self, text: str = "") -> None:
        if text:
            self._change(f"policy {text}", lambda plane: set_policy(plane, text))
        else:
            from probes.monitor.policy.ready import purposes

            title = f"A policy for {counted(len(self._hosts().chosen), 'host')}"
            example = "flood: flows > 500 -> heavy_hitters"
            self._screen.prompt.ask("host.policy", title, example, "", menu=purposes())

    def do_host_report(self) -> None:
        if not self._hosts().reports:
            raise UsageError("nothing was changed on the chosen hosts yet")
        self._screen.app.push_screen(ReportBox(self._hosts().last_change, self._hosts().reports))

    def do_host_distinct(self) -> None:
        def done(reports: tuple[HostReport, ...]) -> None:
            self._screen.app.push_screen(DistinctBox(distinct(reports)))

        ask = partial(self._hosts().ask, lambda plane: plane.sketch())
        self._screen.run_in_worker(
            ask, done, self._screen.console.complain, task=Task("distinct flows")
        )
