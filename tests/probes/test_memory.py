"""Kernel memory: what a removed probe gives back, and the limit that all probes share."""

from __future__ import annotations

import gc
import os
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from app.lab import netns
from bpf.abi import MapFlag, MapType
from bpf.compiler import Compiled, Compiler
from bpf.errors import KernelError, UsageError
from bpf.maps.kinds import held_maps
from bpf.programs.program import Program, make_map
from bpf.syscall import MapSpec
from probes import memory_limit as memory
from probes.config.model import ProbeConfig
from probes.control import controller as controllers
from probes.control import probe_runner
from probes.control.builtin_probes import FLOW_PROBE
from probes.control.controller import Controller
from probes.flow.filter import FlowFilter
from probes.flow.hook import FlowHook
from probes.flow.options import FlowOptions
from probes.flow.records import TableSizes
from probes.monitor.options import MonitorOptions
from probes.path.options import PathOptions
from probes.snapshot import Event, Item
from tests.bpf.tools import python
from tests.probes.deck import UDP
from tests.probes.program.tools import PACKETS, config, held_ids
from tests.support.compiling import Shared
from tests.support.veth import veth_pair

MIB = 1 << 20

START: dict[str, Callable[[Controller, str], object]] = {
    "flow": lambda controller, name: controller.start(FLOW_PROBE, name, FlowOptions(interval=0.05)),
    "monitor": lambda controller, name: controller.watch_metrics(name),
    "path": lambda controller, name: controller.trace("192.0.2.1"),
}
"""How a built-in probe is started on an interface."""


