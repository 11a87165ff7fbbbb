"""Made-up owners of a window of flows, as the socket probe publishes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from bpf.arrays import Array
from probes.flow.grouping import group
from probes.snapshot import Snapshot
from probes.sockets.records import (
    OWNER,
    OWNERS_TABLE,
    OWNERSHIP,
    OWNERSHIP_TABLE,
    PROBE,
    SOCKET,
    SOCKETS_TABLE,
    By,
    Reason,
)


class Process(NamedTuple):
    """An owner."""

    comm: str
    pid: int = 0
    unit: str = ""
    user: str = "root"
    container: str = ""
    pod: str = ""


WEB = Process("nginx", 812, "web.service", "www-data")
POSTGRES = Process("postgres", 901, "db.service", "postgres", "db-1", "shop")


def owners_of(processes: Sequence[Process]) -> Array:
    """Return rows of dtype OWNER (n,), numbered from 1."""
    rows = np.zeros(len(processes), OWNER)
    for number, one in enumerate(processes, 1):
        row = rows[number - 1]
        row["number"], row["tgid"], row["start_ns"] = number, one.pid, one.pid * 10**9
        for name in ("comm", "unit", "user", "container", "pod"):
            row[name] = getattr(one, name).encode()
    return rows


def sockets_for(flows: Array, owner: Array, **numbers: object) -> Array:
    """Return a row of dtype SOCKET for each conversation of `flows`, dtype FLOW.

    `owner` (m,) has the number of the owner of each conversation in the order of `group`; a
    negative one is a Reason. `numbers` are other fields.
    """
    talks = group(flows, "conversations").rows
    rows = np.zeros(len(talks), SOCKET)
    for name in ("near", "far", "near_port", "far_port", "protocol", "version"):
        rows[name] = talks[name]
    rows["owner"] = np.maximum(owner, 0)
    rows["reason"] = np.where(owner > 0, Reason.OWNED, -owner)
    rows["by"], rows["holders"] = np.where(owner > 0, By.HOLDS, 0), owner > 0
    for name, value in numbers.items():
        rows[name] = value
    return rows


def owner_tables(
    window: Snapshot, sockets: Array, processes: Sequence[Process]
) -> tuple[Snapshot, ...]:
    """Return the three tables of the socket probe about a window of flows, in their order."""
    talks = group(window.rows, "conversations")
    of = {row["near"].tobytes() + row["far"].tobytes() + row["near_port"].tobytes()
          + row["far_port"].tobytes(): row["reason"] for row in sockets}  # fmt: skip
    reasons = np.array([
        of.get(row["near"].tobytes() + row["far"].tobytes() + row["near_port"].tobytes()
               + row["far_port"].tobytes(), Reason.NOT_ASKED)
        for row in talks.rows
    ], "u1")[talks.of] if len(talks.rows) else np.empty(0, "u1")  # fmt: skip
    ownership = np.zeros(len(set(reasons.tolist())), OWNERSHIP)
    for place, reason in enumerate(sorted(set(reasons.tolist()))):
        flows = window.rows[reasons == reason]
        sums = int(flows["packets"].sum()), int(flows["bytes"].sum())
        ownership[place] = reason, len(flows), *sums
    tables = {
        SOCKETS_TABLE: sockets, OWNERS_TABLE: owners_of(processes), OWNERSHIP_TABLE: ownership,
    }  # fmt: skip
    return tuple(
        replace(window, probe=PROBE, metric=name, rows=rows, losses={})
        for name, rows in tables.items()
    )
