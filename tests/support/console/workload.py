"""A console that shows made-up traffic: `python -I -m tests.support.console.workload WORKLOAD`."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from probes.snapshot import Snapshot
    from tests.support.console.feed import FakeController

FLOWS, DESTINATIONS, HOPS = 10_000, 10, 15
_HOPS_S = 0.25


def console(name: str) -> int:
    """Be the console, with a workload."""
    # As the command does: the console freezes what is imported, and enables collection.
    gc.disable()
    from app.console.app import ConsoleApp
    from probes.control_plane import ControlPlane
    from tests.support.console.feed import FakeController, Feeder

    controller = FakeController()
    make, interval = windows(name, controller)
    feeder = Feeder(controller, make, interval)

    def start() -> None:
        feeder.start()
        if name == "compile":
            threading.Thread(target=compile_again, daemon=True).start()

    plane = cast("ControlPlane", controller)
    app = ConsoleApp(lambda: plane, start, "eth0", first="flows", names=False)
    return app.run() or 0


def windows(
    name: str, controller: FakeController
) -> tuple[Callable[[int, int, int], Snapshot], float]:
    """The function that makes a workload's windows from number, start and end; and their interval
    in seconds."""
    import numpy as np

    from probes.flow.records import FLOW
    from tests.support.console.feed import Flows, Routes, hops_window, window

    if name == "hops":
        routes = Routes(DESTINATIONS, HOPS)
        controller.traces = routes.traced
        return lambda n, start, end: hops_window(routes.next(start, end), n, start, end), _HOPS_S
    if name == "idle":
        return lambda n, start, end: window(np.empty(0, FLOW), n, end_ns=end), 1.0
    flows = Flows(FLOWS, churn=name == "worst", paired=name in ("conversations", "hosts"))
    return lambda n, start, end: window(flows.next(end), n, end_ns=end), 1.0


def compile_again() -> None:
    """Compile and verify a program for ever, as `f5` does."""
    from bpf.abi import ProgType
    from bpf.compiler import Compiler

    source = Path("examples/sizes.c").read_text(encoding="utf-8")
    with Compiler() as compiler:
        while True:
            flags = ("-DHOOK_XDP=1", "-DLINK_ETHERNET=1")
            compiler.compile(source, ProgType.XDP, cflags=flags).close()


if __name__ == "__main__":
    sys.exit(console(sys.argv[1]))
