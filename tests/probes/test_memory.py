"""Kernel memory: what a removed probe gives back, and the limit that all probes share."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from app.lab import netns
from bpf.compiler import Compiler
from probes import controller as controllers
from probes.controller import Controller
from tests.compiling import Shared
from tests.probes.program.tools import held_ids

START: dict[str, Callable[[Controller, str], object]] = {
    "flow": lambda controller, name: controller.watch_flows(name, interval=0.05),
    "monitor": lambda controller, name: controller.watch_metrics(name),
    "path": lambda controller, name: controller.trace("192.0.2.1"),
}
"""How a built-in probe is started on an interface."""


@pytest.fixture
def controller(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> Iterator[Controller]:
    monkeypatch.setattr(controllers, "Compiler", lambda: Shared(compiler))
    with closing(Controller()) as made:
        yield made


@pytest.fixture(scope="module")
def interface() -> Iterator[str]:
    """An interface in a namespace, in which the test runs."""
    with netns.veth_pair() as (_, right), netns.inside(right.ns):
        yield right.ifname


@pytest.mark.parametrize("name", START)
def test_a_removed_probe_gives_its_memory_back_at_once(
    controller: Controller, interface: str, name: str
) -> None:
    controller.configure_paths(interface)

    def run() -> int:
        """Start the probe, and remove it; returns how many maps were there meanwhile."""
        START[name](controller, interface)
        time.sleep(0.12)
        maps = len(held_ids(collect=False)[0])
        controller.remove(name)
        return maps

    run()  # what is opened once and stays
    before = held_ids()[0]
    gc.disable()  # a server may run for hours until the next collection
    try:
        assert run() > len(before) + 5
        assert held_ids(collect=False)[0] == before
    finally:
        gc.enable()
