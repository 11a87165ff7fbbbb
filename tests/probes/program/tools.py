"""User probes that see only what a test runs through their hooks, and configurations for them."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import contextmanager
from typing import Any, Self

from bpf.assembler import callback_btf
from bpf.attach.attachment import Hook
from bpf.compiler import Compiler
from bpf.machine import online_cpus
from bpf.syscall import prog_test_run
from probes.config.model import ProbeConfig, parse
from probes.hooks import Hooks
from probes.program.loading import LoadedSide, compile_probe
from probes.program.probe import ProgramProbe
from probes.snapshot import Event, Item, Snapshot

FRAME = bytes(64)
CPUS = online_cpus()

COUNTER = """\
BPF_ARRAY(packets, u64, 1);

int count(struct xdp_md *ctx)
{
    u32 zero = 0;
    u64 *n = packets.lookup(&zero);
    if (n)
        lock_xadd(n, 1);
    return XDP_PASS;
}
"""
"""Counts packets, on any CPU at once."""
DEEP = """\
BPF_ARRAY(packets, u64, 1);

int count(struct xdp_md *ctx)
{
    char a[508] __attribute__((aligned(4), uninitialized));
    bpf_probe_read_kernel(a, sizeof(a), (void *)8);
    *(u32 *)a = 0;
    u64 *n = packets.lookup((u32 *)a);
    if (n)
        lock_xadd(n, 1);
    return XDP_PASS;
}
"""
"""Verifies alone, but needs the place on the stack where a chain keeps the context."""
TC_COUNTER = "#include <uapi/linux/pkt_cls.h>\n" + COUNTER.replace("xdp_md", "__sk_buff").replace(
    "XDP_PASS", "TC_ACT_OK"
)


def metric(name: str, map_name: str = "", **more: Any) -> dict[str, Any]:
    """A metric of a configuration; its map has its name where none is given."""
    return {"name": name, "map": map_name or name, **more}


PACKETS = metric("packets", snapshot=True)


def direction(source: str, *metrics: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"interface": "lo", "source": source, "metrics": list(metrics), **more}


def config(source: str = COUNTER, *metrics: dict[str, Any], **more: Any) -> ProbeConfig:
    """A probe on ingress; keys of a direction in `more` go there, all others to the probe."""
    names = ("interface", "hook", "function")
    inside = {key: more.pop(key) for key in names if key in more}
    side = direction(source, *metrics, **inside)
    return parse({"name": "probe", "interval": 0, "ingress": side, **more}, "test")


class Loose:
    """Hooks that are attached to nothing, and probes on them."""

    def __init__(self, compiler: Compiler) -> None:
        self.compiler = compiler
        self.hooks = Hooks(lambda point: None)
        self.probes: list[ProgramProbe] = []

    def add(self, configured: ProbeConfig) -> ProgramProbe:
        with compile_probe(self.compiler, configured, self.hooks) as compiled:
            probe = ProgramProbe(self.compiler, compiled, self.hooks)
        self.probes.append(probe)
        return probe

    def remove(self, probe: ProgramProbe) -> None:
        self.probes.remove(probe)
        probe.close()

    def fd(self, hook: Hook = Hook.XDP, interface: str = "lo") -> int:
        """The dispatcher, to be run."""
        (found,) = (
            point.chain.fd
            for point in self.hooks.in_use()
            if (point.hook, point.interface.name) == (hook, interface)
        )
        return found

    def send(self, repeat: int = 1, frame: bytes = FRAME, **where: Any) -> int:
        """Run frames; the last one's verdict."""
        return prog_test_run(self.fd(**where), bytes(frame), repeat=repeat).verdict

    def close(self) -> None:
        for probe in self.probes:
            probe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Traffic:
    """Frames through a dispatcher, run by another thread until the block ends.

    A burst is as long as a thread may have to wait for the interpreter, or more. Seconds of `pause`
    between bursts leave a CPU to other tests.
    """

    def __init__(
        self, fd: int, frame: bytes = FRAME, burst: int = 1_000_000, pause: float = 0
    ) -> None:
        self.sent = 0
        self._fd, self._frame, self._burst = fd, bytes(frame), burst
        self._pause = pause
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.wait(self._pause):
            prog_test_run(self._fd, self._frame, repeat=self._burst)
            self.sent += self._burst

    def __enter__(self) -> Self:
        self._thread.start()
        while not self.sent:
            time.sleep(0.001)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop sending; returns after the last frame has passed."""
        self._stop.set()
        self._thread.join()


@contextmanager
def on_cpu(cpu: int) -> Any:
    """Have this thread run on one CPU."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def replace(probe: ProgramProbe, configured: ProbeConfig) -> tuple[Item, ...]:
    """Compile and replace."""
    with probe.compile(configured) as compiled:
        return probe.replace(compiled)


def snapshots(items: Iterable[Item]) -> list[Snapshot]:
    return [item for item in items if isinstance(item, Snapshot)]


def events(items: Iterable[Item]) -> list[Event]:
    return [item for item in items if isinstance(item, Event)]


def table(items: Sequence[Item], name: str) -> dict[Any, Any]:
    """A metric's rows, as Python has them."""
    (found,) = (s for s in snapshots(items) if s.metric == name)
    keys, values = found.rows["key"].tolist(), found.rows["value"].tolist()
    assert len(set(keys)) == len(keys)
    return dict(zip(keys, values, strict=True))


def total(items: Iterable[Item], name: str = "packets") -> int:
    """The sum of all values of a metric, over all windows."""
    return sum(int(s.rows["value"].sum()) for s in snapshots(items) if s.metric == name)


def only(probe: ProgramProbe) -> LoadedSide:
    """The one direction of the generation that runs."""
    (side,) = probe._current.sides
    return side


def id_of(fd: int) -> int:
    """A map's or a program's id in the kernel."""
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as info:
        for line in info:
            label, _, value = line.partition(":")
            if label in ("map_id", "prog_id"):
                return int(value)
    raise AssertionError("no map and no program")


def held_ids(*, collect: bool = True) -> tuple[set[int], set[int], int]:
    """Ids of the maps and programs that this process holds, and how many descriptors in all, but
    for sockets and memory files: a compile helper that comes and goes has one of each.

    Without `collect`, also of objects that only wait for the garbage collector.
    """
    if collect:
        gc.collect()  # a mapping has a descriptor too, and a traceback may hold it
    callback_btf()  # the process keeps its descriptor from the first drain on
    ids: dict[str, set[int]] = {"map_id": set(), "prog_id": set()}
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            count += not os.readlink(f"/proc/self/fd/{fd}").startswith(("socket:", "/memfd:"))
            with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as info:
                lines = info.read().splitlines()
        except OSError:
            continue  # the listing's own
        for line in lines:
            label, _, value = line.partition(":")
            if label in ids:
                ids[label].add(int(value))
    return ids["map_id"], ids["prog_id"], count
