"""A console over made-up windows, and its screen."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import numpy as np
from textual.pilot import Pilot

from app.config.model import Settings
from app.console.app import ConsoleApp
from app.console.screens.flows.screen import FlowsScreen
from bpf.arrays import Array
from probes.control_plane import ControlPlane
from probes.flow.records import FLOW, FlowDirection
from probes.snapshot import Loss, LossReason
from tests.app.console.fake_plane import FakePlane
from tests.support.console.feed import FakeController, window
from widgets.table.table import VirtualTable
from widgets.terminal.compositor import DiffScreen


def flow(number: int, kbit: float, *, proto: int = 6, ago: float = 0.0, size: int = 1000) -> Array:
    """One row of dtype FLOW (1,): 10.0.0.<number>:<40000 + number> to 192.0.2.1:443, inwards.

    `kbit` are in a window of a second; `ago` is how many seconds before its end they came.
    """
    row = np.zeros(1, FLOW)
    row["source"][0, :4] = (10, 0, 0, number)
    row["destination"][0, :4] = (192, 0, 2, 1)
    row["source_port"], row["destination_port"] = 40000 + number, 443
    row["protocol"], row["version"], row["direction"] = proto, 4, FlowDirection.INGRESS
    row["tcp_flags"] = 0x12 if proto == 6 else 0
    row["bytes"] = round(kbit * 125)
    row["packets"] = max(1, round(kbit * 125 / size))
    row["first_ns"] = row["last_ns"] = -round(ago * 1e9)
    return row


def conversation(number: int, kbit_in: float, kbit_out: float, *, port: int = 443) -> Array:
    """Rows (2,) of both directions of 192.0.2.1:<40000 + number> with 10.0.0.<number>:<port>."""
    found = np.concatenate((flow(number, kbit_in), flow(number, kbit_out)), dtype=FLOW)
    found["source_port"][0], found["destination_port"][0] = port, 40000 + number
    for end, other in (("source", "destination"), ("destination", "source")):
        found[end][1], found[f"{end}_port"][1] = found[other][0], found[f"{other}_port"][0]
    found["direction"][1] = FlowDirection.EGRESS
    return found


class Desk:
    """An operator's console, and the hand that feeds it."""

    def __init__(self, app: ConsoleApp, controller: FakeController, pilot: Pilot[int]) -> None:
        self.app, self.controller, self.pilot = app, controller, pilot
        self.windows = 0
        self._start_ns = time.monotonic_ns()

    async def feed(self, *flows: Array, losses: dict[LossReason, Loss] | None = None) -> None:
        """Publish a window, one second after the last, and wait until the screen is still."""
        self.windows += 1
        end_ns = self._start_ns + self.windows * 10**9
        rows = np.concatenate(flows, dtype=FLOW) if flows else np.empty(0, FLOW)
        rows["first_ns"] += end_ns
        rows["last_ns"] += end_ns
        self.controller.publish(window(rows, self.windows, end_ns=end_ns, losses=losses))
        await self.still()

    async def still(self) -> None:
        await self.pilot.pause()

    async def press(self, *keys: str) -> None:
        # Pilot.press would wait for the screen a second time.
        await self.app._press_keys(keys)
        await self.pilot.pause()

    async def type(self, text: str) -> None:
        names = {
            ":": "colon",
            " ": "space",
            "/": "slash",
            "!": "exclamation_mark",
            ".": "full_stop",
        }
        await self.press(*(names.get(character, character) for character in text))

    @property
    def lines(self) -> list[str]:
        return cast("DiffScreen[object]", self.app.screen).text_lines

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def strip(self) -> str:
        return self.lines[0]

    @property
    def header(self) -> list[str]:
        return self.lines[1].replace("─", " ").split()

    @property
    def sources(self) -> list[int]:
        """Numbers of the flows in the table, from its top."""
        rows = (line.split() for line in self.lines[2:])
        return [int(row[2].split(":")[0].split(".")[-1]) for row in rows if row[:1] == ["in"]]

    @property
    def complaints(self) -> list[str]:
        """Messages in the corner; there they are broken into lines."""
        return [notification.message for notification in self.app._notifications]

    @property
    def table(self) -> VirtualTable:
        """The first visible table."""
        return next(table for table in self.app.screen.query(VirtualTable) if table.display)

    @property
    def under_cursor(self) -> str:
        """The source of the flow under the cursor."""
        return str(self.table.source.cells(self.table.cursor_index)[2])

    @property
    def detail(self) -> str:
        """The text of the detail pane; empty where it is closed."""
        screen = self.app.screen
        assert isinstance(screen, FlowsScreen)
        region = screen.detail.region
        return "\n".join(self.lines[region.y : region.bottom]) if screen.detail.is_open else ""


@asynccontextmanager
async def desk(
    width: int = 120,
    height: int = 40,
    controller: FakeController | None = None,
    settings: Settings | None = None,
    first: str = "flows",
    view: str = "directions",
) -> AsyncIterator[Desk]:
    """A console; `view` is screen 3's, if the console begins there."""
    controller = controller or FakePlane()
    plane = cast("ControlPlane", controller)
    app = ConsoleApp(
        lambda: plane, lambda: None, "eth0", first=first, names=False, settings=settings
    )
    async with app.run_test(size=(width, height), notifications=True) as pilot:
        await app.ready.wait()
        await pilot.pause()
        if first == "flows":
            await app.action_command(f"flow.view {view}")
        yield Desk(app, controller, pilot)


async def becomes(console: Desk, condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, console.text
        await console.pilot.pause(0.02)
