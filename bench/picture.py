"""Draws the pictures in docs: the real console, on the lab and its traffic.

`python -I -m bench.picture`, as root. Textual exports the pictures; nothing in them is made up.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

from textual.pilot import Pilot

from app.console.app import ConsoleApp
from app.console.tables.export import svg
from app.lab.network import Lab
from app.run.monitor import Policies
from app.run.options import Options
from app.run.spec import RunSpec, probes_of
from app.run.start import start
from probes.control.controller import Controller
from probes.flow.options import FlowOptions
from probes.monitor.options import MonitorOptions
from probes.monitor.policy import Policy

_ROOT = Path(__file__).parents[1]
_SIZE = (120, 36)
_SECONDS = 40.0
_POLICIES = (
    "busy: rate(packets) > 800/s hold 5s -> heavy_hitters, trace:2",
    "flood: rate(flows) > 500/s cooldown 30s -> half_open, port_scan on proto:tcp",
    "dns: operator -> dns on port:53",
    "all: always -> accounting",
)
_EXAMPLES = [str(_ROOT / "examples" / name) for name in ("destinations.toml", "tcp-flags.toml")]


async def _draw(controller: Controller, lab: Lab) -> dict[str, str]:
    interface = lab.interface
    spec = RunSpec(
        interface, Options(flow=FlowOptions(ingress="xdp")),
        probes=probes_of(_EXAMPLES, interface, 1.0),
        trace=(lab.server_ipv4, lab.server_ipv6), monitor=MonitorOptions(),
        policies=Policies(tuple(map(Policy.parse_short, _POLICIES))),
    )  # fmt: skip
    with ExitStack() as stack:
        app = ConsoleApp(
            lambda: controller, lambda: start(controller, spec, stack), interface,
            names=False,
        )  # fmt: skip
        async with app.run_test(size=_SIZE) as pilot:
            await pilot.pause(_SECONDS)
            overview = svg(app)
            # Most flows of the lab are short, and would be over when the picture is drawn.
            rows = app.time.frame.flows.rows
            lasting = rows[rows["bit_rate"] > 0]
            await app.turn_to("flows", int(lasting["id"][lasting["packets"].argmax()]))
            await pilot.press("d")
            await pilot.pause(1.0)
            flows = svg(app)
            await pilot.press("escape", "2", "j", "j", "j", "enter")
            await _seen(pilot, "here, none before it")
            paths = svg(app)
            await pilot.press("escape", "4", "enter")
            await pilot.pause(1.0)
            triggers = svg(app)
            await _edit(app, pilot)
            programs = svg(app)
            return {
                "overview": overview, "console": flows, "paths": paths, "triggers": triggers,
                "programs": programs,
            }  # fmt: skip


async def _seen(pilot: Pilot[int], text: str) -> None:
    """Wait until there is something to be seen, such as a queue, which comes and goes."""
    for _ in range(60):
        await pilot.pause(0.5)
        strips = pilot.app.screen._compositor.render_strips()
        if any(text in strip.text for strip in strips):
            return
    raise TimeoutError(f"no {text!r} on the screen")


async def _edit(app: ConsoleApp, pilot: Pilot[int]) -> None:
    """Have the value of a map grow, and ask for the swap."""
    await app.action_command("program.edit destinations")
    await _seen(pilot, "destinations.egress.c")
    source = (_ROOT / "examples" / "destinations.c").read_text(encoding="utf-8")
    line = next(n for n, text in enumerate(source.split("\n")) if "u64 bytes;" in text)
    await pilot.press(*["down"] * line, "end", "enter", *"u64 largest;")
    await pilot.pause(2.0)
    await pilot.press("f8")
    await pilot.pause(2.0)
    await pilot.press("f3", "f3", "f3")
    await pilot.pause(1.0)


def main() -> None:
    with Lab() as lab, Controller() as controller:
        lab.enter()
        pictures = asyncio.run(_draw(controller, lab))
    for name, text in pictures.items():
        path = _ROOT / "docs" / f"{name}.svg"
        path.write_text(text, encoding="utf-8")
        print(f"{path.name}: {len(text) / 1000:.0f} kB")


if __name__ == "__main__":
    main()
