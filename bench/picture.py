"""Draws docs/console.svg: the real console, on the lab and its traffic, seen after a while.

`python -I -m bench.picture`, as root. Textual exports the picture; nothing in it is made up.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from app.console.app import ConsoleApp
from app.lab import Lab
from bpf.attach import Hook
from probes.controller import Controller
from probes.flow import FlowFilter

PICTURE = Path(__file__).parents[1] / "docs" / "console.svg"
_SIZE = (120, 36)
_SECONDS = 40.0


async def _draw(controller: Controller, interface: str) -> str:
    def start() -> object:
        return controller.watch_flows(interface, interval=1.0, ingress=Hook.XDP)

    app = ConsoleApp(controller, start, interface, 1.0, FlowFilter())
    async with app.run_test(size=_SIZE) as pilot:
        await pilot.pause(_SECONDS)
        await pilot.press("j", "j", "enter")
        await pilot.pause(1.0)
        svg = app.export_screenshot()
    # Viewers without a browser's style sheets would drop leading blanks.
    return svg.replace("<text class", '<text xml:space="preserve" class')


def main() -> None:
    with Lab() as lab, Controller() as controller:
        lab.enter()
        svg = asyncio.run(_draw(controller, lab.interface))
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(svg, encoding="utf-8")
    print(f"{PICTURE.name}: {len(svg) / 1000:.0f} kB")


if __name__ == "__main__":
    main()
