"""Changes on all chosen hosts of screen 7, questions to them, and the boxes with their answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from app.commands.remote import add_probe, set_policies
from app.console.dialogs.boxes import ListBox
from app.console.screen import ConsoleScreen
from app.console.tasks import Task
from app.fleet.plane import HostChoice
from app.fleet.planes import HostReport
from app.fleet.sums import FleetFlows, distinct
from bpf.errors import UsageError
from bpf.quantities import counted, duration, si
from probes.control_plane import ControlPlane
from widgets.table.rows import Column, Row, Rows
from widgets.tones import Tone


class ReportBox(ListBox[None]):
    """The outcome of a change on each of the chosen hosts."""

    help_text = "esc closes"
    columns: ClassVar = (
        Column("host", "Host", 16),
        Column("outcome", "Outcome", 50, grows=True),
        Column("seconds", "Took", 7, "right"),
    )

    def __init__(self, title: str, reports: Sequence[HostReport]) -> None:
        super().__init__()
        self._title, self._reports = title, reports

    @property
    def title_text(self) -> str:
        done = sum(one.error is None for one in self._reports)
        return f"{self._title}: done on {done} of {counted(len(self._reports), 'host')}"

    def rows(self) -> Rows:
        # Failures first: they need an answer.
        ordered = sorted(self._reports, key=lambda one: one.error is None)
        return Rows.of(
            Row(
                one.host,
                (one.host, "done" if one.error is None else str(one.error), duration(one.seconds)),
                (Tone.NORMAL, Tone.GOOD if one.error is None else Tone.BAD, Tone.MUTED),
            )
            for one in ordered
        )


class DistinctBox(ListBox[None]):
    """Distinct flows of the chosen hosts together, and of each."""

    help_text = (
        "A flow that several hosts see counts once. Hosts need the same seed:\n"
        "probedeck run --seed-file FILE. esc closes"
    )
    columns: ClassVar = (
        Column("host", "Host", 16),
        Column("flows", "Flows", 8, "right"),
        Column("band", "95 %", 15, "right"),
        Column("part", "In the sum", 30, grows=True),
    )

    def __init__(self, found: FleetFlows) -> None:
        super().__init__()
        self._found = found

    @property
    def title_text(self) -> str:
        found = self._found
        of = f"{found.merged} of {counted(len(found.hosts), 'host')}"
        return f"{si(found.estimate)} distinct flows of {of}, {_band(found.low, found.high)}"

    def rows(self) -> Rows:
        return Rows.of(
            Row(
                one.host,
                (one.host, si(one.estimate), _band(one.low, one.high), one.why_not or "yes"),
                (Tone.NORMAL, Tone.NORMAL, Tone.MUTED, Tone.WARN if one.why_not else Tone.GOOD),
            )
            for one in self._found.hosts
        )


def _band(low: float, high: float) -> str:
    return f"{si(low)}..{si(high)}"


class HostChanges:
    """Commands of screen 7 about all chosen hosts at once, each with a report a host."""

    def __init__(self, screen: ConsoleScreen, hosts: Callable[[], HostChoice]) -> None:
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
            self._change(f"policy {text}", lambda plane: set_policies(plane, text))
        else:
            from probes.monitor.policy.ready import menu

            title = f"A policy for {counted(len(self._hosts().chosen), 'host')}"
            example = "flood: flows > 500 -> heavy_hitters"
            self._screen.prompt.ask("host.policy", title, example, "", menu=menu())

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