@pytest.fixture
def controller(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> Iterator[Controller]:
    monkeypatch.setattr(controllers, "Compiler", lambda: Shared(compiler))
    # The tests' shared compiler keeps the maps of every source: these belong to no probe.
    kept = held_maps().keys()
    monkeypatch.setattr(
        probe_runner, "held_maps", lambda: {n: m for n, m in held_maps().items() if n not in kept}
    )
    with closing(Controller()) as made:
        yield made


@pytest.fixture(scope="module")
def interface() -> Iterator[str]:
    """An interface in a namespace, in which the test runs."""
    with veth_pair() as (_, right), netns.inside(right.ns):
        yield right.ifname


@pytest.mark.slow
@pytest.mark.parametrize("name", START)
def test_a_removed_probe_gives_its_memory_back_at_once(
    controller: Controller, interface: str, name: str
) -> None:
    controller.paths.configure(interface)

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


@pytest.mark.slow
def test_a_filter_change_takes_no_more_memory(
    controller: Controller, interface: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S4.3: not even while old programs, new programs and the compiler's maps exist."""
    controller.start(FLOW_PROBE, interface, FlowOptions(interval=0))
    for _ in range(2):
        controller.export("flow")
    before = controller.memory().used
    peak = 0
    load = FlowHook.load

    def watched(self: FlowHook, compiled: Compiled, shared: Mapping[str, int]) -> list[Program]:
        nonlocal peak
        programs = load(self, compiled, shared)
        peak = max(peak, controller.memory().used)
        return programs

    monkeypatch.setattr(FlowHook, "load", watched)
    controller.reconfigure(FlowFilter.parse("udp port:53"))
    assert before <= peak < 1.01 * before
    assert controller.memory().used < 1.01 * before


def test_sizes_are_told_before_the_tables_are_made(controller: Controller, interface: str) -> None:
    seen: list[tuple[str, int]] = []

    def listen(item: Item) -> None:
        if isinstance(item, Event) and item.source == "flow":
            seen.append((item.text, controller.memory().used))

    controller.listen(listen)
    controller.memory_limit = 64 << 20
    before = controller.memory().used
    controller.start(FLOW_PROBE, interface, FlowOptions(interval=0))
    taken = controller.memory().used - before
    (text, at_that_time) = seen[0]
    assert at_that_time == before
    found = re.match(r"the tables take (\d+) MiB .* \(--memory: 64 MiB\)$", text)
    assert found
    assert taken / MIB == pytest.approx(int(found[1]), rel=0.05)
    assert taken < 48 * MIB


def test_a_probe_that_needs_more_than_is_left_is_refused(interface: str) -> None:
    def with_array(entries: int, more: str = "") -> ProbeConfig:
        source = UDP + f"BPF_ARRAY(extra, u64, {entries});\n{more}"
        return config(source, PACKETS, interface=interface)

    # The controller's own compiler: the tests' shared one keeps the maps of every source.
    with Controller() as controller:
        controller.memory_limit = controller.memory().used + 4 * MIB
        with pytest.raises(UsageError, match=r"probe probe needs 8193 KiB .* in use; remove .*--m"):
            controller.add(with_array(MIB))
        assert controller.probes() == ()
        controller.add(with_array(1000))
        used = controller.memory().used
        with pytest.raises(UsageError, match="probe probe needs"):
            controller.replace(with_array(MIB))
        assert controller.memory().used == used
        controller.memory_limit += 16 * MIB
        controller.replace(with_array(MIB))
        # The same map again: it is kept, and takes nothing.
        controller.memory_limit = controller.memory().used + MIB
        controller.replace(with_array(MIB, "\n"))
        (info,) = controller.probes()
        assert info.generation == 3


def test_built_in_probes_keep_to_the_limit(controller: Controller, interface: str) -> None:
    controller.memory_limit = controller.memory().used + 100_000
    controller.paths.configure(interface, PathOptions(rate=2000))
    with pytest.raises(UsageError, match="probe monitor needs"):
        controller.watch_metrics(interface, MonitorOptions(bits=14))
    with pytest.raises(UsageError, match="probe path needs"):
        controller.trace("192.0.2.1")
    controller.memory_limit = 40_000
    with pytest.raises(UsageError, match=r"do not fit into 30 KiB .* --memory must be at least"):
        controller.start(FLOW_PROBE, interface, FlowOptions())
    assert controller.probes() == ()


@pytest.mark.parametrize(
    ("cpus", "ram_gib", "mib"), [(2, 64, 1024), (2, 1, 128), (128, 64, 1024), (1024, 512, 2048)]
)
def test_the_default_limit_fits_the_machine(
    cpus: int, ram_gib: int, mib: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": ram_gib << 18}
    monkeypatch.setattr(os, "sysconf", pages.__getitem__)
    monkeypatch.setattr(memory, "numbered_cpus", lambda: cpus)
    assert memory.default_limit() == mib * MIB
    assert TableSizes.within(memory.flow_share(mib * MIB), cpus).memory < cpus * 2 * MIB + 192 * MIB


@pytest.mark.parametrize(
    ("line", "limits", "mib"),
    [
        ("0::/", {"": "max"}, 0),
        ("0::/pod/app", {"pod": "150", "pod/app": "max"}, 150),  # a limit of a cgroup above
        ("0::/pod/app", {"": "300", "pod": "400", "pod/app": "350"}, 300),
        ("4:memory:/gone", {"memory": "80"}, 80),  # version 1 in a container: its root is mounted
        ("7:blkio:/pod\n4:memory:/pod", {"memory/pod": "200"}, 200),
    ],
)
def test_the_default_limit_respects_the_cgroup(
    line: str, limits: dict[str, str], mib: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"{line}\n")
    for folder, text in limits.items():
        name = "memory.limit_in_bytes" if folder.startswith("memory") else "memory.max"
        at = tmp_path / "sys/fs/cgroup" / folder
        at.mkdir(parents=True, exist_ok=True)
        (at / name).write_text(f"{text if text == 'max' else int(text) * MIB}\n")
    limit = memory.cgroup_limit(tmp_path)
    assert limit == (mib * MIB if mib else sys.maxsize)
    monkeypatch.setattr(memory, "cgroup_limit", lambda: limit)
    if mib:
        assert memory.default_limit() == limit // 8
        # A container of 150 MB starts by default.
        assert TableSizes.within(memory.flow_share(limit // 8), 2).memory < limit // 8


def test_a_map_that_memory_lacks_room_for_tells_its_size() -> None:
    spec = MapSpec("huge", MapType.ARRAY, 4, 1 << 16, 1 << 26, MapFlag.MMAPABLE)
    with pytest.raises(KernelError, match=r"huge .*: 4294967296 KiB; choose .*--memory") as error:
        make_map(spec)
    assert error.value.exit_code == 4


LOCK = """
import resource
from bpf.maps.kinds import unlock
from tests.bpf.tools import without_capability
resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 16, 1 << 20))
without_capability(24)
unlock()
print(*resource.getrlimit(resource.RLIMIT_MEMLOCK))
"""


def test_locked_memory_is_allowed_up_to_the_hard_limit_without_privilege() -> None:
    """Kernels before 5.11 count maps against it."""
    with python(LOCK) as process:
        assert process.communicate()[0].split() == [str(1 << 20)] * 2


def test_locked_memory_is_unlimited_with_privilege(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda what, limits: asked.append(limits))
    Controller().close()
    assert asked == [(resource.RLIM_INFINITY, resource.RLIM_INFINITY)]
