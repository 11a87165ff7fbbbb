"""Outputs in the console: added, watched and removed by commands, and told if they fail."""

from __future__ import annotations

import time
from dataclasses import replace

from app.console.dialogs.boxes import PolledBox
from app.console.screens.overview.screen import OverviewScreen
from app.exporters.kinds import parse
from bpf.errors import UsageError
from probes.reports import OutputConfig, OutputState, OutputStatus
from tests.app.console.fake import becomes, desk
from tests.app.console.fake_plane import FakePlane
from widgets.table.block import Block


class FakeOutputs:
    """Outputs that a test changes."""

    def __init__(self) -> None:
        self.running: dict[str, OutputStatus] = {}

    def status(self) -> tuple[OutputStatus, ...]:
        return tuple(self.running.values())

    def add(self, config: OutputConfig) -> OutputStatus:
        name = parse(config).kind.scheme
        self.running[name] = OutputStatus(
            name, config.url, OutputState.DELIVERING, "", time.time_ns(), 0, 0, 1_234_567, {}, 0
        )
        return self.running[name]

    def remove(self, name: str) -> OutputStatus:
        if name not in self.running:
            raise UsageError(f"no output {name!r}", hint="there are none")
        return self.running.pop(name)

    def close(self) -> None:
        """Nothing runs."""

    def fail(self, name: str, reason: str, undelivered: int) -> None:
        lost = {"queue full": undelivered}
        self.running[name] = replace(
            self.running[name], state=OutputState.FAILING, reason=reason, undelivered=lost,
            since_utc_ns=time.time_ns(),
        )  # fmt: skip


def plane() -> tuple[FakePlane, FakeOutputs]:
    made, outputs = FakePlane(), FakeOutputs()
    made.outputs = outputs
    return made, outputs


async def test_outputs_are_added_watched_and_removed_by_commands() -> None:
    controller, outputs = plane()
    async with desk(80, 24, controller) as console:
        await console.app.action_command("output.add ipfix://collector:4739?transport=tcp")
        await becomes(console, lambda: "ipfix" in outputs.running)
        await console.app.action_command("output.add ipfixx://collector:4739")
        await becomes(console, lambda: bool(console.complaints))
        assert "did you mean ipfix?" in console.complaints[-1]
        await console.app.action_command("output.list")
        await becomes(console, lambda: "1.23 M" in console.text)
        assert isinstance(console.app.screen, PolledBox)
        assert "ipfix://collector:4739?transport=tcp" in console.text
        outputs.fail("ipfix", "Connection refused", 2310)
        await becomes(console, lambda: "Connection refused" in console.text)
        assert "failing" in console.text
        assert "2310 queue full" in console.text
        await console.press("escape")
        await console.app.action_command("output.remove ipfix")
        await becomes(console, lambda: not outputs.running)
        await console.app.action_command("output.remove ipfix")
        await becomes(console, lambda: "no output 'ipfix'" in "".join(console.complaints))
        await console.app.action_command("output.list")
        await becomes(console, lambda: "No output runs" in console.text)


async def test_the_overview_tells_an_output_that_fails_and_leads_to_the_list() -> None:
    controller, outputs = plane()
    outputs.add(OutputConfig("ipfix://collector:4739"))
    outputs.fail("ipfix", "Connection refused", 2310)
    async with desk(120, 30, controller, first="overview") as console:
        await becomes(console, lambda: "Output ipfix fails: Connection refused" in console.text)
        (told,) = (line for line in console.lines if "Output ipfix fails" in line)
        assert "2.31 k records undelivered" in told
        assert told.rstrip().endswith("Outputs")
        screen = console.app.screen
        assert isinstance(screen, OverviewScreen)
        screen.query_one("#now", Block).focus()
        await console.press("enter")
        await becomes(console, lambda: isinstance(console.app.screen, PolledBox))
