"""One application without a monitor: compiled and loaded as the monitor does, given packets, and
read."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np

from bpf.abi import ProgType
from bpf.attach.attachment import Hook
from bpf.attach.chain import Stage
from bpf.attach.interface import Interface
from bpf.compiler import Compiler
from bpf.machine import possible_cpus
from bpf.maps.map import Map
from bpf.syscall import prog_test_run
from probes.config import model as configs
from probes.config.metric_checks import check_metrics
from probes.config.model import ProbeConfig
from probes.flow.records import hash_keys
from probes.monitor.applications import views
from probes.monitor.applications.top_table import TopTable
from probes.monitor.options import MonitorOptions
from probes.monitor.programs import macros_of
from probes.program.compiled import CompiledSide
from probes.program.loading import LoadedSide, _metric_maps
from probes.snapshot import Snapshot
from probes.tables.conversion import columns, flat_rows

APPLICATIONS = Path(views.__file__).parent
FRAME = bytes(64)
NOW_NS = 1_000_000_000_000
PROTOCOLS = {"icmp": 1, "tcp": 6, "udp": 17, "icmp6": 58}
Array = np.ndarray[tuple[int, ...], np.dtype[Any]]
_OF_PACKET = ("tcp_flags", "tos", "fragment", "network_at", "transport_at")


@dataclass(frozen=True, slots=True)
class Flow:
    """A 5-tuple, as people write it."""

    source: str
    destination: str
    source_port: int = 0
    destination_port: int = 0
    protocol: str = "udp"


@cache
def words_of(flow: Flow) -> tuple[int, ...]:
    """`struct flow_key`."""
    ends = [ipaddress.ip_address(each) for each in (flow.source, flow.destination)]
    ports = b"".join(p.to_bytes(2, "big") for p in (flow.source_port, flow.destination_port))
    raw = b"".join(end.packed.ljust(16, b"\0") for end in ends)
    raw += ports + bytes([PROTOCOLS[flow.protocol], ends[0].version, 0, 0])
    return tuple(np.frombuffer(raw, "u8").tolist())


class Given:
    """One of the applications that come with the monitor."""

    def __init__(self, compiler: Compiler, name: str, *, records: int = 1, **define: int) -> None:
        """Load it; `records` is RECORDS of application.h; `define` replaces the application's
        macros."""
        self.name = name
        self.config = _configured(name, define)
        direction = self.config.ingress
        assert direction
        self.define = direction.define
        interface = Interface("test", 0, True)
        macros = macros_of(MonitorOptions(), interface, Hook.XDP)
        macros |= {"RECORDS": records, **self.define}
        compiled = compiler.compile(
            direction.source,
            ProgType.XDP,
            name=f"{name}.ingress.c",
            cflags=[f"-D{macro}={value}" for macro, value in macros.items()],
            headers=direction.headers,
        )
        with compiled:
            check_metrics(self.config, "ingress", compiled.maps)
            (program,) = compiled.programs.values()
            self._stage = Stage()
            self._side = LoadedSide(
                CompiledSide(
                    "ingress",
                    direction,
                    interface,
                    Hook.XDP,
                    compiled,
                    program,
                    tuple(_metric_maps(direction, compiled)),
                    {},
                ),
                self._stage.next_fd,
            )
            selections = compiled.maps["selections"]
            assert selections.value is not None
            fd = os.dup(self._side.shared["selections"])
            self._selections = Map(fd, selections.spec, selections.key, selections.value)
        self._selection = np.zeros((), selections.value)
        self._windows = 0

    def packets(self, flows: Sequence[Flow], **fields: Any) -> Array:
        """Packets of these flows, `struct selected` (n,): 100 bytes each unless `fields` says
        otherwise, one value or one for each; the fields in `_OF_PACKET` are of
        the packet."""
        given = np.zeros(len(flows), self._selection.dtype["packets"].base)
        given["packets"], given["bytes"], given["now_ns"], given["applications"] = 1, 100, NOW_NS, 1
        words = np.array([words_of(flow) for flow in flows], "u8").reshape(-1, 5)
        key = given["packet"]["key"]
        key["source"], key["destination"] = words[:, :2], words[:, 2:4]
        key["transport"] = words[:, 4]
        given["hash"] = hash_keys(words)
        for field, value in fields.items():
            where = given["packet"] if field in _OF_PACKET else given
            where[field] = value
        return given

    def run(
        self,
        packets: Array,
        *,
        repeat: int = 1,
        cpu: int | None = None,
        frames: Sequence[bytes] = (),
    ) -> None:
        """Give packets in turn, as many as a frame has; each frame `repeat` times.

        `frames` are their bytes, if the application reads them.
        """
        with _on(cpu):
            for at in range(0, len(packets), self._room):
                part = packets[at : at + self._room]
                self._selection["count"] = len(part)
                self._selection["packets"][: len(part)] = part
                self._selections.update([0], np.repeat(self._selection, possible_cpus()))
                frame = frames[at] if frames else FRAME
                prog_test_run(self._side.program.fd, frame, repeat=repeat)

    def give(self, flow: Flow, *, repeat: int = 1, cpu: int | None = None, **fields: Any) -> None:
        """Give one packet of a flow, `repeat` times; `fields` as in `packets`."""
        self.run(self.packets([flow], **fields), repeat=repeat, cpu=cpu)

    def window(self, seconds: float = 1.0) -> tuple[Snapshot, ...]:
        """End the window, which was so long; a snapshot of each exported metric."""
        side = self._side
        ended = side.clones[side.active]
        side.active ^= len(side.clones) > 1
        self._windows += 1
        end_ns = NOW_NS + round(seconds * 1e9)
        losses = side.losses()
        snapshots: list[Snapshot] = []
        for metric_map in side.metric_maps:
            for table in metric_map.read(side.map_of(metric_map, ended), end_ns):
                snapshots.append(
                    Snapshot(
                        probe=self.name,
                        interface="test",
                        window=self._windows,
                        generation=1,
                        start_ns=NOW_NS,
                        end_ns=end_ns,
                        end_utc_ns=end_ns,
                        rows=table.rows,
                        losses=losses,
                        occupancy=table.occupancy,
                        swap_ns=0,
                        drain_ns=0,
                        side="ingress",
                        metric=table.metric.name,
                        schema=table.schema,
                    )
                )
                losses = {}
        return tuple(snapshots)

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """End the window: its rows as files have them, by metric, a column by its name."""
        return {snapshot.metric: rows_of(snapshot) for snapshot in self.window()}

    def view(self, snapshots: Sequence[Snapshot], most: int = 20) -> tuple[TopTable, ...]:
        """Its tables as an operator sees them."""
        return views.VIEWS[self.name].tables(self.define, snapshots, most)

    def findings(self, snapshots: Sequence[Snapshot], most: int = 20) -> tuple[str, ...]:
        """The summary that an operator reads."""
        return views.VIEWS[self.name].findings(self.define, snapshots, most)

    def close(self) -> None:
        self._selections.close()
        self._side.close()
        self._stage.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _room(self) -> int:
        room: int = self._selection["packets"].shape[0]
        return room


def rows_of(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Rows as files have them."""
    assert snapshot.schema
    names = columns(snapshot.schema, snapshot.rows.dtype)
    return [dict(zip(names, row, strict=True)) for row in flat_rows(snapshot.schema, snapshot.rows)]


def _configured(name: str, define: dict[str, int]) -> ProbeConfig:
    given = configs.load(APPLICATIONS / f"{name}.toml")
    assert given.ingress
    ingress = given.ingress.model_copy(update={"define": {**given.ingress.define, **define}})
    return given.model_copy(update={"ingress": ingress})


@contextmanager
def _on(cpu: int | None) -> Iterator[None]:
    """Bound to a CPU, if one is given."""
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, allowed if cpu is None else {cpu})
        yield
    finally:
        os.sched_setaffinity(0, allowed)
