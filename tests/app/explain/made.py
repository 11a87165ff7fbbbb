"""Windows about one upload, made up: flows, its socket and owner, and probes of its path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bpf.arrays import Array
from probes.flow.records import FLOW, FlowDirection
from probes.path.records import HOP, HOPS_TABLE, PATH, PATHS_TABLE, MeasuredBy, ProbeOutcome
from probes.snapshot import Loss, LossReason, Snapshot
from probes.sockets.records import Limit
from tests.support.console.owners import WEB, Process, owner_tables, sockets_for
from tests.support.paths import packed

NEAR, FAR, OTHER = "10.0.0.5", "192.0.2.9", "192.0.2.77"
SECOND = 10**9
QUEUED = {
    "limit": Limit.QUEUE, "limit_s": 12, "rtt_us": 92_000, "queue_us": 80_000, "segments": 1000,
    "retransmitted": 2, "delivery_rate": 2_500_000, "cwnd": 160, "mss": 1448, "unacked": 150,
    "notsent": 300_000, "busy": 1.0, "sent": 2_400_000, "state": 1,
}  # fmt: skip


def flow(direction: FlowDirection, size: int, far: str = FAR, port: int = 40001) -> Array:
    """A flow of TCP port 443 at `far`."""
    row = np.zeros(1, FLOW)
    leaves = direction == FlowDirection.EGRESS
    ends = (NEAR, far) if leaves else (far, NEAR)
    row["source"], row["destination"] = (packed(end) for end in ends)
    ports = (port, 443) if leaves else (443, port)
    row["source_port"], row["destination_port"] = ports
    row["direction"], row["protocol"], row["version"] = direction, 6, 4
    row["packets"], row["bytes"], row["interface"] = size // 1000, size, b"eth0"
    return row


def window(number: int, rows: Array, losses: Any = None, **of: str) -> Snapshot:
    """The window that ends at second `number`."""
    end = number * SECOND
    return Snapshot(
        of.get("probe", "flow"), "eth0", number, 1, end - SECOND, end, end + 10**18, rows,
        losses or {}, 0.1, 0, 0, metric=of.get("metric", ""),
    )  # fmt: skip


def upload(
    seconds: int = 12, numbers: Mapping[str, object] = QUEUED, owner: int = 1,
    processes: Sequence[Process] = (WEB,), losses: Mapping[LossReason, Loss] | None = None,
) -> list[Snapshot]:  # fmt: skip
    """Windows of an upload to FAR, and of a smaller download from OTHER."""
    found = []
    for number in range(1, seconds + 1):
        rows = np.concatenate((
            flow(FlowDirection.EGRESS, 2_500_000), flow(FlowDirection.INGRESS, 50_000),
            flow(FlowDirection.INGRESS, 9_000, OTHER, 40002),
        ))  # fmt: skip
        flows = window(number, rows, losses)
        talks = sockets_for(rows, np.array([0, 0]))
        to_far = (talks["far"] == packed(FAR)).all(axis=1)
        talks["owner"], talks["reason"], talks["by"] = (
            np.where(to_far, value, 0) for value in (max(owner, 0), max(-owner, 0), int(owner > 0))
        )
        for name, value in numbers.items():
            talks[name][to_far] = value
        found += [flows, *owner_tables(flows, talks, processes)]
    return found


def probes(
    seconds: int, times_ms: Sequence[float | None], least_ms: Sequence[float | None] = (),
    arrives: bool = True, source_port: int = 40001, by: MeasuredBy = MeasuredBy.PROBE,
) -> list[Snapshot]:  # fmt: skip
    """Windows with ten probes a hop of the upload; None: the hop never answers.

    The first probe of a hop has its least time. The last hop is the destination if it `arrives`.
    """
    least = least_ms or times_ms
    found = []
    for number in range(1, seconds + 1):
        rows = np.zeros(10 * len(times_ms), HOP)
        rows["destination"], rows["source"] = packed(FAR), packed(NEAR)
        rows["source_port"], rows["destination_port"] = source_port, 443
        rows["protocol"], rows["version"], rows["measured_by"] = 6, 4, by
        for hop, (time, low) in enumerate(zip(times_ms, least, strict=True), 1):
            mine = slice((hop - 1) * 10, hop * 10)
            rows["hop"][mine] = hop
            rows["sent_ns"][mine] = (number - 1) * SECOND + np.arange(10) * 10**7 + 1
            if time is None or low is None:
                rows["outcome"][mine] = ProbeOutcome.UNANSWERED
                continue
            took = np.full(10, time)
            took[0] = low
            rows["received_ns"][mine] = rows["sent_ns"][mine] + (took * 1e6).astype("i8")
            last = arrives and hop == len(times_ms)
            rows["responder"][mine] = packed(FAR if last else f"198.51.100.{hop}")
        found.append(window(number, rows, probe="path", metric=HOPS_TABLE))
    return found


def finding(second: int, **values: Any) -> Snapshot:
    """One row of dtype PATH about the upload."""
    row = np.zeros(1, PATH)
    row["destination"], row["version"], row["protocol"] = packed(FAR), 4, 6
    row["source_port"], row["destination_port"] = 40001, 443
    row["at_ns"] = second * SECOND
    for name, value in values.items():
        row[name] = value
    return window(second, row, probe="path", metric=PATHS_TABLE)
